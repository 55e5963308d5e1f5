// SPDX-License-Identifier: Apache-2.0
// One pass of reclaim: looks at segments in which something died, and gives back what nothing
// needs. Runs on the reclaim worker; the engine says which segments it may touch and takes the
// result. What must be copied elsewhere first it only names: Evacuator moves it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "db/log/log_writer.h"
#include "db/log/pins.h"

namespace stepwell::db {

// ---- what to do with a segment in which something died: pure
// --------------------------------------

// A segment below the guard that is not written to.
struct SegmentState {
  bool has_live = false;     // some live step has an extent here
  bool referenced = false;   // several may need the same payload: it is not moved
  bool has_catalog = false;  // recovery may read its catalog
  bool pinned = false;       // a dead step has one that is read: it cannot be moved
  bool known = false;        // `needed` is all that is needed (else frames are damaged)
  bool sealed = false;
  bool punchable = true;  // as far as is known of the file system
  uint64_t link_count = 1;
  // It had another name once, of an export or a view: who opened it there may be reading it still.
  bool was_shown = false;
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
};

// A segment without live steps is recycled or removed whole. One with some is punched where that
// gives enough back, else evacuated when less than half of what is allocated is live.
ReclaimDecision DecideSegment(const SegmentState& segment, const ReclaimLimits& limits);

// Returns the ranges of [0, size) between the `needed` ones, in whole blocks.
std::vector<ByteRange> HolesBetween(const std::vector<ByteRange>& needed, uint64_t size_bytes,
                                    uint64_t block_bytes);

// ---- one pass ----------------------------------------------------------------------------------

struct EngineOptions;

struct ReclaimRequest {
  // Below the guard, not open, not used by a save or a move in flight.
  std::set<uint64_t> segments;
  std::set<uint64_t> settled;  // of these: where punching and moving are worth it already
  // The ranges of catalogs that recovery may read, by segment: these stay, and so do the segments.
  std::map<uint64_t, ByteRange> catalogs;
  uint64_t published = 0;  // the newest commit that other processes know
  // Pins below `old_tip` may read in segments before `first_id` what nothing here knows as dead.
  uint64_t old_tip = 0;
  uint64_t first_id = 0;
  uint64_t spare_bytes_max = 0;  // of all new spares
  size_t spares_max = 0;         // their number
  uint64_t punch_gain_min = 0;
  uint64_t evacuate_gain_min = 0;
  std::vector<std::string> unwanted_spares;  // to be removed
};

struct ReclaimResult {
  Status status;
  std::vector<uint64_t> gone;  // removed or recycled
  std::vector<uint64_t> foreign;
  std::vector<LogWriter::Spare> spares;
  std::set<uint64_t> looked_at;
  std::set<uint64_t> later;  // of those: dead bytes are left, which are pinned, or not settled
  // Segments to be emptied, and the steps (number, commit) that have something there.
  std::set<uint64_t> evacuate;
  std::map<uint64_t, uint64_t> steps_to_move;
  uint64_t segments_removed = 0;
  uint64_t bytes_punched = 0;
  uint64_t bytes_pinned = 0;  // payloads of dead steps that a reader may read
  uint64_t bytes_linked = 0;  // dead, but in segments with another hard link
};

class Reclaimer {
 public:
  // `stop` ends a pass early. Both outlive this.
  Reclaimer(const EngineOptions* options, const format::Id128& store_id,
            const std::atomic<bool>* stop);

  ReclaimResult Run(const ReclaimRequest& request);

 private:
  using SegmentUse = LiveSteps::SegmentUse;

  Status Pass(const ReclaimRequest& request, ReclaimResult* result);
  bool MayBeReadFromBefore(const ReclaimRequest& request, uint64_t id);
  Status Handle(const ReclaimRequest& request, const SegmentUse& use, uint64_t id,
                ReclaimResult* result);
  Result<SegmentState> Look(const ReclaimRequest& request, const SegmentUse& use, uint64_t id,
                            bool* gone, bool* foreign);
  void LookInside(const SegmentUse& use, uint64_t id, SegmentState* state);
  void Evacuate(const SegmentUse& use, uint64_t id, ReclaimResult* result);
  Result<std::unique_ptr<ReclaimLock>> LockAndCheck(const ReclaimRequest& request, uint64_t id,
                                                    ReclaimResult* result);
  Status RemoveWhole(const ReclaimRequest& request, uint64_t id, const SegmentState& state,
                     ReclaimAction action, ReclaimResult* result);
  // kUnimplemented: it cannot be punched after all.
  Status Punch(const ReclaimRequest& request, uint64_t id, const std::vector<ByteRange>& holes,
               ReclaimResult* result);

  const EngineOptions& options_;
  const format::Id128 store_id_;
  io::FileSystem* const file_system_;
  const std::atomic<bool>* const stop_;
  ReaderPins pins_;        // of other processes, when the pass began
  bool can_punch_ = true;  // until the file system says no
};

}  // namespace stepwell::db
