// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <utility>

#include "io/executor.h"

namespace stepwell::sim {

// Runs everything on the calling thread, but nothing while it is held.
class HeldExecutor final : public io::Executor {
 public:
  void Run(std::function<void()> task) override {
    tasks_.push_back(std::move(task));
    RunQueued();
  }
  void RunAll(std::list<std::function<void()>> tasks) override {
    tasks_.splice(tasks_.end(), tasks);
    RunQueued();
  }
  size_t parallelism() const override { return 1; }
  void Hold(bool hold) {
    held_ = hold;
    RunQueued();
  }

 private:
  void RunQueued() {
    while (!held_ && !tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }

  bool held_ = false;
  std::list<std::function<void()>> tasks_;
};

}  // namespace stepwell::sim
