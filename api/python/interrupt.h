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
#include "api/python/gil.h"

namespace stepwell::python {

// The interval at which a wait looks for Ctrl-C.
inline constexpr std::chrono::milliseconds kInterruptSlice{100};

// On a thread of its own; where none can be started, on that of the first WaitSlice. Copied, not
// moved: libstdc++ takes it a second time where the first start failed.
template <typename Function>
auto StartAside(const Function& function) {
  return std::async(std::launch::async | std::launch::deferred, function);
}

// Without the GIL; whether it is done.
template <typename T>
bool WaitSlice(std::future<T>& future) {
  const GilReleased release;
  const std::future_status status = future.wait_for(kInterruptSlice);
  if (status == std::future_status::deferred) future.wait();
  return status != std::future_status::timeout;
}

// Runs function(keep_waiting), which gives a Result, without the GIL; raises its error. It asks
// `keep_waiting` about every 100 ms on this thread, and ends soon after that said false: then what
// Ctrl-C's handler raised is raised here.
template <typename Function>
auto RunInterruptible(Function&& function) {
  std::optional<nanobind::python_error> interrupt;
  const std::function<bool()> keep_waiting = [&interrupt] {
    const GilHeld acquire;
    if (PyErr_CheckSignals() == 0) return true;
    interrupt.emplace();
    return false;
  };
  std::optional<decltype(function(keep_waiting))> result;
  {
    const GilReleased release;
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
  auto future = StartAside([&] { return function(cancelled); });
  while (!WaitSlice(future)) {
    try {
      if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
      tick();
    } catch (...) {
      SleepIfThreadEnds();
      cancelled = true;
      GilReleased release;
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
  void Report() {
    if (callable_.is_none() || total_bytes_ == 0 || done_bytes_ == reported_bytes_) return;
    reported_bytes_ = done_bytes_;
    callable_(reported_bytes_, total_bytes_.load());
  }

 private:
  const nanobind::object callable_;
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<uint64_t> total_bytes_{0};
  uint64_t reported_bytes_ = 0;
};

}  // namespace stepwell::python
