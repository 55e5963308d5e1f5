// SPDX-License-Identifier: Apache-2.0
// Repair: damaged frames written anew, losses accepted (DESIGN.md, "Recovery").
#include "db/lock.h"
#include "db/writer_store.h"

namespace stepwell::db {

// Whether the step's commit frame was damaged, and now is written anew from its copy.
Result<bool> WriterStore::RewriteIfDamaged(const LiveStep& live) {
  const auto original = ReadOriginalFrame(*core_->files, live.place, format::FrameKind{});
  if (original.ok()) return false;
  const Status status = Rewrite(live.record.step, {});
  if (!status.ok()) return status;
  return true;
}

Result<RepairReport> WriterStore::Repair(bool accept_losses) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  RepairReport report;
  const auto losses = core_->live.Losses();
  for (const format::LossRecord& loss : losses) report.losses.push_back(DescribeLoss(loss));
  if (accept_losses && !losses.empty()) {
    auto job = std::make_shared<SaveJob>();
    job->kind = SaveJob::Kind::kAccept;
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return FailedPreconditionError(path_ + ": the store is closed");
      job->state = NewState(0, /*is_save=*/false);
      NoteChange(job->state);
    }
    const PanicOnUnwind ends_if_thrown(engine_.get());
    engine_->Post([this, job] { engine_->Begin(job); });
    STEPWELL_RETURN_IF_ERROR(SaveHandle(job->state).Wait().WithContext(path_));
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
