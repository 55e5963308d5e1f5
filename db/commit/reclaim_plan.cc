// SPDX-License-Identifier: Apache-2.0
#include "db/commit/reclaim_plan.h"

#include <algorithm>

namespace stepwell::db {
namespace {

// A spare's space is to be there already: one with many holes is as slow as a new file.
constexpr uint64_t kSpareShareAllocated = 8;  // at most 1/8 missing

ReclaimDecision DecideDead(const SegmentState& segment, const ReclaimLimits& limits) {
  ReclaimDecision decision;
  decision.gain_bytes = segment.allocated_bytes;
  const bool whole =
      segment.allocated_bytes + segment.size_bytes / kSpareShareAllocated >= segment.size_bytes;
  // With another link its bytes have another owner, too.
  const bool fits = segment.link_count == 1 && segment.size_bytes > 0 && whole &&
                    segment.size_bytes <= limits.spare_bytes_max;
  decision.action = fits ? ReclaimAction::kRecycle : ReclaimAction::kRemove;
  return decision;
}

}  // namespace

std::vector<ByteRange> HolesBetween(const std::vector<ByteRange>& needed, uint64_t size_bytes,
                                    uint64_t block_bytes) {
  std::vector<ByteRange> holes;
  uint64_t at = 0;
  const auto add = [&](uint64_t end) {
    const uint64_t begin = AlignUp(at, block_bytes);
    end = AlignDown(end, block_bytes);
    if (begin < end) holes.push_back({begin, end});
  };
  for (const ByteRange& range : needed) {
    if (range.begin > at) add(std::min(range.begin, size_bytes));
    at = std::max(at, range.end);
  }
  if (at < size_bytes) add(size_bytes);
  return holes;
}

ReclaimDecision DecideSegment(const SegmentState& segment, const ReclaimLimits& limits) {
  ReclaimDecision decision;
  if (!segment.has_live && !segment.pinned && !segment.has_catalog) {
    return DecideDead(segment, limits);
  }
  if (!segment.known) return decision;
  const uint64_t needed = TotalBytes(segment.needed);
  const uint64_t gain = segment.allocated_bytes > needed ? segment.allocated_bytes - needed : 0;
  if (gain >= std::max<uint64_t>(limits.punch_gain_min, 1) && !limits.settled) {
    decision.action = ReclaimAction::kLater;
    return decision;
  }
  // A file with another link is never changed; an unsealed one has unknown frames.
  if (segment.punchable && segment.link_count == 1 && segment.sealed &&
      gain >= std::max<uint64_t>(limits.punch_gain_min, 1)) {
    decision.holes = HolesBetween(segment.needed, segment.size_bytes, segment.block_bytes);
    if (!decision.holes.empty()) {
      decision.action = ReclaimAction::kPunch;
      decision.gain_bytes = gain;
      return decision;
    }
  }
  const uint64_t moved_gain = segment.allocated_bytes > segment.moved_bytes
                                  ? segment.allocated_bytes - segment.moved_bytes
                                  : 0;
  if (segment.has_live && !segment.has_catalog &&
      segment.moved_bytes < segment.allocated_bytes / 2 &&
      moved_gain >= std::max<uint64_t>(limits.evacuate_gain_min, 1)) {
    decision.action = limits.settled ? ReclaimAction::kEvacuate : ReclaimAction::kLater;
    decision.gain_bytes = moved_gain;
  }
  return decision;
}

}  // namespace stepwell::db
