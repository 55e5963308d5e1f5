// SPDX-License-Identifier: Apache-2.0
// The platform of RocksDB inside the index: an Env without threads. Private to db/index/.
//
// RocksDB calls Env::Schedule with its mutex held, so a job cannot run there. It is queued, and the
// index runs the queue on its own thread right after it asked for a flush (without waiting) or
// wrote. Hence a run is one sequence of operations, in the simulation and outside, and a forked
// child has no pool of lost threads to join at exit.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <rocksdb/listener.h>
#include <rocksdb/system_clock.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/mutex.h"
#include "io/result.h"

namespace stepwell::db {

// kOk stays kOk. What RocksDB calls corrupt, missing or misfit is kDataLoss: the index is bad.
Status FromRocks(const rocksdb::Status& status, std::string_view context);

// RocksDB waits a second after each failed job, for disks that come back. Ours is frozen by then.
// And it asserts that the time is not before 1970, where a machine without a battery may begin.
class UnhurriedClock final : public rocksdb::SystemClockWrapper {
 public:
  using SystemClockWrapper::SystemClockWrapper;
  const char* Name() const override { return "StepwellClock"; }
  void SleepForMicroseconds(int) override {}
  uint64_t NowMicros() override {
    const uint64_t micros = SystemClockWrapper::NowMicros();
    return static_cast<int64_t>(micros) < 0 ? 0 : micros;
  }
  rocksdb::Status GetCurrentTime(int64_t* seconds) override {
    const rocksdb::Status status = SystemClockWrapper::GetCurrentTime(seconds);
    if (!status.ok() || *seconds < 0) *seconds = 0;  // -1 is an error to time()
    return rocksdb::Status::OK();
  }
};

class SilentLogger final : public rocksdb::Logger {
 public:
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

// Keeps the first error that stopped RocksDB.
class ErrorKeeper final : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* status) override {
    const io::MutexLock lock(&mutex_);
    if (first_.ok()) first_ = *status;
  }
  rocksdb::Status first() const {
    const io::MutexLock lock(&mutex_);
    return first_;
  }

 private:
  mutable io::Mutex mutex_;
  rocksdb::Status first_ STEPWELL_GUARDED_BY(mutex_);
};

// Thread-safe.
class JobQueueEnv final : public rocksdb::EnvWrapper {
 public:
  explicit JobQueueEnv(const std::shared_ptr<rocksdb::FileSystem>& files)
      : EnvWrapper(rocksdb::NewCompositeEnv(files)) {
    file_system_ = files;
    system_clock_ = std::make_shared<UnhurriedClock>(rocksdb::SystemClock::Default());
  }
  const char* Name() const override { return "StepwellEnv"; }
  uint64_t NowMicros() override { return system_clock_->NowMicros(); }
  rocksdb::Status GetCurrentTime(int64_t* seconds) override {
    return system_clock_->GetCurrentTime(seconds);
  }

  void Schedule(void (*function)(void*), void* argument, Priority priority, void* tag,
                void (*unscheduled)(void*)) override {
    const io::MutexLock lock(&mutex_);
    jobs_.push_back({function, argument, priority, tag, unscheduled});
  }

  int UnSchedule(void* tag, Priority priority) override {
    std::vector<Job> dropped;
    {
      const io::MutexLock lock(&mutex_);
      std::erase_if(jobs_, [&](const Job& job) {
        const bool is_its = job.tag == tag && job.priority == priority;
        if (is_its) dropped.push_back(job);
        return is_its;
      });
    }
    for (const Job& job : dropped) {
      if (job.unscheduled != nullptr) job.unscheduled(job.argument);
    }
    return static_cast<int>(dropped.size());
  }

  unsigned int GetThreadPoolQueueLen(Priority priority) const override {
    const io::MutexLock lock(&mutex_);
    const auto is_its = [&](const Job& job) { return job.priority == priority; };
    return static_cast<unsigned int>(std::count_if(jobs_.begin(), jobs_.end(), is_its));
  }
  void SetBackgroundThreads(int, Priority) override {}
  int GetBackgroundThreads(Priority) override { return 1; }
  void IncBackgroundThreadsIfNeeded(int, Priority) override {}

  // Runs what is queued, and what that queues, while `go_on()` says so; flushes first.
  template <typename GoOn>
  void RunJobs(GoOn go_on) {
    Job job;
    while (go_on() && Take(&job)) job.function(job.argument);
  }

 private:
  struct Job {
    void (*function)(void*) = nullptr;
    void* argument = nullptr;
    Priority priority = LOW;
    void* tag = nullptr;
    void (*unscheduled)(void*) = nullptr;
  };

  bool Take(Job* job) {
    const io::MutexLock lock(&mutex_);
    if (jobs_.empty()) return false;
    auto next = std::find_if(jobs_.begin(), jobs_.end(),
                             [](const Job& one) { return one.priority == HIGH; });
    if (next == jobs_.end()) next = jobs_.begin();
    *job = *next;
    jobs_.erase(next);
    return true;
  }

  mutable io::Mutex mutex_;
  std::deque<Job> jobs_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
