// SPDX-License-Identifier: Apache-2.0
// Repair: damaged frames written anew, lost ones restored from the index, losses accepted
// (DESIGN.md, "Recovery").
#include <algorithm>

#include "db/index/witness.h"
#include "db/log/lock.h"
#include "db/log/step_records.h"
#include "db/store/writer_store.h"
#include "io/guard.h"

namespace stepwell::db {

void WriterStore::LogRecovery() {
  for (const std::string& problem : recovery_.problems) {
    Log(options_.log, LogLevel::kError, StrCat(path_, ": ", problem));
  }
  if (!core_->live.Losses().empty()) {
    Log(options_.log, LogLevel::kWarning,
        StrCat(
            path_,
            ": until `stepwell repair --accept` (Store::Repair), retention deletes nothing and no "
            "space is given back: the store grows with each save"));
  }
  for (const std::string& repaired : recovery_.repaired) {
    Log(options_.log, LogLevel::kWarning, StrCat(path_, ": ", repaired));
  }
  if (!recovery_.clean) {
    Log(options_.log, LogLevel::kInfo,
        StrCat(path_, ": the last writer did not close the store; ", recovery_.commits_recovered,
               " commits recovered, ", recovery_.commits_rejected, " incomplete ones discarded"));
  }
}

// Whether the step's frames were damaged, and now are written anew, from their copy or the index.
Result<bool> WriterStore::RewriteIfDamaged(const LiveStep& live) {
  const auto original = ReadOriginalFrame(*core_->files, live.place, format::FrameKind{});
  if (original.ok() && ReadStepRecords(*core_->files, live.place, "").ok()) return false;
  const Status status = Rewrite(live.record.step, {});
  if (!status.ok()) return status;
  return true;
}

// The frames that recovery took from a copy get a place of their own again.
void WriterStore::RewriteDamaged(const std::vector<uint64_t>& commits) {
  if (commits.empty()) return;
  index_tasks_->Wait();  // a short copy does not have the records, which the index may have
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

Status WriterStore::AcceptLosses() {
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kAccept;
  return Do(job).WithContext(path_);
}

// A step that a lost frame had committed; its chunks are where they were.
Status WriterStore::Restore(const IndexedStep& lost, Index& index) {
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kRestore;
  job->step = lost.step;
  STEPWELL_ASSIGN_OR_RETURN(auto record, index.ReadStep(lost.step, lost.commit, lost.frame_crc));
  STEPWELL_ASSIGN_OR_RETURN(
      auto leaves, index.Read(lost.step, lost.commit, lost.frame_crc, format::KeysBelow("")));
  if (!record || !leaves) return InternalError("a step left the index");
  job->record = std::move(*record);
  job->record.pinned = lost.pinned;
  job->records = std::make_shared<std::vector<format::LeafRecord>>(std::move(*leaves));
  return Do(job);
}

// The index, whose following the log begins here, unless it has what is lost and could not say so
// (its disk, or a full one): then it stays as it is, for the next open.
void WriterStore::AskForLost(const LogState& state) {
  bool is_witness = false;
  const Status restored =
      io::Guarded("ask the index", [&] { return RestoreLost(state, &is_witness); });
  if (!restored.ok()) {
    Log(options_.log, LogLevel::kInfo,
        StrCat(path_, ": the index does not make the loss good: ", restored.message()));
  }
  if (restored.ok() || !is_witness) {
    core_->index->StartOpen();
  } else {
    core_->index->GiveUp(restored);
  }
}

// Does again what lost frames did, where the index knows it, and ends the losses. In this order:
// cut off in between it is as if more had been lost. `is_witness`: whether it may know it.
Status WriterStore::RestoreLost(const LogState& state, bool* is_witness) {
  if (environment_.without_index) return FailedPreconditionError("it is not used");
  if (part_.part != 0) return FailedPreconditionError("the store is a part of a group");
  *is_witness = true;
  STEPWELL_ASSIGN_OR_RETURN(const std::unique_ptr<Index> index, core_->index->OpenAsItIs());
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, index->Steps());
  const auto asked =
      AskIndex(state, steps, {index->applied_commit(), index->applied_crc(), index->complete()});
  *is_witness = asked.ok();
  STEPWELL_ASSIGN_OR_RETURN(const Witnessed witnessed, asked);
  for (const IndexedStep& lost : witnessed.lost) {
    STEPWELL_RETURN_IF_ERROR(Restore(lost, *index));
  }
  STEPWELL_RETURN_IF_ERROR(SetPinned(witnessed.ended, false));
  STEPWELL_RETURN_IF_ERROR(Delete(witnessed.ended));
  for (const auto& [step, pinned] : witnessed.pins) {
    STEPWELL_RETURN_IF_ERROR(SetPinned({&step, 1}, pinned));
  }
  STEPWELL_RETURN_IF_ERROR(AcceptLosses());
  std::string what;
  for (const format::LossRecord& loss : state.losses) {
    std::erase(recovery_.problems, DescribeLoss(loss));
    if (!what.empty()) what += ", ";
    what += StrCat("the frames of commits ", loss.first_commit, " to ", loss.last_commit);
  }
  what += StrCat(" are damaged or missing; the index had what they did (steps written anew: ",
                 witnessed.lost.size(), ", ended: ", witnessed.ended.size(),
                 ", pinned or unpinned: ", witnessed.pins.size(), ")");
  recovery_.repaired.push_back(std::move(what));
  return OkStatus();
}

Result<RepairReport> WriterStore::Repair(bool accept_losses) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  RepairReport report;
  const auto losses = core_->live.Losses();
  for (const format::LossRecord& loss : losses) report.losses.push_back(DescribeLoss(loss));
  if (accept_losses && !losses.empty()) {
    STEPWELL_RETURN_IF_ERROR(AcceptLosses());
    report.losses_accepted = true;
  }
  index_tasks_->Wait();  // it may be opening
  for (const auto& live : core_->live.All()) {
    const auto rewritten = RewriteIfDamaged(*live);
    // Without a copy the step's damage stays what it is, and Verify names it.
    if (rewritten.ok() && *rewritten) report.steps_rewritten.push_back(live->record.step);
  }
  return report;
}

}  // namespace stepwell::db
