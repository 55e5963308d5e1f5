// SPDX-License-Identifier: Apache-2.0
#include "db/log/catalog.h"

#include <algorithm>
#include <utility>

#include "db/log/recovery.h"
#include "db/log/segment_files.h"
#include "format/frame.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kSmallBytesMax = uint64_t{64} << 10;
constexpr uint64_t kSmallShareOfSegment = 16;
// Messages of pages, before they are compressed: 1 MiB where segments have the usual sizes.
constexpr uint64_t kSmallsPerPage = 16;

uint64_t EstimatedBytes(const format::StepRecord& record) {
  uint64_t bytes = 256 + 72 * record.extents.size();
  for (const auto& item : record.items) bytes += 64 + item.name.size();
  if (record.group) bytes += 96 + 4 * record.group->parts.size();
  return bytes;
}

// Sorts entries into the root, or into pages where they are many. Finish says what failed
// meanwhile.
class Entries {
 public:
  explicit Entries(uint64_t small_bytes) : small_bytes_(small_bytes) {}

  void Add(const LiveStep& live) {
    format::LiveCommit& entry = current_.live.emplace_back();
    entry.step = live.record;
    entry.place = live.place;
    Count(EstimatedBytes(entry.step));
  }
  void Add(const format::SegmentEntry& segment) {
    current_.segments.push_back(segment);
    Count(64);
  }

  Result<CatalogPayload> Finish(format::Catalog head) {
    CatalogPayload payload;
    if (!pages_.empty() || bytes_ > small_bytes_) EndPage();
    STEPWELL_RETURN_IF_ERROR(status_);
    payload.pages = std::move(pages_);
    head.live = std::move(current_.live);
    head.segments = std::move(current_.segments);
    head.pages.resize(payload.pages.size());
    for (auto& place : head.pages) place.length_bytes = 1;  // any: they have one size
    payload.root = std::move(head);
    return payload;
  }

 private:
  void Count(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ >= kSmallsPerPage * small_bytes_) EndPage();
  }

  void EndPage() {
    if (bytes_ == 0) return;
    auto page = format::EncodeCatalogPage(current_);
    if (page.ok()) {
      pages_.push_back(std::move(page).value());
    } else {
      status_ = page.status();
    }
    current_ = {};
    bytes_ = 0;
  }

  const uint64_t small_bytes_;
  Status status_;
  format::Catalog current_;
  uint64_t bytes_ = 0;
  std::vector<std::string> pages_;
};

using format::Catalog;
using format::FrameKind;
using format::FramePlace;

struct Link {
  FramePlace place;
  Catalog root;
};

Status Bad(SegmentFiles& files, const FramePlace& place, const char* what) {
  return DataLossError(
      StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes, ": ", what));
}

Result<Catalog> Decoded(SegmentFiles& files, const FramePlace& place, Result<Catalog> catalog) {
  if (catalog.ok()) return catalog;
  return catalog.status().WithContext(
      StrCat(files.PathOf(place.segment), ": offset ", place.offset_bytes));
}

// Newest first. Each step back goes to a lower segment, so there is an end, whatever the bytes say.
Result<std::vector<Link>> ReadRoots(SegmentFiles& files, FramePlace place) {
  std::vector<Link> links;
  while (true) {
    STEPWELL_ASSIGN_OR_RETURN(const Frame frame, ReadFrame(files, place, FrameKind::kCatalog));
    STEPWELL_ASSIGN_OR_RETURN(Catalog root,
                              Decoded(files, place, format::DecodeCatalog(AsBytes(frame.payload))));
    const FramePlace previous = root.previous;
    if (!links.empty() && root.last_commit > links.back().root.last_commit) {
      return Bad(files, place, "a catalog that is newer than the one that follows it");
    }
    links.push_back({place, std::move(root)});
    if (previous.length_bytes == 0) return links;
    if (previous.segment >= place.segment) {
      return Bad(files, place, "a catalog that follows one in no lower segment");
    }
    place = previous;
  }
}

void Take(Catalog entries, LogState* state) {
  for (auto& live : entries.live) AddLive({std::move(live.step), live.place}, state);
  for (const auto& segment : entries.segments) state->catalog_segments[segment.segment] = segment;
}

// Pages lie behind their root, in the order in which it names them: none is read twice.
Status TakePages(const Link& link, SegmentFiles& files, LogState* state, CatalogNote* note) {
  for (const FramePlace& page : link.root.pages) {
    if (page.segment != link.place.segment || page.offset_bytes < note->end_bytes) {
      return Bad(files, link.place, "a catalog's page lies elsewhere");
    }
    STEPWELL_ASSIGN_OR_RETURN(const Frame frame, ReadFrame(files, page, FrameKind::kCatalogPage));
    STEPWELL_ASSIGN_OR_RETURN(
        Catalog entries, Decoded(files, page, format::DecodeCatalogPage(AsBytes(frame.payload))));
    Take(std::move(entries), state);
    note->end_bytes = AlignUp(page.offset_bytes + page.length_bytes, kGrainBytes);
  }
  return OkStatus();
}

Status Apply(Link link, SegmentFiles& files, LogState* state) {
  CatalogNote note;
  note.place = link.place;
  note.last_commit = link.root.last_commit;
  note.first_segment =
      state->catalogs.empty() ? link.place.segment : state->catalogs.front().place.segment;
  note.end_bytes = AlignUp(link.place.offset_bytes + link.place.length_bytes, kGrainBytes);
  for (const uint64_t commit : link.root.gone) RemoveLive(commit, state);
  for (const uint64_t segment : link.root.segments_gone) state->catalog_segments.erase(segment);
  STEPWELL_RETURN_IF_ERROR(TakePages(link, files, state, &note));
  note.bytes = note.end_bytes - link.place.offset_bytes;
  state->catalogs.push_back(note);
  Take(std::move(link.root), state);
  return OkStatus();
}

}  // namespace

CatalogWriter::CatalogWriter(LiveSteps* live, uint64_t segment_bytes_max)
    : live_(live),
      small_bytes_(
          std::clamp<uint64_t>(segment_bytes_max / kSmallShareOfSegment, 4096, kSmallBytesMax)) {}

uint64_t CatalogPayload::FrameBytes(uint64_t block_bytes) const {
  const auto frame = [&](size_t payload) {
    return AlignUp(format::kFrameHeaderBytes + payload, block_bytes);
  };
  uint64_t bytes = frame(format::EncodeCatalog(root).size());
  for (const std::string& page : pages) bytes += frame(page.size());
  return bytes;
}

void CatalogWriter::Begin(const LogState& state, const Segments& segments) {
  notes_.assign(state.catalogs.begin(), state.catalogs.end());
  for (const auto& [commit, step] : state.changed) changed_[commit] = {step, ++clock_};
  for (const auto& [id, entry] : segments) {
    if (!state.catalog_segments.contains(id)) NoteSegment(id);
  }
  for (const auto& [id, entry] : state.catalog_segments) {
    if (!segments.contains(id)) NoteSegment(id);
  }
}

void CatalogWriter::Note(const LiveSteps::Change& change) {
  ++clock_;
  const auto note = [this](const format::StepRecord& record) {
    changed_[record.commit] = {record.step, clock_};
  };
  for (const auto& killed : change.killed) note(killed->record);
  for (const auto& one : {change.added, change.prepared, change.decided}) {
    if (one != nullptr) note(one->record);
  }
  for (const StepMeta& meta : change.metas) {
    if (const auto live = live_->Find(meta.step)) note(live->record);
  }
}

// Deltas go on until they amount to their base: so what is written for catalogs is in proportion to
// what changed, and what an open reads to what is live.
bool CatalogWriter::HasRoomFor(uint64_t delta_bytes) const {
  uint64_t base = 0;
  uint64_t deltas = Cost(delta_bytes);
  for (const CatalogNote& note : notes_) {
    if (note.is_base()) {
      base = note.bytes;
      deltas = Cost(delta_bytes);
    } else {
      deltas += Cost(note.bytes);
    }
  }
  return deltas < base;
}

Result<CatalogPayload> CatalogWriter::Make(format::Catalog head, const Segments& segments,
                                           uint64_t block_bytes, bool short_of_space) const {
  if (short_of_space && !notes_.empty()) return MakeDelta(std::move(head), segments);
  if (HasRoomFor(0)) {
    STEPWELL_ASSIGN_OR_RETURN(CatalogPayload delta, MakeDelta(head, segments));
    if (HasRoomFor(delta.FrameBytes(block_bytes))) return delta;
  }
  return MakeBase(std::move(head), segments);
}

Result<CatalogPayload> CatalogWriter::MakeDelta(format::Catalog head,
                                                const Segments& segments) const {
  const CatalogNote& previous = notes_.back();
  head.previous = previous.place;
  head.live_count = live_->CountNeeding();
  std::map<uint64_t, std::shared_ptr<const LiveStep>> undecided;
  for (auto& live : live_->Undecided()) undecided[live->record.commit] = std::move(live);
  Entries entries(small_bytes_);
  for (const auto& [commit, change] : changed_) {
    std::shared_ptr<const LiveStep> live = live_->Find(change.step);
    if (live == nullptr || live->record.commit != commit) {
      const auto it = undecided.find(commit);
      live = it == undecided.end() ? nullptr : it->second;
    }
    if (live != nullptr) {
      entries.Add(*live);
    } else if (commit <= previous.last_commit) {
      head.gone.push_back(commit);
    }
  }
  for (const auto& [id, when] : segments_changed_) {
    const auto it = segments.find(id);
    if (it != segments.end()) {
      entries.Add(it->second);
    } else {
      head.segments_gone.push_back(id);
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(CatalogPayload payload, entries.Finish(std::move(head)));
  payload.first_segment = previous.first_segment;
  payload.clock = clock_;
  return payload;
}

Result<CatalogPayload> CatalogWriter::MakeBase(format::Catalog head,
                                               const Segments& segments) const {
  Entries entries(small_bytes_);
  const auto needing = live_->Needing();
  head.live_count = needing.size();
  for (const auto& live : needing) entries.Add(*live);
  for (const auto& [id, entry] : segments) entries.Add(entry);
  STEPWELL_ASSIGN_OR_RETURN(CatalogPayload payload, entries.Finish(std::move(head)));
  payload.clock = clock_;
  return payload;
}

std::vector<uint64_t> CatalogWriter::Durable(const CatalogNote& note, uint64_t oldest_in_flight) {
  notes_.push_back(note);
  std::erase_if(changed_, [&](const auto& one) { return one.second.clock <= note.clock; });
  std::erase_if(segments_changed_, [&](const auto& one) { return one.second <= note.clock; });
  // One that lies between others need not be of their lineages: it is kept with them.
  uint64_t first = std::min(note.first_segment, oldest_in_flight);
  if (const CatalogNote* second = second_newest()) first = std::min(first, second->first_segment);
  std::vector<uint64_t> dropped;
  while (notes_.size() > 2 && notes_.front().place.segment < first) {
    dropped.push_back(notes_.front().place.segment);
    notes_.pop_front();
  }
  return dropped;
}

std::map<uint64_t, ByteRange> CatalogWriter::Needed() const {
  std::map<uint64_t, ByteRange> needed;
  for (const CatalogNote& note : notes_) needed[note.place.segment] = {0, note.end_bytes};
  return needed;
}

Status LoadCatalog(const FramePlace& place, SegmentFiles& files, LogState* state) {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<Link> links, ReadRoots(files, place));
  const Catalog& newest = links.front().root;
  LogState loaded;
  loaded.epoch = loaded.epoch_max = newest.epoch;
  loaded.tip_commit = loaded.catalog_commit = newest.last_commit;
  loaded.tip_place = newest.last_place;
  loaded.catalog_place = place;
  loaded.losses = newest.losses;
  const bool counted = links.size() > 1 || !newest.pages.empty();
  const uint64_t live_count = newest.live_count;
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    STEPWELL_RETURN_IF_ERROR(Apply(std::move(*link), files, &loaded));
  }
  if (counted && loaded.live.size() + loaded.undecided.size() != live_count) {
    return Bad(files, place, "the catalogs do not amount to the steps that this one counts");
  }
  loaded.segments = std::move(state->segments);
  loaded.scanned = std::move(state->scanned);
  loaded.report = std::move(state->report);
  *state = std::move(loaded);
  return OkStatus();
}

}  // namespace stepwell::db
