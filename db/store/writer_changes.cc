// SPDX-License-Identifier: Apache-2.0
// Changes of committed and prepared steps: deletes, pins, decisions, rewrites.
#include <algorithm>
#include <set>
#include <utility>

#include "db/log/group_status.h"
#include "db/log/lock.h"
#include "db/read/step_reader.h"
#include "db/store/writer_store.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

// Each miss means that something else changed the step in between.
constexpr int kRewriteAttempts = 100;

}  // namespace

// One change of steps that are there or being saved, waited for.
Status WriterStore::ChangeSteps(SaveJob::Kind kind, std::span<const uint64_t> steps, bool pinned) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  if (steps.empty()) return OkStatus();
  auto job = std::make_shared<SaveJob>();
  job->kind = kind;
  job->pinned = pinned;
  job->steps.assign(steps.begin(), steps.end());
  std::sort(job->steps.begin(), job->steps.end());
  job->steps.erase(std::unique(job->steps.begin(), job->steps.end()), job->steps.end());
  {
    std::unique_lock lock(mutex_);
    if (closed_) return FailedPreconditionError(path_ + ": the store is closed");
    for (const uint64_t step : job->steps) {
      if (pending_.contains(step) || core_->live.Find(step) != nullptr) continue;
      if (IsPrepared(step)) {
        return FailedPreconditionError(StrCat(
            path_, ": step ", step, " is prepared by several processes and not decided yet"));
      }
      std::vector<uint64_t> known;
      for (const auto& live : core_->live.All()) known.push_back(live->record.step);
      return StepNotFound(path_, step, known);
    }
    job->state = NewState(job->steps.front(), /*is_save=*/false);
    NoteChange(job->state);
  }
  const PanicOnUnwind ends_if_thrown(engine_.get());
  engine_->Post([this, job] { engine_->Begin(job); });
  return SaveHandle(job->state).Wait().WithContext(path_);
}

Result<Decided> WriterStore::Decide(const Decision& decision) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kDecide;
  job->step = decision.step;
  job->decision = decision;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return FailedPreconditionError(path_ + ": the store is closed");
    job->state = NewState(decision.step, /*is_save=*/false);
    NoteChange(job->state);
  }
  const PanicOnUnwind ends_if_thrown(engine_.get());
  engine_->Post([this, job] { engine_->Begin(job); });
  if (part_.part != 0 && !decision.wait) {
    Decided told;
    told.dead = decision.dead;
    told.decision_number = decision.decision_number;
    return told;
  }
  const Status status = SaveHandle(job->state).Wait();
  STEPWELL_RETURN_IF_ERROR(status.WithContext(path_));
  return job->decided;
}

Status WriterStore::Delete(std::span<const uint64_t> steps) {
  return ChangeSteps(SaveJob::Kind::kDelete, steps, /*pinned=*/false);
}

Status WriterStore::SetPinned(std::span<const uint64_t> steps, bool pinned) {
  return ChangeSteps(SaveJob::Kind::kPin, steps, pinned);
}

Status WriterStore::DeleteItems(uint64_t step, std::span<const std::string> items) {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  if (items.empty()) return OkStatus();
  const std::set<std::string> unique(items.begin(), items.end());
  return Rewrite(step, std::vector<std::string>(unique.begin(), unique.end()));
}

// A change of what is there, waited for.
Status WriterStore::Do(const std::shared_ptr<SaveJob>& job) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return FailedPreconditionError(path_ + ": the store is closed");
    job->state = NewState(job->step, /*is_save=*/false);
    NoteChange(job->state);
  }
  const PanicOnUnwind ends_if_thrown(engine_.get());
  engine_->Post([this, job] { engine_->Begin(job); });
  return SaveHandle(job->state).Wait();
}

// Commits the step again, with its chunks where they are.
Status WriterStore::Rewrite(uint64_t step, std::span<const std::string> without_items) {
  Status status;
  for (int attempt = 0; attempt < kRewriteAttempts; ++attempt) {
    auto job = std::make_shared<SaveJob>();
    STEPWELL_RETURN_IF_ERROR(WithoutItems(step, without_items, job.get()));
    status = Do(job);
    if (status.code() != StatusCode::kAborted || !freeze_->Check().ok()) break;
    // Something else rewrote the step in between (reclaim moves steps): look again.
  }
  return status.WithContext(path_);
}

// The job that commits `step` again without the named items.
Status WriterStore::WithoutItems(uint64_t step, std::span<const std::string> items, SaveJob* job) {
  STEPWELL_ASSIGN_OR_RETURN(const std::shared_ptr<StepReader> reader, ReadShare(step));
  job->kind = SaveJob::Kind::kRewrite;
  job->step = step;
  job->rewritten = core_->live.Find(step);
  if (job->rewritten == nullptr || job->rewritten->record.commit != reader->step().commit) {
    return AbortedError(StrCat("step ", step, " was changed or deleted meanwhile"));
  }
  job->record = reader->step();
  std::vector<std::string> gone;
  for (const std::string& name : items) {
    const auto is_it = [&](const auto& item) { return item.name == name; };
    const size_t count = std::erase_if(job->record.items, is_it);
    const std::string prefix = format::EncodeItem(name);
    if (count == 0 && std::find(gone.begin(), gone.end(), prefix) == gone.end()) {
      return NotFoundError(StrCat(path_, ": step ", step, " has no item '", name, "'"));
    }
    gone.push_back(prefix);
  }
  if (job->record.items.empty()) {
    return InvalidArgumentError(
        StrCat(path_, ": step ", step, " has no other items: delete the step instead"));
  }
  STEPWELL_ASSIGN_OR_RETURN(auto leaves, reader->Leaves(""));
  std::erase_if(leaves, [&](const format::LeafRecord& leaf) {
    return std::any_of(gone.begin(), gone.end(), [&](const std::string& prefix) {
      return std::string_view(leaf.key).starts_with(prefix);
    });
  });
  job->records = std::make_shared<std::vector<format::LeafRecord>>(std::move(leaves));
  return OkStatus();
}

}  // namespace stepwell::db
