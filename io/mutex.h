// SPDX-License-Identifier: Apache-2.0
// The locks of the standard library, with what clang needs to check who holds them
// (io/thread_annotations.h). The only file of the product that names std's own.
//
// There are no waits with a predicate, as the check does not see into a lambda. A wait is a loop:
//
//   while (queue_.empty()) news_.Wait(&mutex_);
//   while (!done_ && news_.WaitUntil(&mutex_, end)) {
//   }
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "io/thread_annotations.h"

namespace stepwell::io {

class STEPWELL_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() STEPWELL_ACQUIRE() { mutex_.lock(); }
  void Unlock() STEPWELL_RELEASE() { mutex_.unlock(); }
  bool TryLock() STEPWELL_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex as long as it lives.
class STEPWELL_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) STEPWELL_ACQUIRE(mutex) : mutex_(mutex) { mutex_->Lock(); }
  // The caller holds it already.
  MutexLock(Mutex* mutex, std::adopt_lock_t) STEPWELL_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() STEPWELL_RELEASE() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// The reverse: lets go of a mutex that is held, and takes it again at its end.
class STEPWELL_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex* mutex) STEPWELL_RELEASE(mutex) : mutex_(mutex) { mutex_->Unlock(); }
  ~MutexUnlock() STEPWELL_RELEASE() { mutex_->Lock(); }  // ends the scope: the mutex is held again
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits let go of the mutex meanwhile, and may return without a reason.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex* mutex) STEPWELL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False once the time is over.
  template <typename Clock, typename Duration>
  bool WaitUntil(Mutex* mutex, const std::chrono::time_point<Clock, Duration>& end)
      STEPWELL_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(lock, end);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace stepwell::io
