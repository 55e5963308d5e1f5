// SPDX-License-Identifier: Apache-2.0
// Executor: runs pure CPU tasks. ThreadPool in production, InlineExecutor in the simulation.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace stepwell::io {

class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` once, on any thread, possibly before returning. Tasks must not throw or block on
  // other tasks.
  virtual void Run(std::function<void()> task) = 0;
  // How many tasks may run at once.
  virtual size_t parallelism() const = 0;
};

class InlineExecutor final : public Executor {
 public:
  void Run(std::function<void()> task) override { task(); }
  size_t parallelism() const override { return 1; }
};

// A fixed number of threads named "stepwell-<n>"; the destructor runs what is queued, then joins.
std::unique_ptr<Executor> MakeThreadPool(size_t thread_count);

}  // namespace stepwell::io
