// SPDX-License-Identifier: Apache-2.0
#include "io/executor.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/bytes.h"

namespace stepwell::io {
namespace {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(size_t thread_count) {
    const size_t wanted = std::max<size_t>(thread_count, 1);
    threads_.reserve(wanted);
    try {
      for (size_t i = 0; i < wanted; ++i) threads_.emplace_back([this, i] { Work(i); });
    } catch (const std::system_error&) {
      // The system has no more threads to give: fewer will do, and with none Run() works inline.
    }
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
    if (threads_.empty()) return task();
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_one();
  }

  size_t parallelism() const override { return std::max<size_t>(threads_.size(), 1); }

 private:
  void Work(size_t index) {
    pthread_setname_np(pthread_self(), StrCat("stepwell-", index).substr(0, 15).c_str());
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (tasks_.empty()) return;  // stopping, and everything queued has run
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;         // constant after construction
};

}  // namespace

std::unique_ptr<Executor> MakeThreadPool(size_t thread_count) {
  return std::make_unique<ThreadPool>(thread_count);
}

}  // namespace stepwell::io
