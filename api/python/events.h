// SPDX-License-Identifier: Apache-2.0
// A queue from engine threads to Python: references to drop, log lines, finished saves. Engine
// threads only put events into it and never take the GIL. A Python thread ("stepwell-service")
// takes them out.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/log.h"
#include "io/mutex.h"

namespace stepwell::python {

class EventQueue {
 public:
  struct LogLine {
    LogLevel level;
    std::string text;
  };
  struct Events {
    std::vector<PyObject*> drops;  // one reference each
    std::vector<LogLine> logs;
    std::vector<uint64_t> completions;  // tokens of on_complete
  };

  // The process's queue. Never destroyed: an engine thread may outlive every Python object. After
  // fork the child gets a new one, as the old one's lock may be held by a thread that is gone.
  static EventQueue& Get();
  static void InstallForkHandler();

  void Drop(PyObject* object);
  void Log(LogLevel level, std::string_view text);
  // Lines below `level` (none: all) are dropped at once: no thread is woken for them.
  void SetLevel(std::optional<LogLevel> level) {
    const int none = static_cast<int>(LogLevel::kError) + 1;
    level_.store(level ? static_cast<int>(*level) : none, std::memory_order_relaxed);
  }
  void Complete(uint64_t token);

  // Waits for events; without the GIL. Empty after `timeout` or Wake. A wait collects for a
  // moment before it returns, so that a thousand drops cost one wake-up.
  Events Take(std::chrono::milliseconds timeout);
  void Wake();

 private:
  void Notify(bool was_empty);
  bool EmptyLocked() const STEPWELL_REQUIRES(mutex_) {
    return events_.drops.empty() && events_.logs.empty() && events_.completions.empty();
  }

  std::atomic<int> level_{0};
  io::Mutex mutex_;
  io::CondVar changed_;
  Events events_ STEPWELL_GUARDED_BY(mutex_);
  bool woken_ STEPWELL_GUARDED_BY(mutex_) = false;
};

// A reference that the engine may drop on any thread. Takes over one reference to `object`.
std::shared_ptr<const void> HoldForEngine(PyObject* object);

}  // namespace stepwell::python
