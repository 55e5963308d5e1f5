// SPDX-License-Identifier: Apache-2.0
// Bounds on what a piece of code may allocate, in either mode, with or without sanitizers. What
// the counter sees: malloc (operator new without AddressSanitizer) of every thread, not mmap. With
// STEPWELL_FUZZ_MEMORY in the environment it says what was taken, for setting budgets.
#pragma once

#include <cstddef>

namespace stepwell::fuzz {

struct MemoryBudget {
  size_t fixed_bytes = 0;
  size_t per_input_byte = 0;
};

// While it lives, one allocation above `single`, or more than `total` in all (freed or not),
// aborts where it happens. One at a time.
class MemoryLimit {
 public:
  MemoryLimit(size_t input_bytes, const MemoryBudget& single, const MemoryBudget& total);
  ~MemoryLimit();
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
};

}  // namespace stepwell::fuzz
