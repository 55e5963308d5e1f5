// SPDX-License-Identifier: Apache-2.0
#include "db/commit/batch_builder.h"

#include <algorithm>
#include <utility>

#include "db/commit/frame_records.h"
#include "db/commit/retention_report.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

using format::FrameKind;
using format::FramePlace;
using format::LeafRecord;
using LiveStepPtr = std::shared_ptr<const LiveStep>;

// `live` after one more change of the batch; null when that killed it.
LiveStepPtr After(const LiveSteps::Change& change, uint64_t step, LiveStepPtr live) {
  for (const auto& killed : change.killed) {
    if (live != nullptr && killed->record.commit == live->record.commit) live = nullptr;
  }
  if (change.added != nullptr && change.added->record.step == step) live = change.added;
  for (const StepMeta& meta : change.metas) {
    if (live == nullptr || meta.step != step) continue;
    auto edited = std::make_shared<LiveStep>(*live);
    format::ApplyChange(meta.change, &edited->record);
    live = std::move(edited);
  }
  return live;
}

}  // namespace

BatchBuilder::BatchBuilder(const EngineOptions* options, LogEnd* log,
                           const std::vector<format::LossRecord>* losses)
    : options_(options), log_(log), losses_(losses), retention_(options->keep) {}

Status BatchBuilder::Pinned(uint64_t step, const char* what) {
  return FailedPreconditionError(StrCat("step ", step, " is pinned; unpin it to ", what, " it"));
}

Status BatchBuilder::Add(const std::shared_ptr<SaveJob>& job, Committer* committer,
                         CommitBatch* batch) {
  batch_ = batch;
  committer_ = committer;
  BatchEntry entry;
  entry.job = job;
  STEPWELL_RETURN_IF_ERROR(AddJob(job.get(), &entry));
  if (entry.change.commit == 0) {  // it is so already
    batch_->repeated.push_back(job);
    return OkStatus();
  }
  STEPWELL_DCHECK(entry.change.commit == log_->tip_commit(), "a change is not the tip's");
  NoteRetention(*job, entry.change);
  batch_->entries.push_back(std::move(entry));
  return OkStatus();
}

Status BatchBuilder::AddJob(SaveJob* job, BatchEntry* entry) {
  switch (job->kind) {
    case SaveJob::Kind::kSave:
      return AddSave(job, entry);
    case SaveJob::Kind::kDelete:
      return AddDelete(*job, entry);
    case SaveJob::Kind::kDecide:
      return AddDecision(job, entry);
    case SaveJob::Kind::kMeta:
      return AddMeta(*job, entry);
    case SaveJob::Kind::kRewrite:
      return AddRewrite(*job, entry);
    case SaveJob::Kind::kAccept:
      break;
  }
  return AddAccepted(entry);
}

Result<FramePlace> BatchBuilder::AddFrame(FrameKind kind, const std::string& payload,
                                          Committer* committer, CommitBatch* batch) {
  batch_ = batch;
  committer_ = committer;
  return AppendFrame(kind, payload, 0, /*may_drop_ballast=*/true, /*taken=*/nullptr);
}

// Finds the step of this number as of the next frame: committed steps, and this batch's changes.
LiveStepPtr BatchBuilder::FindAsOf(uint64_t step) const {
  LiveStepPtr live = options_->live->Find(step);
  for (const BatchEntry& entry : batch_->entries) live = After(entry.change, step, std::move(live));
  return live;
}

// The clock of retention stands still between the last commit of one session and the first of the
// next, and follows the monotonic clock where the machine's own was set in between two commits: so
// neither a pause nor a clock that is set, or was wrong when the machine started, makes steps old.
int64_t BatchBuilder::AgeTime(int64_t wall_ns) {
  constexpr int64_t kSetNanos = 1'000'000'000;  // beyond what slewing and two calls differ by
  const int64_t monotonic_ns = options_->environment.clock->MonotonicNanos();
  if (last_commit_clocks_) {
    const auto [last_wall_ns, last_monotonic_ns] = *last_commit_clocks_;
    const int64_t passed_ns = monotonic_ns - last_monotonic_ns;
    const int64_t shown_ns = wall_ns - last_wall_ns;
    age_time_ns_ += std::abs(shown_ns - passed_ns) > kSetNanos ? passed_ns : shown_ns;
  }
  last_commit_clocks_ = {wall_ns, monotonic_ns};
  return age_time_ns_;
}

// All committed steps, as of the next frame.
void BatchBuilder::LoadRetention() {
  retention_.Reset();
  for (const auto& live : options_->live->All()) retention_.Add(CandidateOf(*live));
  for (const BatchEntry& entry : batch_->entries) {
    for (const auto& killed : entry.change.killed) retention_.Remove(killed->record.step);
    if (entry.change.added != nullptr) retention_.Add(CandidateOf(*entry.change.added));
    for (const StepMeta& meta : entry.change.metas) {
      if (const LiveStepPtr live = FindAsOf(meta.step)) retention_.Add(CandidateOf(*live));
    }
  }
  retention_.SetKnown();
}

// Adds the steps that retention drops at the commit of `added`, and those of `asked`, which the
// caller gives up, that may go.
void BatchBuilder::AddRetired(const LiveStep& added, std::span<const uint64_t> asked,
                              LiveSteps::Change* change) {
  // A lost frame may have pinned or replaced any step, so nothing is given up.
  if (!losses_->empty()) return;
  std::set<uint64_t> steps(asked.begin(), asked.end());
  steps.erase(added.record.step);
  if (retention_.has_rules()) {
    if (IsTainted(added)) retention_.Reset();  // then steps count that were kept for good
    if (!retention_.known()) LoadRetention();
    const auto dropped = retention_.Drop(CandidateOf(added));
    steps.insert(dropped.begin(), dropped.end());
  }
  for (const uint64_t step : steps) {
    auto live = FindAsOf(step);
    if (live != nullptr && !live->record.pinned) change->killed.push_back(std::move(live));
  }
}

// A frame was placed. Others than those of saves may let steps come back to what a rule counts.
void BatchBuilder::NoteRetention(const SaveJob& job, const LiveSteps::Change& change) {
  if (!retention_.known()) return;
  if (job.kind == SaveJob::Kind::kDelete || job.kind == SaveJob::Kind::kMeta) {
    retention_.Reset();
    return;
  }
  for (const auto& killed : change.killed) retention_.Remove(killed->record.step);
  if (change.added != nullptr) retention_.Add(CandidateOf(*change.added));
}

// Finds a step that is prepared and not decided as of the next frame, and that is `wanted`; null:
// there is none.
template <typename Wanted>
LiveStepPtr BatchBuilder::FindUndecided(const Wanted& wanted) const {
  LiveStepPtr found;
  for (auto& live : options_->live->Undecided()) {
    if (wanted(*live)) found = std::move(live);
  }
  for (const BatchEntry& entry : batch_->entries) {
    const LiveStepPtr& prepared = entry.change.prepared;
    if (prepared != nullptr && wanted(*prepared)) found = prepared;
    if (found != nullptr && entry.change.decided != nullptr &&
        entry.change.decided->record.commit == found->record.commit) {
      found = nullptr;
    }
  }
  return found;
}

Status BatchBuilder::NotThere(uint64_t step) const {
  if (FindUndecided([step](const LiveStep& live) { return live.record.step == step; }) != nullptr) {
    return FailedPreconditionError(
        StrCat("step ", step, " is prepared by several processes and not decided yet"));
  }
  return NotFoundError(StrCat("step ", step, " is not in the store"));
}

// Part 0 finds the steps that end with this one. The decision names them to the other parts.
Status BatchBuilder::AddDecision(SaveJob* job, BatchEntry* entry) {
  const Decision& decision = job->decision;
  const auto is_it = [&](const LiveStep& live) {
    return live.record.step == decision.step && live.record.group->save_id == decision.save_id;
  };
  const LiveStepPtr prepared = FindUndecided(is_it);
  LiveStepPtr old = FindAsOf(decision.step);
  const bool is_primary = options_->slot.part == 0;
  if (prepared == nullptr) {
    const bool committed =
        old != nullptr && old->record.group && old->record.group->save_id == decision.save_id;
    if (decision.commit && committed) {
      job->decided.decision_number = old->record.group->decision_number;
      return OkStatus();
    }
    if (committed) {
      return FailedPreconditionError(
          StrCat("step ", decision.step, " is committed already and cannot be aborted"));
    }
    if (!decision.commit) return OkStatus();
    return NotFoundError(StrCat("step ", decision.step, " is not prepared here"));
  }
  LiveSteps::Change* change = &entry->change;
  change->decided = prepared;
  format::Decided record;
  record.group = *prepared->record.group;
  record.group.state = format::GroupState::kDecided;
  record.group.decision_number = is_primary ? log_->tip_commit() + 1 : decision.decision_number;
  record.commit = prepared->record.commit;
  record.committed = decision.commit;
  if (decision.commit) {
    auto live = std::make_shared<LiveStep>(*prepared);
    live->record.group = record.group;
    if (old != nullptr) {
      if (is_primary && old->record.pinned) return Pinned(decision.step, "replace");
      change->killed.push_back(std::move(old));
    }
    if (is_primary) {
      AddRetired(*live, decision.dead, change);
    } else {
      for (const uint64_t step : decision.dead) {
        if (step == decision.step) continue;
        if (auto dead = FindAsOf(step)) change->killed.push_back(std::move(dead));
      }
    }
    change->added = std::move(live);
    for (const auto& killed : change->killed) {
      record.kills.push_back(killed->record.commit);
      record.steps.push_back(killed->record.step);
    }
  }
  STEPWELL_RETURN_IF_ERROR(AddSmall(FrameKind::kDecided, format::EncodeDecided(record), entry));
  job->decided.dead = std::move(record.steps);
  std::sort(job->decided.dead.begin(), job->decided.dead.end());
  job->decided.decision_number = record.group.decision_number;
  return OkStatus();
}

Status BatchBuilder::AddDelete(const SaveJob& job, BatchEntry* entry) {
  format::Delete deletion;
  for (const uint64_t step : job.steps) {
    LiveStepPtr live = FindAsOf(step);
    if (live == nullptr) return NotThere(step);
    if (live->record.pinned) return Pinned(step, "delete");
    deletion.kills.push_back(live->record.commit);
    deletion.steps.push_back(step);
    entry->change.killed.push_back(std::move(live));
  }
  return AddSmall(FrameKind::kDelete, format::EncodeDelete(deletion), entry);
}

Status BatchBuilder::AddMeta(const SaveJob& job, BatchEntry* entry) {
  format::Meta meta;
  for (size_t i = 0; i < job.steps.size(); ++i) {
    const uint64_t step = job.steps[i];
    const LiveStepPtr live = FindAsOf(step);
    if (!job.commits.empty()) {
      if (live == nullptr || live->first_commit != job.commits[i]) continue;
    } else if (live == nullptr) {
      return NotThere(step);
    }
    format::MetaChange change = job.meta;
    change.commit = live->record.commit;
    // A lost frame may have changed it since: it is said again.
    format::StepRecord record = live->record;
    if (!format::ApplyChange(change, &record) && losses_->empty()) continue;
    entry->change.metas.push_back({step, change});
    meta.changes.push_back(std::move(change));
  }
  if (meta.changes.empty()) return OkStatus();
  return AddSmall(FrameKind::kMeta, format::EncodeMeta(meta), entry,
                  /*may_drop_ballast=*/!job.meta.verified);
}

// One frame for all losses: it covers the range from the first to the last.
Status BatchBuilder::AddAccepted(BatchEntry* entry) {
  format::LossRecord accepted;
  accepted.accepted = true;
  accepted.found_ns = options_->environment.clock->WallNanos();
  for (const format::LossRecord& loss : *losses_) {
    const bool first = accepted.first_commit == 0 || loss.first_commit < accepted.first_commit;
    if (first) accepted.first_commit = loss.first_commit;
    accepted.last_commit = std::max(accepted.last_commit, loss.last_commit);
  }
  entry->change.losses.emplace();
  return AddSmall(FrameKind::kLoss, format::EncodeLoss(accepted), entry);
}

// A chain frame without payloads. It may use the ballast, since deleting must work on a full disk;
// not for what verification found, which can be found again.
Status BatchBuilder::AddSmall(FrameKind kind, const std::string& payload, BatchEntry* entry,
                              bool may_drop_ballast) {
  STEPWELL_ASSIGN_OR_RETURN(entry->place, AppendFrame(kind, payload, 0, may_drop_ballast, nullptr));
  entry->change.commit = log_->tip_commit();
  return OkStatus();
}

}  // namespace stepwell::db
