// SPDX-License-Identifier: Apache-2.0
// The changes that callers have begun and the engine has not ended, as callers see them. Private to
// db/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/log/live_steps.h"
#include "db/save/state.h"
#include "db/stats/instruments.h"
#include "db/store.h"
#include "io/executor.h"
#include "io/mutex.h"

namespace stepwell::db {

// The error of a save whose caller stopped waiting.
Status SaveCancelled(const std::string& path, uint64_t step);

// The frames of `step` are there, and no decision of its group.
bool IsPrepared(const LiveSteps& live, uint64_t step);

// Admits changes and calls until the store is closed, lets callers wait for their turn and their
// end, and keeps the errors of failed saves until a caller has read them. Thread-safe.
class ChangesInFlight {
 public:
  using State = SaveHandle::State;
  // The newest save under way of each step.
  using Saves = std::map<uint64_t, std::shared_ptr<State>>;

  struct Options {
    std::string path;
    const LiveSteps* live = nullptr;     // outlives this
    Instruments* instruments = nullptr;  // outlives this
    std::shared_ptr<io::Executor> callbacks;
    // Set in inline mode, where the thread that waits runs the engine: one turn of it.
    std::function<void()> pump;
  };

  explicit ChangesInFlight(Options options);
  ChangesInFlight(const ChangesInFlight&) = delete;
  ChangesInFlight& operator=(const ChangesInFlight&) = delete;

  // Close waits until it is over.
  class Call {
   public:
    explicit Call(ChangesInFlight* changes);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // False: the store is closed.
    bool begun() const { return begun_; }

   private:
    ChangesInFlight* const changes_;
    bool begun_ = false;
  };

  // Waits until there is a place in flight, which another save may take first.
  Status WaitForPlace(uint64_t step, const std::function<bool()>& keep_waiting)
      STEPWELL_EXCLUDES(mutex_);
  // Takes a place in flight for a save of `step`, if `check` (with the mutex held) has no
  // objection; `skip` is set when there is nothing to do.
  Result<std::shared_ptr<State>> AdmitSave(uint64_t step, IfExists if_exists,
                                           const std::function<bool()>& keep_waiting,
                                           const std::function<Status()>& check, bool* skip)
      STEPWELL_EXCLUDES(mutex_);
  // Begins a change of what is there or being saved, if `check` (with the mutex held) has no
  // objection.
  Result<std::shared_ptr<State>> AdmitChange(uint64_t step,
                                             const std::function<Status(const Saves&)>& check)
      STEPWELL_EXCLUDES(mutex_);
  // For a save that its caller gave up: no later call reports it, and its step's number is free.
  void Forget(const std::shared_ptr<State>& save) STEPWELL_EXCLUDES(mutex_);

  // Refuses changes and calls from here on. `stop` runs with the mutex held. False, and `stop` does
  // not run, if it was closed before.
  bool Close(const std::function<void()>& stop) STEPWELL_EXCLUDES(mutex_);
  Status Closed() const;
  void WaitForChanges() STEPWELL_EXCLUDES(mutex_);
  void WaitForCalls() STEPWELL_EXCLUDES(mutex_);
  // Waits for MarkReclaimIdle, or until `panicked`, which nothing follows; then for calls.
  void WaitForReclaim(const std::function<bool()>& panicked) STEPWELL_EXCLUDES(mutex_);
  void MarkReclaimIdle() STEPWELL_EXCLUDES(mutex_);

  // The engine's answer to a call, and the wait for it. Both functions run with the mutex held.
  void Answer(const std::function<void()>& answer) STEPWELL_EXCLUDES(mutex_);
  void WaitForAnswer(const std::function<bool()>& answered) STEPWELL_EXCLUDES(mutex_);

  // Ends all changes with an unknown outcome. On the engine thread, after a panic; without an
  // allocation.
  void EndAll() STEPWELL_EXCLUDES(mutex_);

  // Returns the first error of a save that no handle and no earlier call has reported.
  Status TakeError() STEPWELL_EXCLUDES(mutex_);
  size_t SavesInFlight() const STEPWELL_EXCLUDES(mutex_);

 private:
  // False when `keep_waiting` (asked about every 100 ms) said so before `ready` did, which is
  // asked with the mutex held.
  bool WaitUntil(const std::function<bool()>& ready, const std::function<bool()>& keep_waiting = {})
      STEPWELL_REQUIRES(mutex_);
  bool WaitUntilPlace(const std::function<bool()>& keep_waiting) STEPWELL_REQUIRES(mutex_);
  std::shared_ptr<State> NewState(uint64_t step, bool is_save);
  void Record(const std::shared_ptr<State>& state) STEPWELL_REQUIRES(mutex_);
  void RecordFailure(const std::shared_ptr<State>& state) STEPWELL_REQUIRES(mutex_);
  void Finished(State* state, bool is_save, const std::function<bool()>& mark)
      STEPWELL_EXCLUDES(mutex_);

  const Options options_;
  const Status lost_;  // the error of a change that ended in a panic

  mutable io::Mutex mutex_;
  io::CondVar changed_;
  bool closed_ STEPWELL_GUARDED_BY(mutex_) = false;
  // Counts saves, deletes and the other changes: the size of unfinished_.
  size_t jobs_in_flight_ STEPWELL_GUARDED_BY(mutex_) = 0;
  std::vector<std::shared_ptr<State>> unfinished_ STEPWELL_GUARDED_BY(mutex_);
  size_t saves_in_flight_ STEPWELL_GUARDED_BY(mutex_) = 0;
  size_t calls_in_flight_ STEPWELL_GUARDED_BY(mutex_) = 0;
  bool reclaim_idle_ STEPWELL_GUARDED_BY(mutex_) = false;  // since the store is being closed
  Saves pending_ STEPWELL_GUARDED_BY(mutex_);
  static constexpr size_t kFailedMax = 100;
  // Errors perhaps unreported.
  std::vector<std::shared_ptr<State>> failed_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
