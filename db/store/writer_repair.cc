// SPDX-License-Identifier: Apache-2.0
// Repair: damaged frames written anew from their copies, losses accepted (DESIGN.md, "Recovery").
#include <algorithm>

#include "db/log/lock.h"
#include "db/log/step_records.h"
#include "db/store/writer_store.h"

namespace stepwell::db {

// Rewrites the step's frames from their copies if they were damaged. Returns whether it did.
Result<bool> WriterStore::RewriteIfDamaged(const LiveStep& live) {
  SegmentFiles& files = *core_->files;
  bool damaged = !ReadOriginalFrame(files, live.place, format::FrameKind{}).ok();
  STEPWELL_ASSIGN_OR_RETURN(const auto records, StepRecords::Open(&files, live.place));
  for (const format::RecordsBlock& block : records->blocks()) {
    damaged = damaged || !ReadOriginalFrame(files, block.place, format::FrameKind::kRecords).ok();
  }
  if (!damaged) return false;
  STEPWELL_RETURN_IF_ERROR(Rewrite(live.record.step, {}));
  return true;
}

// The frames that recovery took from a copy get a place of their own again.
void WriterStore::RewriteDamaged(const std::vector<uint64_t>& commits) {
  if (commits.empty()) return;
  for (const auto& live : core_->live.All()) {
    if (std::find(commits.begin(), commits.end(), live->record.commit) == commits.end()) continue;
    const auto rewritten = RewriteIfDamaged(*live);
    if (!rewritten.ok()) {
      Log(options_.log, LogLevel::kError,
          StrCat(path_, ": step ", live->record.step,
                 " was not written anew: ", rewritten.status().message()));
    }
  }
}

Result<RepairReport> WriterStore::Repair(bool accept_losses) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  RepairReport report;
  const auto losses = core_->live.Losses();
  for (const format::LossRecord& loss : losses) report.losses.push_back(DescribeLoss(loss));
  if (accept_losses && !losses.empty()) {
    auto job = std::make_shared<SaveJob>();
    job->kind = SaveJob::Kind::kAccept;
    STEPWELL_RETURN_IF_ERROR(Do(job).WithContext(path_));
    report.losses_accepted = true;
  }
  for (const auto& live : core_->live.All()) {
    const auto rewritten = RewriteIfDamaged(*live);
    // Without a copy the step's damage stays what it is, and Verify names it.
    if (rewritten.ok() && *rewritten) report.steps_rewritten.push_back(live->record.step);
  }
  return report;
}

}  // namespace stepwell::db
