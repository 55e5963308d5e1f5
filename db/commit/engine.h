// SPDX-License-Identifier: Apache-2.0
// The engine: takes encoded blocks to the log, commits steps in order, retires old ones.
// DESIGN.md has the protocol as numbered steps. One thread (the one that calls Step) owns all of
// it; other threads only Post.
//
// It is put together from what has data of its own: the posted tasks (EngineThread), what STEPWELL
// names (SlotMarks), where the log ends (LogEnd), the blocks in flight (BlockPipeline), the changes
// on their way (Committer), and what reclaim has under way (ReclaimScheduler). The engine holds a
// session together: its beginning, its turns, its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "db/commit/block_pipeline.h"
#include "db/commit/committer.h"
#include "db/commit/engine_options.h"
#include "db/commit/engine_thread.h"
#include "db/commit/log_end.h"
#include "db/commit/reclaim_scheduler.h"
#include "db/commit/save_job.h"
#include "db/commit/slot_marks.h"
#include "db/log/recovery.h"

namespace stepwell::db {

class Engine {
 public:
  explicit Engine(EngineOptions options);

  // ---- any thread --------------------------------------------------------------------------
  void Post(std::function<void()> task) { thread_.Post(std::move(task)); }
  void Panic(const Status& why) noexcept { thread_.Panic(why); }
  bool panicked() const { return thread_.panicked(); }
  // A block was encoded (or the encoding failed) into `block`.
  void PostEncoded(std::shared_ptr<SaveJob> job, bool held, const BlockTask* task,
                   io::BufferPool::Block* block, EncodedBlock encoded) {
    blocks_.PostEncoded(std::move(job), held, task, block, std::move(encoded));
  }
  // Where the segments that are open end, as of the last commit, and what recovery may read of
  // catalogs.
  void FillQuery(SpaceQuery* query) const { log_.FillQuery(query); }
  // Returns the size to which blocks are padded; fixed once Start() has run.
  size_t block_bytes() const { return log_.block_bytes(); }

  // ---- before the engine thread starts -----------------------------------------------------
  // Begins a new epoch after recovery: new segment, epoch frame, marks; all durable. Then seals or
  // removes what the last writer left open.
  Status Start(const LogState& state);

  // ---- engine thread -----------------------------------------------------------------------
  // Runs posted tasks and completions; with `wait`, sleeps until there is something.
  void Step(bool wait);
  void Begin(std::shared_ptr<SaveJob> job);
  void StagingDone(SaveJob* job, size_t expected, const Status& status);
  // A staged block that must be encoded into another one.
  void NeedOutput(std::shared_ptr<SaveJob> job, const BlockTask* task,
                  io::BufferPool::Block* staged) {
    blocks_.NeedOutput(std::move(job), task, staged);
  }
  void HeldPlanned(SaveJob* job, const Status& status);
  // After the last Step, before the disk goes: what is still posted wakes no thread.
  void LeaveDisk() { thread_.LeaveDisk(); }
  // And when it is gone.
  void CloseFiles() { log_.CloseFiles(); }
  // Start() went through.
  bool started() const { return started_; }
  // No new work for the index and reclaim workers from here on; what runs there ends soon.
  void BeginClose();
  // Begins a new segment if the current one is among these, and seals what has nothing in flight.
  // False: some are still to be sealed.
  Result<bool> SealSegments(const std::set<uint64_t>& segments);
  // Seals, syncs and marks the store clean; nothing may be in flight.
  Status Finish();
  ReclaimScheduler& reclaim() { return reclaim_; }

  // ---- engine thread, for reclaim ----------------------------------------------------------
  LogEnd& log() { return log_; }
  // Why nothing may be erased or moved now.
  Status MayErase();
  bool closing() const { return closing_; }
  bool CommitInFlight() const { return commits_.batch_in_flight() || marks_.sync_in_flight(); }
  bool DeathsAwaitSlot() const { return marks_.DeathsAwaitSync(); }
  // Segments that are open, or hold what is not committed yet: of saves, commits, moves.
  std::set<uint64_t> BusySegments() const;
  // Begins two segments where so many dead bytes from `guard` on can go then that it is worth it.
  // No commit is in flight.
  Status RollSegments(uint64_t guard);
  // Before the saves in flight: on a full disk they wait for the space that this gives back.
  void CommitNext(std::shared_ptr<SaveJob> job);

 private:
  void EndAll();
  void Pump();
  std::set<uint64_t> InUse() const;
  void ForgetFailedWrites();
  Status WriteFirstMarks(const LogState& state);

  const EngineOptions options_;
  EngineThread thread_;
  SlotMarks marks_;
  LogEnd log_;
  ReclaimScheduler reclaim_;
  Committer commits_;
  BlockPipeline blocks_;
  bool started_ = false;
  bool closing_ = false;
  bool frozen_reported_ = false;
};

}  // namespace stepwell::db
