// SPDX-License-Identifier: Apache-2.0
// The state that a SaveHandle shares with the engine. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>

#include "db/store.h"
#include "io/executor.h"

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

  mutable std::mutex mutex;
  mutable std::condition_variable finished;
  bool done = false;  // guarded by mutex, as all below
  Status status;
  bool skipped = false;
  mutable bool reported = false;               // a caller was given the error
  std::list<std::function<void()>> callbacks;  // each with its own outcome

  // The first call counts. Works without memory: waiters are told.
  void Finish(Status outcome) {
    std::list<std::function<void()>> run;
    const auto mark = [&] {
      const std::lock_guard lock(mutex);
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
    finished.notify_all();
    if (!run.empty()) callbacks_on->RunAll(std::move(run));
  }
};

}  // namespace stepwell
