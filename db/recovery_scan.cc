// SPDX-License-Identifier: Apache-2.0
// Recovery from the segments themselves.
#include <algorithm>
#include <optional>
#include <set>

#include "db/layout.h"
#include "db/recovery.h"
#include "io/buffer.h"

namespace stepwell::db {
namespace {

using format::FrameHeader;
using format::FrameKind;
using format::FramePlace;

// Frames start on this boundary at least (rule 8).
constexpr uint64_t kScanStepBytes = 4096;
constexpr size_t kScanBufferBytes = size_t{1} << 20;

struct Found {
  Frame frame;
  FramePlace place;
};

// Every valid chain frame of an unsealed segment: looks at each block for a frame with the
// segment's nonce. Bounded by the file's size.
Status ScanSegment(const SegmentInfo& info, SegmentFiles& files, std::vector<Found>* found) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
  io::AlignedBuffer buffer(kScanBufferBytes);
  if (!buffer) return ResourceExhaustedError("no memory for the recovery scan");
  uint64_t skip_until = 0;
  for (uint64_t base = 0; base < info.length_bytes; base += kScanBufferBytes) {
    STEPWELL_ASSIGN_OR_RETURN(const size_t size, file->ReadAt(base, buffer.bytes()));
    for (uint64_t i = 0; i + format::kFrameHeaderBytes <= size; i += kScanStepBytes) {
      if (base + i < skip_until) continue;
      const auto header = format::DecodeFrameHeader({buffer.data() + i, format::kFrameHeaderBytes});
      if (!header.ok() || header->nonce != info.nonce) continue;
      Found candidate;
      auto frame = ReadFrameAt(*file, info.segment, base + i, &candidate.place);
      if (!frame.ok()) continue;  // torn: its payload did not arrive
      skip_until = base + i + candidate.place.length_bytes;
      if (!format::IsChainFrame(frame->header.kind)) continue;
      candidate.frame = std::move(*frame);
      found->push_back(std::move(candidate));
    }
    if (size < kScanBufferBytes) break;
  }
  return OkStatus();
}

Result<format::Trailer> ReadTrailer(const SegmentInfo& info, SegmentFiles& files) {
  if (info.length_bytes < 2 * kScanStepBytes || info.length_bytes % kScanStepBytes != 0) {
    return NotFoundError("no trailer");
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
  // The trailer is the last block; blocks may be larger than 4 KiB, so look back a little.
  for (uint64_t back = kScanStepBytes; back <= 16 * kScanStepBytes && back < info.length_bytes;
       back *= 2) {
    FramePlace place;
    auto frame = ReadFrameAt(*file, info.segment, info.length_bytes - back, &place);
    if (frame.ok() && frame->header.kind == FrameKind::kTrailer &&
        frame->header.nonce == info.nonce) {
      return format::DecodeTrailer(AsBytes(frame->payload));
    }
  }
  return NotFoundError("no trailer");
}

// Chain frames newer than `after_commit` of a sealed segment, by its footer.
Status ReadSealed(const SegmentInfo& info, uint64_t after_commit, SegmentFiles& files,
                  std::vector<Found>* found) {
  STEPWELL_ASSIGN_OR_RETURN(const auto trailer, ReadTrailer(info, files));
  if (trailer.commit_max <= after_commit) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const Frame footer_frame,
                            ReadFrame(files, trailer.footer, FrameKind::kFooter));
  STEPWELL_ASSIGN_OR_RETURN(const auto footer, format::DecodeFooter(AsBytes(footer_frame.payload)));
  std::set<uint64_t> seen;
  for (const auto& entry : footer.frames) {
    if (!format::IsChainFrame(static_cast<FrameKind>(entry.kind))) continue;
    if (entry.commit <= after_commit) continue;
    // Each of its own frames once: what is taken into memory stays within the segment's length.
    if (entry.place.segment != info.segment || !seen.insert(entry.place.offset_bytes).second) {
      continue;
    }
    auto frame = ReadFrame(files, entry.place, static_cast<FrameKind>(entry.kind));
    if (!frame.ok()) continue;  // damage: the chain will show the gap
    found->push_back({std::move(*frame), entry.place});
  }
  return OkStatus();
}

// What another read will not bring back either.
bool IsLost(const Status& status) {
  return status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kNotFound;
}

// The newest catalog that can be read: each segment begins with one.
Status LoadNewestCatalog(const std::vector<SegmentInfo>& segments, SegmentFiles& files,
                         LogState* state) {
  for (auto info = segments.rbegin(); info != segments.rend(); ++info) {
    if (!info->header_ok) continue;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info->segment));
    FramePlace header_place;
    const auto header = ReadFrameAt(*file, info->segment, 0, &header_place);
    if (!header.ok()) continue;
    // Blocks may be larger than 4 KiB.
    for (uint64_t at = AlignUp(header_place.length_bytes, kScanStepBytes);
         at <= 16 * kScanStepBytes; at *= 2) {
      FramePlace place;
      const auto frame = ReadFrameAt(*file, info->segment, at, &place);
      if (!frame.ok() || frame->header.kind != FrameKind::kCatalog ||
          frame->header.nonce != info->nonce) {
        continue;
      }
      const Status status = LoadCatalog(place, files, state);
      if (status.ok() || !IsLost(status)) return status;
      break;  // of a catalog's lineage something is damaged: the one before it
    }
  }
  return DataLossError("no segment of the store has a readable catalog");
}

class ChainBuilder {
 public:
  ChainBuilder(std::vector<Found> found, uint64_t durable_commit, LogState* state)
      : state_(state), durable_(durable_commit) {
    for (Found& one : found) {
      state->epoch_max = std::max(state->epoch_max, one.frame.header.epoch);
      // A frame says what was flushed when it was written; a frame of any epoch says the truth.
      durable_ = std::max(durable_, one.frame.header.durable_through);
      by_commit_[one.frame.header.commit].push_back(std::move(one));
    }
  }

  uint64_t durable() const { return durable_; }

  // The next frame: the one that links to the tip (of the highest epoch, should there be several).
  // Up to the durable mark a gap is damage: reported, and the chain goes on behind it.
  const Found* Next() {
    const auto next = by_commit_.find(state_->tip_commit + 1);
    if (next != by_commit_.end()) {
      if (const Found* best = Best(next->second, /*linked=*/true)) return best;
    }
    if (state_->tip_commit >= durable_) return nullptr;
    auto later = by_commit_.upper_bound(state_->tip_commit);
    if (later == by_commit_.end() || later->first > durable_) {
      ReportGap(durable_);
      return nullptr;
    }
    if (later->first > state_->tip_commit + 1) ReportGap(later->first - 1);
    return Best(later->second, /*linked=*/false);
  }

  uint64_t FramesAfter(uint64_t commit) const {
    uint64_t count = 0;
    for (auto it = by_commit_.upper_bound(commit); it != by_commit_.end(); ++it) ++count;
    return count;
  }

 private:
  const Found* Best(const std::vector<Found>& candidates, bool linked) const {
    const Found* best = nullptr;
    for (const Found& one : candidates) {
      const FrameHeader& header = one.frame.header;
      if (header.epoch < state_->epoch) continue;  // void since a later epoch began
      if (linked &&
          (header.previous_commit != state_->tip_commit || header.previous != state_->tip_place)) {
        continue;
      }
      if (best == nullptr || header.epoch > best->frame.header.epoch) best = &one;
    }
    return best;
  }

  void ReportGap(uint64_t last) {
    state_->report.problems.push_back(
        StrCat("data loss: the frames of commits ", state_->tip_commit + 1, " to ", last,
               " are damaged or missing; what they saved or deleted is not known"));
  }

  LogState* const state_;
  uint64_t durable_;
  std::map<uint64_t, std::vector<Found>> by_commit_;
};

// A segment that a crash cut off before its first flush has no header, and holds nothing; without
// one that a live step needs, damage has been there.
void ReportHeaders(SegmentFiles& files, LogState* state) {
  std::set<uint64_t> needed;
  for (const auto* steps : {&state->live, &state->undecided}) {
    for (const auto& [number, step] : *steps) {
      for (const auto& extent : step.record.extents) needed.insert(extent.segment);
    }
  }
  for (const SegmentInfo& info : state->segments) {
    if (info.header_ok || !needed.contains(info.segment)) continue;
    if (info.foreign) {
      state->report.problems.push_back(
          StrCat(files.PathOf(info.segment), " belongs to another store"));
      continue;
    }
    state->report.problems.push_back(
        StrCat(files.PathOf(info.segment), ": the segment's header is damaged"));
  }
}

// Extends the state along the chain; in-doubt steps (newer than everything known flushed) are
// believed only when all of their payloads are there.
Status FollowChain(ChainBuilder* chain, SegmentFiles& files, const ScanOptions& options,
                   LogState* state) {
  while (const Found* next = chain->Next()) {
    const FrameHeader& header = next->frame.header;
    const bool in_doubt = header.commit > chain->durable();
    const bool has_payloads =
        header.kind == FrameKind::kCommit || header.kind == FrameKind::kPrepared;
    if (in_doubt && has_payloads) {
      auto records = ReadStepRecords(files, next->place, "");
      Status status = records.status();
      if (records.ok() && options.check_payloads) status = options.check_payloads(*records);
      if (!status.ok()) {
        state->report.commits_rejected = chain->FramesAfter(state->tip_commit);
        return OkStatus();
      }
    }
    if (Status status = ApplyChainFrame(header, next->place, next->frame.payload, state);
        !status.ok()) {
      if (in_doubt) break;
      state->report.problems.push_back(StrCat(files.PathOf(next->place.segment), ": offset ",
                                              next->place.offset_bytes, ": ", status.message()));
      state->tip_commit = header.commit;
      state->tip_place = next->place;
      continue;
    }
    if (in_doubt) ++state->report.commits_recovered;
  }
  state->report.commits_rejected = chain->FramesAfter(state->tip_commit);
  return OkStatus();
}

}  // namespace

Result<std::vector<SegmentInfo>> ListSegments(io::FileSystem* file_system,
                                              const std::string& store_path,
                                              const format::StoreSlot& slot, SegmentFiles& files) {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system->List(SegmentsPath(store_path)));
  std::vector<SegmentInfo> segments;
  for (const std::string& name : names) {
    const auto id = ParseSegmentName(name);
    if (!id) continue;
    SegmentInfo info;
    info.segment = *id;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(*id));
    STEPWELL_ASSIGN_OR_RETURN(const auto file_info, file->Info());
    info.foreign = file_info.is_directory;
    if (info.foreign) {
      segments.push_back(info);
      continue;
    }
    info.length_bytes = file_info.size_bytes;
    FramePlace place;
    const auto frame = ReadFrameAt(*file, *id, 0, &place);
    if (frame.ok() && frame->header.kind == FrameKind::kSegmentHeader) {
      const auto header = format::DecodeSegmentHeader(AsBytes(frame->payload));
      if (header.ok() && header->nonce == frame->header.nonce) {
        info.foreign = header->store_id != slot.store_id;
        info.header_ok = !info.foreign && header->segment == *id;
        info.nonce = header->nonce;
        info.sealed = info.header_ok && ReadTrailer(info, files).ok();
      }
    } else if (!frame.ok() && frame.status().code() != StatusCode::kDataLoss &&
               frame.status().code() != StatusCode::kNotFound) {
      return frame.status();
    }
    segments.push_back(info);
  }
  std::sort(segments.begin(), segments.end(),
            [](const auto& a, const auto& b) { return a.segment < b.segment; });
  return segments;
}

Result<SegmentEdges> ReadSegmentEdges(SegmentFiles& files, uint64_t segment) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(segment));
  STEPWELL_ASSIGN_OR_RETURN(const auto file_info, file->Info());
  SegmentEdges edges;
  edges.size_bytes = file_info.size_bytes;
  FramePlace place;
  const auto none = [&] { return NotFoundError(file->path() + ": no header of this segment"); };
  if (file_info.is_directory) return none();
  const auto frame = ReadFrameAt(*file, segment, 0, &place);
  if (!frame.ok()) {
    if (frame.status().code() == StatusCode::kDataLoss) return none();
    return frame.status();
  }
  if (frame->header.kind != FrameKind::kSegmentHeader) return none();
  const auto header = format::DecodeSegmentHeader(AsBytes(frame->payload));
  if (!header.ok() || header->nonce != frame->header.nonce) return none();
  edges.header = *header;
  if (header->segment != segment) return edges;
  edges.catalog_end_bytes = place.length_bytes;
  // Blocks may be larger than 4 KiB.
  for (uint64_t at = AlignUp(place.length_bytes, kScanStepBytes); at <= 16 * kScanStepBytes;
       at *= 2) {
    const auto catalog = ReadFrameAt(*file, segment, at, &place);
    if (!catalog.ok() || catalog->header.kind != FrameKind::kCatalog ||
        catalog->header.nonce != header->nonce) {
      continue;
    }
    edges.catalog_end_bytes = at + place.length_bytes;
    break;
  }
  SegmentInfo info;
  info.segment = segment;
  info.nonce = header->nonce;
  info.length_bytes = edges.size_bytes;
  if (const auto trailer = ReadTrailer(info, files); trailer.ok()) {
    edges.footer_offset_bytes = trailer->footer.offset_bytes;
  }
  return edges;
}

Result<LogState> RecoverByScan(io::FileSystem* file_system, const std::string& store_path,
                               const format::StoreSlot& slot, SegmentFiles& files,
                               const ScanOptions& options) {
  LogState state;
  STEPWELL_ASSIGN_OR_RETURN(state.segments, ListSegments(file_system, store_path, slot, files));
  if (options.sync_first) {
    for (const SegmentInfo& info : state.segments) {
      if (info.sealed || info.foreign) continue;
      STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(info.segment));
      STEPWELL_RETURN_IF_ERROR(file->Sync());
    }
    STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(SegmentsPath(store_path)));
  }
  if (Status status = LoadNewestCatalog(state.segments, files, &state); !status.ok()) {
    // The first mark is durable before anything is acknowledged: without one there was nothing yet.
    if (slot.durable_commit > 0 || status.code() != StatusCode::kDataLoss) {
      return status.WithContext(store_path);
    }
  }
  std::vector<Found> found;
  for (SegmentInfo& info : state.segments) {
    if (!info.header_ok) continue;
    if (info.sealed && ReadSealed(info, state.tip_commit, files, &found).ok()) continue;
    const size_t before = found.size();
    STEPWELL_RETURN_IF_ERROR(ScanSegment(info, files, &found));
    info.sealed = false;
    auto& entries = state.scanned[info.segment];
    for (size_t i = before; i < found.size(); ++i) {
      const FrameHeader& header = found[i].frame.header;
      entries.push_back({static_cast<uint16_t>(header.kind), header.commit, found[i].place});
    }
  }
  std::erase_if(found,
                [&](const Found& one) { return one.frame.header.commit <= state.catalog_commit; });
  ChainBuilder chain(std::move(found), slot.durable_commit, &state);
  STEPWELL_RETURN_IF_ERROR(FollowChain(&chain, files, options, &state));
  ReportHeaders(files, &state);
  state.epoch_max = std::max(state.epoch_max, slot.epoch);
  state.report.clean = false;
  return state;
}

}  // namespace stepwell::db
