// SPDX-License-Identifier: Apache-2.0
// Moves what is live out of segments of which little is left (DESIGN.md, "Reclaim").
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "db/commit/reclaim.h"
#include "db/log/chunk_source.h"
#include "db/log/live_steps.h"
#include "format/records.h"
#include "io/mutex.h"
#include "io/status.h"

namespace stepwell::db {

class Engine;
class ReclaimScheduler;
struct EngineOptions;

// Evacuation (DESIGN.md, "Reclaim"): live chunks are copied out of segments of which little is
// left, then each step concerned is committed again with their new places; the old segments die by
// the ordinary rules. One step at a time, one block at a time: read and checked on the reclaim
// worker, written by the engine like any other block.
//
// Part of the scheduler, which outlives it. On the engine thread where nothing else is said.
class Evacuator {
 public:
  Evacuator(Engine* engine, ReclaimScheduler* scheduler, const EngineOptions* options);

  // Moves the steps that a pass names. The scheduler goes on when they are done.
  void Start(ReclaimResult* result);
  bool idle() const { return moves_.empty(); }
  // Where the step that is being moved has been written to.
  const std::set<uint64_t>& segments_in_use() const { return into_; }

  // A moved step is committed: `before` are its segments of before.
  void NoteMoved(uint64_t frame_segment, const std::vector<format::SegmentExtent>& before,
                 const std::vector<format::SegmentExtent>& after);
  // Something ended there, not by a move: its segments may be emptied again.
  void ForgetMovedInto(const std::vector<format::SegmentExtent>& extents);
  void SegmentGone(uint64_t segment);
  // Tries again to empty segments that could not be emptied.
  void TryAllAgain() { unmovable_.clear(); }

  // Any thread: moves end at the next block.
  void Stop();

 private:
  struct Move;
  struct Write;

  void Next();
  void ReadThenWrite(const std::shared_ptr<Move>& move, bool first);
  Status Load(Move* move);
  Status ReadBlock(Move* move);
  void Limit(uint64_t bytes);
  void WriteBlock(const std::shared_ptr<Move>& move);
  void Written(Write* write);
  void Commit(const std::shared_ptr<Move>& move);
  void End(const std::shared_ptr<Move>& move, const Status& status);

  Engine* const engine_;
  ReclaimScheduler* const scheduler_;
  const EngineOptions* const options_;
  const ChunkSources sources_;
  std::deque<std::shared_ptr<Move>> moves_;  // the first is under way
  std::set<uint64_t> from_;
  std::set<uint64_t> into_;        // where the first has written to
  std::set<uint64_t> unmovable_;   // moving out of them failed
  std::set<uint64_t> moved_into_;  // since when nothing died there but by moves
  io::Mutex stop_mutex_;
  io::CondVar stopped_;
  bool stop_ STEPWELL_GUARDED_BY(stop_mutex_) = false;
};

}  // namespace stepwell::db
