// SPDX-License-Identifier: Apache-2.0
// Ctrl-C, and news of progress, in calls that may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "api/python/errors.h"

namespace stepwell::python {

// How long a wait runs before it looks for Ctrl-C.
inline constexpr std::chrono::milliseconds kInterruptSlice{100};

// Runs function(keep_waiting), which gives a Result, without the GIL; raises its error. It asks
// `keep_waiting` about every 100 ms on this thread, and ends soon after that said false: then what
// Ctrl-C's handler raised is raised here.
template <typename Function>
auto RunInterruptible(Function&& function) {
  std::optional<nanobind::python_error> interrupt;
  const std::function<bool()> keep_waiting = [&interrupt] {
    const nanobind::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() == 0) return true;
    interrupt.emplace();
    return false;
  };
  std::optional<decltype(function(keep_waiting))> result;
  {
    const nanobind::gil_scoped_release release;
    result.emplace(function(keep_waiting));
  }
  if (interrupt) throw std::move(*interrupt);
  return ValueOrThrow(*std::move(result));
}

// Runs `function(cancelled)` on a thread of its own. Ctrl-C sets the flag, waits for its end and
// raises; and so does what `tick` raises, which is called on this thread now and then, and when it
// came to a good end.
template <typename Function>
auto RunCancellable(
    Function function, const std::function<void()>& tick = [] {}) {
  std::atomic<bool> cancelled{false};
  auto future = std::async(std::launch::async, [&] { return function(cancelled); });
  while (true) {
    bool ready;
    {
      nanobind::gil_scoped_release release;
      ready = future.wait_for(kInterruptSlice) == std::future_status::ready;
    }
    if (ready) break;
    try {
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
      tick();
    } catch (...) {
      cancelled = true;
      nanobind::gil_scoped_release release;
      future.wait();
      throw;
    }
  }
  auto value = ValueOrThrow(future.get());
  tick();
  return value;
}

// Tells a callable of Python's, or None, what a worker's thread has done so far.
class Progress {
 public:
  explicit Progress(nanobind::object callable) : callable_(std::move(callable)) {}

  // On the worker's thread.
  void Set(uint64_t done_bytes, uint64_t total_bytes) {
    total_bytes_ = total_bytes;
    done_bytes_ = done_bytes;
  }
  void Tell() {
    if (callable_.is_none() || total_bytes_ == 0 || done_bytes_ == told_bytes_) return;
    told_bytes_ = done_bytes_;
    callable_(told_bytes_, total_bytes_.load());
  }

 private:
  const nanobind::object callable_;
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<uint64_t> total_bytes_{0};
  uint64_t told_bytes_ = 0;
};

}  // namespace stepwell::python
