// SPDX-License-Identifier: Apache-2.0
// Changes of committed and prepared steps: deletes, pins, taints, what verification found,
// decisions, rewrites. How changes and stores end: in order, or without memory, after a panic of
// the engine.
#include <algorithm>
#include <utility>

#include "db/group.h"
#include "db/log/lock.h"
#include "db/read/step_reader.h"
#include "db/store/trace_file.h"
#include "db/store/writer_store.h"
#include "format/key.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// Each miss means that something else changed the step in between.
constexpr int kRewriteAttempts = 100;
// With less on the disk, what verification found is not written: deletes and opening need the room.
constexpr uint64_t kFreeBytesToRecord = uint64_t{1} << 20;

// The job that commits the step that `reader` reads again, without the named items. `live` is what
// is there of it by now.
Status WithoutItems(const std::string& path, StepReader* reader,
                    std::shared_ptr<const LiveStep> live, std::span<const std::string> items,
                    SaveJob* job) {
  job->record = reader->step();
  const uint64_t step = job->record.step;
  job->kind = SaveJob::Kind::kRewrite;
  job->step = step;
  job->rewritten = std::move(live);
  if (job->rewritten == nullptr || job->rewritten->record.commit != job->record.commit) {
    return AbortedError(StrCat("step ", step, " was changed or deleted meanwhile"));
  }
  std::vector<std::string> gone;
  for (const std::string& name : items) {
    const auto is_it = [&](const auto& item) { return item.name == name; };
    const size_t count = std::erase_if(job->record.items, is_it);
    const std::string prefix = format::EncodeItem(name);
    if (count == 0 && std::find(gone.begin(), gone.end(), prefix) == gone.end()) {
      return NotFoundError(StrCat(path, ": step ", step, " has no item '", name, "'"));
    }
    gone.push_back(prefix);
  }
  if (job->record.items.empty()) {
    return InvalidArgumentError(
        StrCat(path, ": step ", step, " has no other items: delete the step instead"));
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

Status CheckTaint(std::string_view why) {
  if (why.size() <= kTaintBytesMax) return OkStatus();
  return InvalidArgumentError(StrCat("a taint of ", why.size(), " bytes; the limit is ",
                                     kTaintBytesMax, ": say in few words why"));
}

}  // namespace

// One change of steps that are there or being saved, waited for.
Status WriterStore::ChangeSteps(SaveJob::Kind kind, std::span<const uint64_t> steps,
                                format::MetaChange meta) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  if (steps.empty()) return OkStatus();
  auto job = std::make_shared<SaveJob>();
  job->kind = kind;
  job->meta = std::move(meta);
  job->steps.assign(steps.begin(), steps.end());
  std::sort(job->steps.begin(), job->steps.end());
  job->steps.erase(std::unique(job->steps.begin(), job->steps.end()), job->steps.end());
  job->step = job->steps.front();
  const auto all_there = [this, &job](const ChangesInFlight::Saves& pending) -> Status {
    for (const uint64_t step : job->steps) {
      if (pending.contains(step) || core_->live.Find(step) != nullptr) continue;
      if (!IsPrepared(core_->live, step)) return NoStep(step);
      return FailedPreconditionError(
          StrCat(path_, ": step ", step, " is prepared by several processes and not decided yet"));
    }
    return OkStatus();
  };
  STEPWELL_RETURN_IF_ERROR(Begin(job, all_there));
  return SaveHandle(job->state).Wait().WithContext(path_);
}

Result<Decided> WriterStore::Decide(const Decision& decision) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kDecide;
  job->step = decision.step;
  job->decision = decision;
  STEPWELL_RETURN_IF_ERROR(Begin(job));
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
  return ChangeSteps(SaveJob::Kind::kDelete, steps, {});
}

Status WriterStore::SetPinned(std::span<const uint64_t> steps, bool pinned) {
  return ChangeSteps(SaveJob::Kind::kMeta, steps, {.pinned = pinned});
}

Status WriterStore::SetTaint(std::span<const uint64_t> steps, std::string_view why) {
  STEPWELL_RETURN_IF_ERROR(CheckTaint(why));
  return ChangeSteps(SaveJob::Kind::kMeta, steps, {.taint = std::string(why)});
}

// The report of a verification stands whether this can be recorded or not. `steps` ascend.
void WriterStore::SetVerified(const std::vector<const LiveStep*>& steps, bool verified) {
  if (steps.empty() || !CheckUsable().ok()) return;
  const auto free = environment_.file_system->FreeBytes(path_);
  if (free.ok() && *free < kFreeBytesToRecord) return;
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kMeta;
  job->meta.verified = verified;
  for (const LiveStep* step : steps) {
    job->steps.push_back(step->record.step);
    job->commits.push_back(step->first_commit);
  }
  job->step = job->steps.front();
  Status status = Begin(job);
  // It comes after the saves under way. Reading does not wait for those: a callback of one may have
  // asked for it.
  if (status.ok() && changes_.SavesInFlight() > 0) return;
  if (status.ok()) status = SaveHandle(job->state).Wait();
  if (status.ok()) return;
  Log(options_.log, LogLevel::kWarning,
      StrCat(path_, ": what verification found is not recorded: ", status.message()));
}

Status WriterStore::DeleteItems(uint64_t step, std::span<const std::string> items) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  if (items.empty()) return OkStatus();
  return Rewrite(step, items);
}

// Hands a change of what is there to the engine, if `check` (ChangesInFlight::AdmitChange) has no
// objection.
Status WriterStore::Begin(const std::shared_ptr<SaveJob>& job,
                          const std::function<Status(const ChangesInFlight::Saves&)>& check) {
  STEPWELL_ASSIGN_OR_RETURN(job->state, changes_.AdmitChange(job->step, check));
  const PanicOnUnwind ends_if_thrown(engine_.get());
  engine_->Post([this, job] { engine_->Begin(job); });
  return OkStatus();
}

Status WriterStore::Do(const std::shared_ptr<SaveJob>& job) {
  STEPWELL_RETURN_IF_ERROR(Begin(job));
  return SaveHandle(job->state).Wait();
}

// Commits the step again, with its chunks where they are.
Status WriterStore::Rewrite(uint64_t step, std::span<const std::string> without_items) {
  Status status;
  for (int attempt = 0; attempt < kRewriteAttempts; ++attempt) {
    auto job = std::make_shared<SaveJob>();
    {
      STEPWELL_ASSIGN_OR_RETURN(const auto reader, ReadShare(step));
      STEPWELL_RETURN_IF_ERROR(
          WithoutItems(path_, reader.get(), core_->live.Find(step), without_items, job.get()));
    }
    status = Do(job);
    if (status.code() != StatusCode::kAborted || !freeze_->Check().ok()) break;
    // Something else rewrote the step in between (reclaim moves steps): look again.
  }
  return status.WithContext(path_);
}

PanicOnUnwind::~PanicOnUnwind() {
  if (std::uncaught_exceptions() > exceptions_) {
    engine_->Panic(io::NoMemoryTo("hand a change to the engine"));
  }
}

Status WriterStore::Close() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  const auto stop_requests = [this] {
    if (mailbox_ != nullptr) mailbox_->Stop();
  };
  if (!changes_.Close(stop_requests)) return OkStatus();
  if (engine_ != nullptr) changes_.WaitForChanges();
  bool thrown = true;
  Status status = io::Guarded("close the store", [this, &thrown] {
    Status closed = CloseInOrder();
    thrown = false;
    return closed;
  });
  if (thrown && engine_ != nullptr) engine_->Panic(status);
  EndThreads();
  // Without memory for one of these the rest is closed all the same.
  io::Quietly([this] { WriteTrace(path_, options_.log, instruments_->trace.get()); });
  pool_->Stop();
  ForgetForkDescriptors(this);
  if (engine_ != nullptr) engine_->LeaveDisk();
  disk_.reset();  // waits for what is in flight
  if (engine_ != nullptr) engine_->CloseFiles();
  io::Quietly([this] { core_->parts->Close(); });
  io::Quietly([this] { core_->files->KeepNone(); });
  slot_file_.reset();
  lock_file_.reset();  // only now may another writer come
  held_root_.reset();
  return status;
}

// Does the part of closing that needs memory. After a panic the engine only ends.
Status WriterStore::CloseInOrder() {
  views_.Close(/*keep=*/true);  // shows the last steps
  Status status = TakeError();
  const bool was_frozen = freeze_->frozen();  // its error went to the changes that it concerned
  if (engine_ == nullptr) return status;
  STEPWELL_RETURN_IF_ERROR(OnEngine([this] {
    engine_->BeginClose();
    return OkStatus();
  }));
  core_->live.OnRelease(nullptr);
  WaitForReclaim();
  core_->index->BeginClose();
  environment_.index_worker->Run([this] { core_->index->Close(); });
  index_tasks_->Wait();
  worker_tasks_->Wait();  // the tasks that these and the next post run below
  encoder_tasks_->Wait();
  const Status finished = OnEngine([&] {
    engine_->Step(/*wait=*/false);
    return engine_->started() ? engine_->Finish() : OkStatus();
  });
  return status.ok() && !was_frozen ? finished : status;
}

// Without memory, too: after this no thread does anything for the store.
void WriterStore::EndThreads() {
  if (far_tasks_ != nullptr) far_tasks_->Wait();
  far_tasks_.reset();
  if (engine_ != nullptr) {
    engine_->reclaim().Stop();
    changes_.WaitForCalls();
    mailbox_.reset();  // waits for its call, which uses what follows
    core_->live.OnRelease(nullptr);
    core_->index->BeginClose();
    if (thread_ != nullptr) {
      stop_ = true;
      disk_->Wake();
      thread_->join();
      thread_.reset();
    }
  }
  reclaim_tasks_->Wait();
  index_tasks_->Wait();
  worker_tasks_->Wait();
  encoder_tasks_->Wait();
  if (core_->index != nullptr) core_->index->GiveBack();
}

}  // namespace stepwell::db
