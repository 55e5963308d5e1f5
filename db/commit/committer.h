// SPDX-License-Identifier: Apache-2.0
// Commits: changes in their order, batches of their frames, one fdatasync per touched segment,
// publication (DESIGN.md, "Save"). Engine thread only.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "db/commit/batch_builder.h"
#include "db/commit/commit_batch.h"
#include "db/commit/engine_options.h"
#include "db/commit/engine_thread.h"
#include "db/commit/log_end.h"
#include "db/commit/reclaim_scheduler.h"
#include "db/commit/save_job.h"
#include "db/commit/slot_marks.h"

namespace stepwell::db {

class Committer {
 public:
  Committer(const EngineOptions* options, EngineThread* thread, LogEnd* log, SlotMarks* marks,
            ReclaimScheduler* reclaim);

  // ---- the queue ---------------------------------------------------------------------------
  // A change comes behind those before it. A decision does not wait for the bytes of later steps:
  // it comes behind earlier decisions, and behind its own step should that still be on its way.
  void Queue(std::shared_ptr<SaveJob> job);
  // Before the saves in flight.
  void QueueFirst(std::shared_ptr<SaveJob> job) { jobs_.push_front(std::move(job)); }
  const std::deque<std::shared_ptr<SaveJob>>& jobs() const { return jobs_; }
  // Every change that is not in the log's chain fails, and the batch under way.
  void FailAll(const Status& status);
  // Ends the queued changes, after a panic.
  void EndQueued(const Status& status);

  // ---- batches -----------------------------------------------------------------------------
  // Ends the changes at the head that failed, and begins a batch with those that are ready, unless
  // one is under way.
  void Run();
  bool batch_in_flight() const { return batch_ != nullptr; }
  // Adds the segments that jobs and the batch have written to and not committed yet.
  void AddInUse(std::set<uint64_t>* segments) const;

  // ---- the beginning of a session ----------------------------------------------------------
  // The losses that recovery found and nobody accepted; `found_ns` for those that are new.
  void LoadLosses(const std::vector<format::LossRecord>& losses, int64_t found_ns);
  const std::vector<format::LossRecord>& losses() const { return losses_; }
  // Writes the epoch frame and those of the losses, synced: older epochs' frames beyond the tip are
  // void from here on. Returns the place of the last one.
  Result<format::FramePlace> WriteEpoch(const format::EpochRecord& epoch);

 private:
  friend struct BatchFrame;
  friend struct BatchSync;

  void FailReadyHeads();
  // Ends a job of which nothing is in the log's chain.
  void Drop(SaveJob* job, const Status& status);
  void StartBatch();
  void FrameWritten(BatchFrame* write);
  void SyncBatch();
  void SegmentSynced(BatchSync* sync);
  Status CheckNotRemoved();
  void Publish();
  void Apply(const BatchEntry& entry);
  void NoteSaved(const CommitBatch& batch, const BatchEntry& entry);
  void FailBatch(const Status& status);

  const EngineOptions* const options_;
  EngineThread* const thread_;
  LogEnd* const log_;
  SlotMarks* const marks_;
  ReclaimScheduler* const reclaim_;
  std::vector<format::LossRecord> losses_;  // not accepted: nothing is erased or retired meanwhile
  BatchBuilder builder_;
  std::deque<std::shared_ptr<SaveJob>> jobs_;  // in commit order
  std::unique_ptr<CommitBatch> batch_;
};

}  // namespace stepwell::db
