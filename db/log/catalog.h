// SPDX-License-Identifier: Apache-2.0
// The catalogs that a session writes at the beginning of its segments, and which frames of earlier
// ones recovery still needs (DESIGN.md, "Catalogs"). Engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "db/log/catalog.h"
#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "format/records.h"

namespace stepwell::db {

// A catalog to be written behind a segment's header.
struct CatalogPayload {
  format::Catalog root;            // the places of its pages are known when those are written
  std::vector<std::string> pages;  // payloads of kCatalogPage frames
  uint64_t first_segment = 0;      // of its lineage; 0: it is a base
  uint64_t clock = 0;

  // With headers, each frame padded to `block_bytes`.
  uint64_t FrameBytes(uint64_t block_bytes) const;
};

class CatalogWriter {
 public:
  using Segments = std::map<uint64_t, format::SegmentEntry>;

  CatalogWriter(LiveSteps* live, uint64_t segment_bytes_max);

  // Goes on with the lineage that recovery found, and what changed since.
  void Begin(const LogState& state, const Segments& segments);
  // A change that LiveSteps has taken: the next catalogs have it.
  void Note(const LiveSteps::Change& change);
  // A segment that began or went.
  void NoteSegment(uint64_t segment) { segments_changed_[segment] = ++clock_; }

  // The next catalog: `head` has epoch and last commit, `segments` are all that there are. Takes
  // time in proportion to what changed, but for a base; where space is short there is none.
  Result<CatalogPayload> Make(format::Catalog head, const Segments& segments, uint64_t block_bytes,
                              bool short_of_space) const;
  // The catalog is on the device. `oldest_in_flight`: the lowest first_segment of catalogs that are
  // not there yet. Returns segments with frames of catalogs that are not needed any more.
  std::vector<uint64_t> Durable(const CatalogNote& note, uint64_t oldest_in_flight);

  // The newest durable one, and the one before it; null: there is none.
  const CatalogNote* newest() const { return notes_.empty() ? nullptr : &notes_.back(); }
  const CatalogNote* second_newest() const {
    return notes_.size() < 2 ? nullptr : &notes_[notes_.size() - 2];
  }
  // The bytes of each segment that recovery reads for either of them.
  std::map<uint64_t, ByteRange> Needed() const;

 private:
  struct Changed {
    uint64_t step = 0;
    uint64_t clock = 0;
  };

  uint64_t Cost(uint64_t bytes) const { return std::max(bytes, small_bytes_); }
  bool HasRoomFor(uint64_t delta_bytes) const;
  Result<CatalogPayload> MakeDelta(format::Catalog head, const Segments& segments) const;
  Result<CatalogPayload> MakeBase(format::Catalog head, const Segments& segments) const;

  LiveSteps* const live_;
  // Bounds the catalog of any segment. Another base follows a base of this size.
  const uint64_t small_bytes_;
  std::deque<CatalogNote> notes_;  // durable; from the oldest base that is needed on
  // Since the newest durable catalog: commits, segments, and when that was.
  std::map<uint64_t, Changed> changed_;
  std::map<uint64_t, uint64_t> segments_changed_;
  uint64_t clock_ = 0;
};

}  // namespace stepwell::db
