// SPDX-License-Identifier: Apache-2.0
// STEPWELL_CHECK: for bugs in Stepwell itself, never for bad input or failed I/O. Prints and
// aborts.
#pragma once

#include <string_view>

namespace stepwell::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);
}  // namespace stepwell::internal

#define STEPWELL_CHECK(condition, message)                                          \
  do {                                                                              \
    if (!(condition)) [[unlikely]] {                                                \
      ::stepwell::internal::CheckFailed(__FILE__, __LINE__, #condition, (message)); \
    }                                                                               \
  } while (false)
