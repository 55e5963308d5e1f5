// SPDX-License-Identifier: Apache-2.0
// Executor: runs pure CPU tasks. ThreadPool in production, InlineExecutor in the simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "io/mutex.h"
#include "io/result.h"

namespace stepwell::io {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` once, on any thread, possibly before returning. Tasks must not block on other
  // tasks. What they throw (no memory) ends there: a task that is waited for reports it itself.
  virtual void Run(std::function<void()> task) = 0;
  // The same for several, in order, without an allocation.
  virtual void RunAll(std::list<std::function<void()>> tasks) = 0;
  // The number of tasks that may run at once.
  virtual size_t parallelism() const = 0;
};

class InlineExecutor final : public Executor {
 public:
  void Run(std::function<void()> task) override { task(); }
  void RunAll(std::list<std::function<void()>> tasks) override {
    for (auto& task : tasks) task();
  }
  size_t parallelism() const override { return 1; }
};

enum class ThreadPriority : uint8_t {
  kNormal,
  // A third of another thread's time where that wants the same core, else all of it: nice 5
  // above the process's own value (sched(7)).
  kLow,
};

// A fixed number of threads named "<name>-<n>", or one named "<name>"; the destructor runs what is
// queued, then joins. Where the system gives fewer threads than asked for, those have to do; an
// error when it gives none.
Result<std::unique_ptr<Executor>> MakeThreadPool(size_t thread_count,
                                                 const std::string& name = "stepwell",
                                                 ThreadPriority priority = ThreadPriority::kNormal);

// The tasks of one owner on an executor that others use, too. Wait() returns when none of them is
// queued or running and all that they captured is gone; so an owner whose tasks hold a plain
// pointer to it calls Wait() before it goes.
class TaskScope final : public Executor {
 public:
  // `thrown`, if any, is called on a task's thread when it has thrown.
  explicit TaskScope(std::shared_ptr<Executor> executor, std::function<void()> thrown = {})
      : executor_(std::move(executor)) {
    state_->thrown = std::move(thrown);
  }

  void Run(std::function<void()> task) override;
  void RunAll(std::list<std::function<void()>> tasks) override;
  size_t parallelism() const override { return executor_->parallelism(); }
  // Not from a task of the scope. Tasks that are run meanwhile are waited for, too.
  void Wait();

 private:
  struct State {
    Mutex mutex;
    CondVar none_left;
    size_t tasks STEPWELL_GUARDED_BY(mutex) = 0;
    std::function<void()> thrown;

    void Done();
  };

  const std::shared_ptr<Executor> executor_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace stepwell::io
