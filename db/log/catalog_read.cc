// SPDX-License-Identifier: Apache-2.0
// A catalog's lineage, read back to its base and applied from there on.
#include <algorithm>
#include <utility>

#include "db/log/alignment.h"
#include "db/log/catalog.h"
#include "db/log/recovery.h"

namespace stepwell::db {
namespace {

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

Status LoadCatalog(const FramePlace& place, SegmentFiles& files, LogState* state) {
  STEPWELL_ASSIGN_OR_RETURN(std::vector<Link> links, ReadRoots(files, place));
  const Catalog& newest = links.front().root;
  LogState loaded;
  loaded.epoch = loaded.epoch_max = newest.epoch;
  loaded.tip_commit = loaded.catalog_commit = newest.last_commit;
  loaded.tip_place = newest.last_place;
  NoteCrc(loaded.tip_commit, loaded.tip_place, &loaded);
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
