// SPDX-License-Identifier: Apache-2.0
// A loop whose calls run on several threads.
#pragma once

#include <cstddef>
#include <functional>

#include "io/executor.h"

namespace stepwell::io {

// Calls `work(i, thread)` once for each i below `count`, on this thread, whose number is 0, and on
// those of the executor that have nothing else to do; returns when all calls have. A thread's
// number is its own for the call of ForEach, and below ThreadsOfForEach. `work` does not throw.
void ForEach(Executor* executor, size_t count, const std::function<void(size_t, size_t)>& work);
inline size_t ThreadsOfForEach(const Executor& executor) { return executor.parallelism() + 1; }

}  // namespace stepwell::io
