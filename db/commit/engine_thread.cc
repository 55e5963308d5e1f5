// SPDX-License-Identifier: Apache-2.0
#include "db/commit/engine_thread.h"

namespace stepwell::db {

void EngineThread::Post(std::function<void()> task) {
  // Woken under the lock: once the engine can take the task, the poster has left the disk and
  // the engine alone, and Close may end both.
  const io::MutexLock lock(&mutex_);
  posted_.push_back(std::move(task));
  if (disk_ != nullptr) disk_->Wake();
}

void EngineThread::Panic(const Status& why) noexcept {
  freeze_->Trip(why);
  panicked_ = true;
  const io::MutexLock lock(&mutex_);
  if (disk_ != nullptr) disk_->Wake();
}

bool EngineThread::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    const io::MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  for (auto& task : tasks) {
    PanicOnThrow([&] { task(); });
  }
  return !tasks.empty();
}

void EngineThread::LeaveDisk() {
  const io::MutexLock lock(&mutex_);
  disk_ = nullptr;
}

}  // namespace stepwell::db
