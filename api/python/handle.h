// SPDX-License-Identifier: Apache-2.0
// A save under way, as Python has it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "api/python/errors.h"
#include "api/python/events.h"
#include "api/python/gil.h"
#include "api/python/interrupt.h"
#include "db/store.h"

namespace stepwell::python {

namespace nb = nanobind;

class Handle {
 public:
  explicit Handle(db::SaveHandle handle) : handle_(std::move(handle)), pid_(getpid()) {}
  ~Handle() {
    if (pid_ != getpid()) new db::SaveHandle(std::move(handle_));  // see Core's destructor
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  uint64_t step() const { return handle_.step(); }
  bool done() const { return handle_.done(); }
  bool skipped() const { return handle_.skipped(); }
  std::optional<db::SaveStats> stats() const { return handle_.stats(); }
  nb::object error() const { return MakeException(handle_.status()); }

  // Returns true if the save finished in time. Without a timeout it waits for ever. Ctrl-C
  // interrupts.
  bool Wait(std::optional<double> timeout_s) const {
    using Clock = std::chrono::steady_clock;
    constexpr double kForever = 1e9;
    const double seconds = timeout_s.value_or(kForever);
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(std::min(seconds, kForever)));
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      const std::chrono::milliseconds slice =
          std::clamp(left, std::chrono::milliseconds{0}, kInterruptSlice);
      bool finished;
      {
        GilReleased release;
        finished = handle_.WaitFor(slice);
      }
      if (finished) return true;
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      if (left <= kInterruptSlice) return false;
    }
  }

  // Puts `token` into the event queue when done.
  void Notify(uint64_t token) const {
    GilReleased release;
    handle_.OnComplete([token](const Status&) { EventQueue::Get().Complete(token); });
  }

 private:
  db::SaveHandle handle_;
  const pid_t pid_;
};

}  // namespace stepwell::python
