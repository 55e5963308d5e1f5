// SPDX-License-Identifier: Apache-2.0
// The frames of a batch: what a save, a delete, a pin, a taint, a decision or a rewrite says in the
// log, and what it makes of the live steps (DESIGN.md, "Save"). Engine thread only.
//
// Each change is decided as of the next frame: by the committed steps, and by what the batch
// changes before it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/commit/commit_batch.h"
#include "db/commit/engine_options.h"
#include "db/commit/log_end.h"
#include "db/commit/retention.h"
#include "db/commit/save_job.h"

namespace stepwell::db {

class BatchBuilder {
 public:
  // `losses` are those that are not accepted: nothing is given up while there are some.
  BatchBuilder(const EngineOptions* options, LogEnd* log,
               const std::vector<format::LossRecord>* losses);

  // Adds the job's change and its frames to the batch, for `committer` to write. On an error
  // nothing of the change is in the log's chain.
  Status Add(const std::shared_ptr<SaveJob>& job, Committer* committer, CommitBatch* batch);
  // Adds a chain frame that is no job's.
  Result<format::FramePlace> AddFrame(format::FrameKind kind, const std::string& payload,
                                      Committer* committer, CommitBatch* batch);

 private:
  // ---- what a job says ---------------------------------------------------------------------
  Status AddJob(SaveJob* job, BatchEntry* entry);
  Status AddSave(SaveJob* job, BatchEntry* entry);
  Status AddRewrite(const SaveJob& job, BatchEntry* entry);
  Status AddDelete(const SaveJob& job, BatchEntry* entry);
  // These two leave change.commit 0 if all is so already.
  Status AddDecision(SaveJob* job, BatchEntry* entry);
  Status AddMeta(const SaveJob& job, BatchEntry* entry);
  Status AddAccepted(BatchEntry* entry);

  // ---- frames ------------------------------------------------------------------------------
  Status AddRecords(const SaveJob& job, std::shared_ptr<LiveStep> live, BatchEntry* entry);
  Status AddCommit(std::map<uint64_t, format::SegmentExtent> extents, uint64_t step_bytes,
                   std::shared_ptr<LiveStep> live, std::span<const format::LeafRecord> records,
                   const std::shared_ptr<StepTexts>& texts, BatchEntry* entry);
  Status AddCommitFrame(const std::map<uint64_t, format::SegmentExtent>& extents,
                        uint64_t step_bytes, format::Commit* commit, BatchEntry* entry);
  Status AddSmall(format::FrameKind kind, const std::string& payload, BatchEntry* entry,
                  bool may_drop_ballast = true);
  // `taken` (may be null) receives where the frame lies with the copies behind it.
  Result<format::FramePlace> AppendFrame(format::FrameKind kind, const std::string& payload,
                                         uint64_t step_bytes, bool may_drop_ballast,
                                         LogEnd::Run* taken);
  Result<format::FramePlace> QueueFrame(format::FrameKind kind, const std::string& payload,
                                        const LogEnd::Run& run);

  // ---- as of the next frame ----------------------------------------------------------------
  std::shared_ptr<const LiveStep> FindAsOf(uint64_t step) const;
  template <typename Wanted>
  std::shared_ptr<const LiveStep> FindUndecided(const Wanted& wanted) const;
  Status NotThere(uint64_t step) const;
  static Status Pinned(uint64_t step, const char* what);
  int64_t AgeTime(int64_t wall_ns);
  void LoadRetention();
  void AddRetired(const LiveStep& added, std::span<const uint64_t> asked,
                  LiveSteps::Change* change);
  void NoteRetention(const SaveJob& job, const LiveSteps::Change& change);

  const EngineOptions* const options_;
  LogEnd* const log_;
  const std::vector<format::LossRecord>* const losses_;
  RetentionState retention_;                                       // as of the last frame placed
  int64_t age_time_ns_ = 0;                                        // of the newest save
  std::optional<std::pair<int64_t, int64_t>> last_commit_clocks_;  // wall, monotonic; its
  // The batch that is being built.
  CommitBatch* batch_ = nullptr;
  Committer* committer_ = nullptr;
};

}  // namespace stepwell::db
