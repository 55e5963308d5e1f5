// SPDX-License-Identifier: Apache-2.0
// Computes which parts of a segment are needed: by each live step (its payloads and frames, from
// its records), and by the segment itself (its first two frames, its footer and trailer). Reclaim
// and the account of space use it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/log/live_steps.h"
#include "db/log/segment_files.h"
#include "db/store.h"
#include "format/records.h"
#include "io/disk.h"
#include "io/mutex.h"

namespace stepwell::db {

// [begin, end) of a segment.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Sorted, disjoint, none empty; neighbours joined.
std::vector<ByteRange> Normalize(std::vector<ByteRange> ranges);
uint64_t TotalBytes(const std::vector<ByteRange>& normalized);

// The bytes that one live step needs. Ranges are rounded outward to 4 KiB, below which no file
// system frees.
struct Footprint {
  struct Part {
    std::vector<ByteRange> ranges;  // normalized
    std::vector<ByteRange> copies;  // behind the commit frame, in its run of blocks
    uint64_t payload_bytes = 0;
    uint64_t moved_bytes = 0;  // the space of payloads, aligned, and frames, wherever they lie
  };
  std::map<uint64_t, Part> segments;
};

// From the step's frames in the log. kDataLoss when they cannot be read: what it holds is unknown.
Result<Footprint> ReadFootprint(SegmentFiles& files, const format::FramePlace& commit_place);

// Computed once a commit. Thread-safe.
class FootprintCache {
 public:
  explicit FootprintCache(SegmentFiles* files) : files_(files) {}
  Result<std::shared_ptr<const Footprint>> Get(uint64_t commit,
                                               const format::FramePlace& commit_place);
  void ForgetCommits(const std::vector<uint64_t>& commits);
  // The ends of a segment: header and catalog, and when it is sealed footer and trailer. kNotFound
  // when it has no header.
  struct Edges {
    std::vector<ByteRange> ranges;  // normalized
    bool sealed = false;
    uint64_t commit_min = 0;  // the lowest chain frame in a sealed one; 0: has none
    bool own = false;  // the header is of this segment, else of another (and nothing more is known)
    format::Id128 store_id{};
  };
  Result<Edges> EdgesOf(uint64_t segment);
  void Forget(uint64_t segment);

 private:
  SegmentFiles* const files_;
  io::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Footprint>> by_commit_ STEPWELL_GUARDED_BY(mutex_);
  std::map<uint64_t, Edges> sealed_ STEPWELL_GUARDED_BY(mutex_);
};

struct SpaceQuery {
  io::FileSystem* file_system = nullptr;
  std::string store_path;
  FootprintCache* footprints = nullptr;
  std::vector<std::shared_ptr<const LiveStep>> live;
  // Ends of what is placed in segments that are open for writing; what is allocated behind is
  // reserved. None: taken from what live steps need (for readers, which cannot know).
  std::optional<std::map<uint64_t, uint64_t>> open_ends;
  // The ranges of catalogs, by segment, that recovery may read.
  std::map<uint64_t, ByteRange> catalogs;
};

// The parts add up to total_bytes. By the extents of the live steps, the ends of the segments, and
// the sizes that the file system says. Of payloads whose owner is deleted, live_bytes has at least
// what the step behind it refers to. Files that come and go meanwhile may be missing.
// Fills `space`, `segments` and `segment_bytes`.
void AccountSpace(const SpaceQuery& query, StoreStats* stats);

}  // namespace stepwell::db
