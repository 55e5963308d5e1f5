// SPDX-License-Identifier: Apache-2.0
// The state that a SaveHandle shares with the engine. Thread-safe.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "db/store.h"
#include "io/executor.h"
#include "io/mutex.h"

namespace stepwell {

struct SaveHandle::State {
  State(uint64_t step_number, std::shared_ptr<io::Executor> callback_executor,
        std::function<void()> pump_engine)
      : step(step_number),
        callbacks_on(std::move(callback_executor)),
        pump(std::move(pump_engine)) {}

  const uint64_t step;
  const std::shared_ptr<io::Executor> callbacks_on;
  const std::function<void()> pump;  // set in inline mode: waiting runs the engine
  // The store's own, set before the job is handed over: runs `mark` (false: it was done already)
  // together with its bookkeeping, so that no thread sees one without the other.
  std::function<void(const std::function<bool()>& mark)> on_finish;

  mutable io::Mutex mutex;
  mutable io::CondVar finished;
  bool done STEPWELL_GUARDED_BY(mutex) = false;
  Status status STEPWELL_GUARDED_BY(mutex);
  bool skipped STEPWELL_GUARDED_BY(mutex) = false;
  std::optional<SaveStats> stats STEPWELL_GUARDED_BY(mutex);  // set before a save is done
  mutable bool reported STEPWELL_GUARDED_BY(mutex) = false;   // a caller was given the error
  // Each with its own outcome.
  std::list<std::function<void()>> callbacks STEPWELL_GUARDED_BY(mutex);

  // For who knows that it is done. Not checked: the status changes no more, and is read without
  // the mutex and without a copy, for which there may be no memory.
  const Status& Outcome() const STEPWELL_NO_THREAD_SAFETY_ANALYSIS { return status; }
  // The first call counts. Works without memory: waiters are told.
  void Finish(Status outcome) STEPWELL_EXCLUDES(mutex) {
    std::list<std::function<void()>> run;
    const auto mark = [&] {
      const io::MutexLock lock(&mutex);
      if (done) return false;
      done = true;
      status = outcome;
      run.swap(callbacks);
      return true;
    };
    if (on_finish) {
      on_finish(std::cref(mark));
    } else {
      mark();
    }
    finished.NotifyAll();
    if (!run.empty()) callbacks_on->RunAll(std::move(run));
  }
};

}  // namespace stepwell
