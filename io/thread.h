// SPDX-License-Identifier: Apache-2.0
// Starts the library's threads. A machine that has no thread to give is an error that says which
// limit may be the reason, never an exception.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "io/result.h"

namespace stepwell::io {

// A thread called `name` (at most 15 characters) that runs `body`, which must not throw. An error
// has the errno of the system, mostly EAGAIN, and leaves nothing behind.
Result<std::thread> StartThread(const std::string& name, std::function<void()> body);

// Lowers the priority of the calling thread alone: nice 5 more than it has. That needs no right,
// and there is no way back without one.
void YieldToOthers();

// For tests: asked before each start; on false that one fails as if the system had no more threads.
// Empty: every start is tried. Set it while no other thread starts any.
void SetThreadStartHook(std::function<bool()> may_start);

}  // namespace stepwell::io
