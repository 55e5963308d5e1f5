// SPDX-License-Identifier: Apache-2.0
#include "io/executor.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "io/bytes.h"
#include "io/thread.h"

namespace stepwell::io {
namespace {

class ThreadPool final : public Executor {
 public:
  Status Start(size_t thread_count, const std::string& name, ThreadPriority priority) {
    threads_.reserve(thread_count);
    for (size_t i = 0; i < thread_count; ++i) {
      auto thread = StartThread(thread_count == 1 ? name : StrCat(name, "-", i).substr(0, 15),
                                [this, priority] {
                                  if (priority == ThreadPriority::kLow) YieldToOthers();
                                  Work();
                                });
      if (thread.ok()) {
        threads_.push_back(std::move(thread).value());
      } else if (threads_.empty()) {
        return thread.status();
      } else {
        break;
      }
    }
    return OkStatus();
  }

  ~ThreadPool() override {
    {
      const MutexLock lock(&mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Run(std::function<void()> task) override {
    std::list<std::function<void()>> tasks;
    tasks.push_back(std::move(task));
    RunAll(std::move(tasks));
  }

  void RunAll(std::list<std::function<void()>> tasks) override {
    if (tasks.empty()) return;
    const bool several = std::next(tasks.begin()) != tasks.end();
    {
      const MutexLock lock(&mutex_);
      tasks_.splice(tasks_.end(), tasks);
    }
    several ? wake_.NotifyAll() : wake_.NotifyOne();
  }

  size_t parallelism() const override { return threads_.size(); }

 private:
  void Work() {
    for (;;) {
      std::list<std::function<void()>> task;
      {
        const MutexLock lock(&mutex_);
        while (!stopping_ && tasks_.empty()) wake_.Wait(&mutex_);
        if (tasks_.empty()) return;  // stopping, and everything queued has run
        task.splice(task.end(), tasks_, tasks_.begin());
      }
      try {
        task.front()();
      } catch (const std::bad_alloc&) {
        // It must not end the process; a caller that waits for more than a try handles it.
      }
    }
  }

  Mutex mutex_;
  CondVar wake_;
  std::list<std::function<void()>> tasks_ STEPWELL_GUARDED_BY(mutex_);
  bool stopping_ STEPWELL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after Start()
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeThreadPool(size_t thread_count, const std::string& name,
                                                 ThreadPriority priority) {
  auto pool = std::make_unique<ThreadPool>();
  STEPWELL_RETURN_IF_ERROR(pool->Start(std::max<size_t>(thread_count, 1), name, priority));
  return std::unique_ptr<Executor>(std::move(pool));
}

void TaskScope::State::Done() {
  const MutexLock lock(&mutex);
  if (--tasks == 0) none_left.NotifyAll();
}

void TaskScope::Run(std::function<void()> task) {
  {
    const MutexLock lock(&state_->mutex);
    ++state_->tasks;
  }
  try {
    executor_->Run([state = state_, task = std::move(task)]() mutable {
      try {
        task();
      } catch (const std::exception&) {
        if (state->thrown) state->thrown();
      }
      task = nullptr;  // its captures may own the owner
      state->Done();   // from here on the owner may be gone
    });
  } catch (...) {  // no memory to queue it: it will never run
    state_->Done();
    throw;
  }
}

void TaskScope::RunAll(std::list<std::function<void()>> tasks) {
  for (auto& task : tasks) Run(std::move(task));
}

void TaskScope::Wait() {
  const MutexLock lock(&state_->mutex);
  while (state_->tasks > 0) state_->none_left.Wait(&state_->mutex);
}

}  // namespace stepwell::io
