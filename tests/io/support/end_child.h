// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

// There where the linker was told to want it: a weak reference takes nothing out of an archive.
extern "C" void __gcov_dump() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

namespace stepwell {

// Ends a forked child without running what its parent registered for its own end. Under
// tests/coverage what the child ran counts.
[[noreturn]] inline void EndChild(int status) {
  if (__gcov_dump != nullptr) __gcov_dump();
  _exit(status);
}

}  // namespace stepwell
