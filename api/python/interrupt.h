// SPDX-License-Identifier: Apache-2.0
// Ctrl-C in calls that may wait.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <optional>
#include <utility>

#include "api/python/errors.h"

namespace stepwell::python {

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

}  // namespace stepwell::python
