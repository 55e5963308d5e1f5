// SPDX-License-Identifier: Apache-2.0
// How changes and stores end: in order, or without memory, after a panic of its engine.
#include "db/log/lock.h"
#include "db/store/writer_store.h"
#include "io/guard.h"

namespace stepwell::db {

PanicOnUnwind::~PanicOnUnwind() {
  if (std::uncaught_exceptions() > exceptions_) {
    engine_->Panic(io::NoMemoryTo("hand a change to the engine"));
  }
}

void WriterStore::Finished(SaveHandle::State* state, bool is_save,
                           const std::function<bool()>& mark) {
  const std::lock_guard lock(mutex_);
  if (!mark()) return;
  std::erase_if(unfinished_, [&](const auto& each) { return each.get() == state; });
  --jobs_in_flight_;
  if (is_save) {
    --saves_in_flight_;
    Status outcome;
    {
      const std::lock_guard state_lock(state->mutex);
      outcome = state->status;
    }
    const bool gave_up = outcome.code() == StatusCode::kCancelled;  // and was told so
    if (!outcome.ok() && !gave_up) {
      io::Guarded("log a failed save", [&] {
        instruments_->Failed(state->step, outcome);
        return OkStatus();
      }).IgnoreError("the next save reports it");
    }
    const auto it = pending_.find(state->step);
    if (it != pending_.end() && it->second.get() == state) {
      if (!outcome.ok() && !gave_up) NoteFailed(it->second);
      pending_.erase(it);
    }
  }
  changed_.notify_all();
}

// Under the mutex: a change that Finished or EndChanges will end.
void WriterStore::NoteChange(const std::shared_ptr<SaveHandle::State>& state) {
  unfinished_.push_back(state);
  ++jobs_in_flight_;
}

// On the engine thread, after a panic. Without an allocation.
void WriterStore::EndChanges() {
  for (;;) {
    std::shared_ptr<SaveHandle::State> state;
    {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
      if (unfinished_.empty()) return;
      state = std::move(unfinished_.back());
      unfinished_.pop_back();
    }
    state->Finish(lost_);
  }
}

Status WriterStore::Close() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  {
    std::unique_lock lock(mutex_);
    if (closed_) return OkStatus();
    closed_ = true;
    if (mailbox_ != nullptr) mailbox_->Stop();
    changed_.notify_all();
    if (engine_ != nullptr) WaitUntil(lock, [this] { return jobs_in_flight_ == 0; });
  }
  bool thrown = true;
  Status status = io::Guarded("close the store", [this, &thrown] {
    Status closed = CloseInOrder();
    thrown = false;
    return closed;
  });
  if (thrown && engine_ != nullptr) engine_->Panic(status);
  EndThreads();
  const auto end = [](auto&& work) {
    io::Guarded("close the store", [&] {
      work();
      return OkStatus();
    }).IgnoreError("the rest is to be closed, too");
  };
  end([this] { WriteTrace(); });
  pool_->Stop();
  ForgetForkDescriptors(this);
  if (engine_ != nullptr) engine_->LeaveDisk();
  disk_.reset();  // waits for what is in flight
  if (engine_ != nullptr) engine_->CloseFiles();
  end([this] { core_->parts->Close(); });
  end([this] { core_->files->KeepNone(); });
  slot_file_.reset();
  lock_file_.reset();  // only now may another writer come
  held_root_.reset();
  return status;
}

// What needs memory. After a panic the engine only ends.
Status WriterStore::CloseInOrder() {
  views_.Close(/*keep=*/true);  // shows the last steps
  Status status = TakeError();
  const bool was_frozen = freeze_->frozen();  // its error went to whom it concerned
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
  worker_tasks_->Wait();  // what they post is run below
  const Status finished = OnEngine([&] {
    engine_->Step(/*wait=*/false);
    return engine_->started() ? engine_->Finish() : OkStatus();
  });
  return status.ok() && !was_frozen ? finished : status;
}

// Without memory, too: after this no thread does anything for the store.
void WriterStore::EndThreads() {
  if (engine_ != nullptr) {
    engine_->reclaim().Stop();
    {
      std::unique_lock lock(mutex_);
      WaitUntil(lock, [this] { return calls_in_flight_ == 0; });
    }
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
  if (core_->index != nullptr) core_->index->GiveBack();
}

}  // namespace stepwell::db
