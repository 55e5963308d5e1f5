// SPDX-License-Identifier: Apache-2.0
// Boxes of arrays that are far away (FarSource), as a save takes them: range by range, within a
// window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "db/save/plan.h"
#include "db/store.h"
#include "io/result.h"

namespace stepwell::db {

// What a save copies from far away.
struct FarCopies {
  std::shared_ptr<FarSource> source;
  uint64_t window_bytes = 0;
  std::vector<uint32_t> leaves;  // ascending
};

// Boxes that are brought to memory together, and the chunks that are read from them alone.
struct FarRange {
  struct Box {
    uint32_t leaf = 0;
    uint32_t shard = 0;  // of the leaf's ShardMap
  };
  std::vector<Box> boxes;
  std::vector<LeafChunk> chunks;
  uint64_t bytes = 0;
};

// The ranges of leaves (those of `which`, planned) in the order in which a save takes them: by
// leaf, then by origin. Of at most `bytes_max`, or one box alone; but boxes of which one chunk has
// elements are in one range. Leaves that have not changed are left out.
std::vector<FarRange> PlanFarRanges(std::span<const PlannedLeaf> leaves,
                                    std::span<const uint32_t> which, uint64_t bytes_max);

// The copies of ranges, in order, so many ahead as there is room for. Not thread-safe.
class FarWindow {
 public:
  FarWindow(const FarCopies& far, std::span<const FarRange> ranges, std::span<PlannedLeaf> leaves);
  ~FarWindow();  // lets go of what is still there
  FarWindow(const FarWindow&) = delete;
  FarWindow& operator=(const FarWindow&) = delete;

  // Waits until the next range is in memory, where its leaves then have it. An error names the leaf
  // that could not be copied.
  Status Bring();
  // Nothing of that range is read any more. An error is FarSource::Release's.
  Status Release();

 private:
  Status StartWhatFits();

  FarSource* const source_;
  const uint64_t window_bytes_;
  const std::span<const FarRange> ranges_;
  const std::span<PlannedLeaf> leaves_;
  size_t next_ = 0;           // the range that Bring brings
  size_t started_ = 0;        // the first range that was not started
  uint64_t there_bytes_ = 0;  // of copies that are there or under way
};

}  // namespace stepwell::db
