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
  Status Start(size_t thread_count, const std::string& name) {
    threads_.reserve(thread_count);
    for (size_t i = 0; i < thread_count; ++i) {
      auto thread = StartThread(thread_count == 1 ? name : StrCat(name, "-", i).substr(0, 15),
                                [this] { Work(); });
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
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
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
      std::lock_guard lock(mutex_);
      tasks_.splice(tasks_.end(), tasks);
    }
    several ? wake_.notify_all() : wake_.notify_one();
  }

  size_t parallelism() const override { return threads_.size(); }

 private:
  void Work() {
    for (;;) {
      std::list<std::function<void()>> task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
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

  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                   // guarded by mutex_
  std::vector<std::thread> threads_;        // constant after Start()
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeThreadPool(size_t thread_count, const std::string& name) {
  auto pool = std::make_unique<ThreadPool>();
  STEPWELL_RETURN_IF_ERROR(pool->Start(std::max<size_t>(thread_count, 1), name));
  return std::unique_ptr<Executor>(std::move(pool));
}

void TaskScope::State::Done() {
  const std::lock_guard lock(mutex);
  if (--tasks == 0) none_left.notify_all();
}

void TaskScope::Run(std::function<void()> task) {
  {
    const std::lock_guard lock(state_->mutex);
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
  std::unique_lock lock(state_->mutex);
  state_->none_left.wait(lock, [this] { return state_->tasks == 0; });
}

}  // namespace stepwell::io
