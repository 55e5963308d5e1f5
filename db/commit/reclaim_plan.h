// SPDX-License-Identifier: Apache-2.0
// What to do with a segment in which something died: pure data in, pure data out.
#pragma once

#include <cstdint>
#include <vector>

#include "db/log/footprint.h"

namespace stepwell::db {

// A segment below the guard that is not written to.
struct SegmentState {
  bool has_live = false;     // some live step has an extent here
  bool has_catalog = false;  // recovery may read its catalog
  bool pinned = false;       // a dead step has one that is read: it cannot be moved
  bool known = false;        // `needed` is all that is needed (else frames are damaged)
  bool sealed = false;
  bool punchable = true;  // as far as is known of the file system
  uint64_t link_count = 1;
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;
  uint64_t block_bytes = 4096;    // what the file system frees at least
  uint64_t moved_bytes = 0;       // what live steps have here, elsewhere
  std::vector<ByteRange> needed;  // normalized: what steps need, and the ends of the segment
};

struct ReclaimLimits {
  bool settled = false;         // no more deaths are to be expected here soon: punching is worth it
  uint64_t punch_gain_min = 0;  // bytes given back, or it is left as it is
  uint64_t evacuate_gain_min = 0;
  uint64_t spare_bytes_max = 0;  // room for one more spare; 0: none wanted
};

enum class ReclaimAction : uint8_t {
  kNothing,   // all that is there is needed
  kLater,     // dead, but read or not worth it yet
  kRemove,    // unlink
  kRecycle,   // keep it for one of the next segments
  kPunch,     // `holes`
  kEvacuate,  // copy what is live elsewhere
};

struct ReclaimDecision {
  ReclaimAction action = ReclaimAction::kNothing;
  std::vector<ByteRange> holes;  // kPunch
  uint64_t gain_bytes = 0;       // estimate
};

// A segment without live steps is recycled or removed whole. One with some is punched where that
// gives enough back, else evacuated when less than half of what is allocated is live.
ReclaimDecision DecideSegment(const SegmentState& segment, const ReclaimLimits& limits);

// What lies between the `needed` ranges of [0, size), in whole blocks.
std::vector<ByteRange> HolesBetween(const std::vector<ByteRange>& needed, uint64_t size_bytes,
                                    uint64_t block_bytes);

}  // namespace stepwell::db
