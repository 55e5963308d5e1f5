// SPDX-License-Identifier: Apache-2.0
// Status as Python exceptions: the classes of stepwell/errors.py.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "api/python/gil.h"
#include "io/result.h"
#include "io/status.h"

namespace stepwell::python {

// The exception object for an error, not raised; None for OK. Needs the GIL.
nanobind::object MakeException(const Status& status, bool opening = false);

// The other way round, of what a call into Python has raised: one of stepwell's errors, or of what
// Python itself raises for files; any other is kIoError. Needs the GIL.
Status StatusOf(const nanobind::python_error& error);

// Raises the exception unless `status` is OK. `opening`: kNotFound concerns the store, not a step.
void ThrowIfError(const Status& status, bool opening = false);

// The same for what looked a path up: kNotFound is PathNotFoundError, kInvalidArgument
// AmbiguousPathError.
void ThrowIfPathError(const Status& status);

template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return std::move(result).value();
}

// Runs an engine call, whose Status or Result is returned, without the GIL; raises its error.
template <typename Function>
auto Call(Function&& function) {
  std::optional<decltype(function())> result;
  {
    const GilReleased release;
    result.emplace(function());
  }
  if constexpr (std::is_same_v<decltype(function()), Status>) {
    ThrowIfError(*result);
  } else {
    return ValueOrThrow(*std::move(result));
  }
}

}  // namespace stepwell::python
