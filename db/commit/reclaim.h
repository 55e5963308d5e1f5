// SPDX-License-Identifier: Apache-2.0
// One pass of reclaim: looks at segments in which something died, and gives back what nothing
// needs. Runs on the reclaim worker; the engine says which segments it may touch and takes the
// result. What must be copied elsewhere first it only names: evacuator.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "db/commit/reclaim_plan.h"
#include "db/environment.h"
#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "db/log/log_writer.h"
#include "db/log/pins.h"

namespace stepwell::db {

struct ReclaimRequest {
  // Below the guard, not open, not used by a save or a move in flight.
  std::set<uint64_t> segments;
  std::set<uint64_t> settled;  // of these: where punching and moving are worth it already
  // Of catalogs that recovery may read, by segment: these stay, and so do the segments.
  std::map<uint64_t, ByteRange> catalogs;
  bool may_move = true;
  uint64_t published = 0;  // the newest commit that other processes know
  // Pins below `old_tip` may read in segments before `first_id` what nothing here knows as dead.
  uint64_t old_tip = 0;
  uint64_t first_id = 0;
  uint64_t spare_bytes_max = 0;  // of all new spares
  uint64_t punch_gain_min = 0;
  uint64_t evacuate_gain_min = 0;
  std::vector<std::string> unwanted_spares;  // to be removed
};

struct ReclaimResult {
  Status status;
  std::vector<uint64_t> gone;  // removed or recycled
  std::vector<uint64_t> foreign;
  std::vector<LogWriter::Spare> spares;
  std::set<uint64_t> later;  // dead bytes are left: pinned, or not settled
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
  struct Options {
    io::FileSystem* file_system = nullptr;
    std::string store_path;
    format::Id128 store_id{};
    SegmentFiles* files = nullptr;
    LiveSteps* live = nullptr;
    FootprintCache* footprints = nullptr;
    std::shared_ptr<io::Freeze> freeze;
    const std::atomic<bool>* stop = nullptr;  // ends a pass early
  };
  explicit Reclaimer(Options options) : options_(std::move(options)) {}

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

  const Options options_;
  ReaderPins pins_;        // of other processes, when the pass began
  bool can_punch_ = true;  // until the file system says no
};

}  // namespace stepwell::db
