// SPDX-License-Identifier: Apache-2.0
// Clock: wall and monotonic time behind an interface, so that the simulation owns time.
#pragma once

#include <cstdint>

namespace stepwell::io {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t WallNanos() = 0;       // since the Unix epoch
  virtual int64_t MonotonicNanos() = 0;  // never goes back
};

Clock* SystemClock();  // a process-wide instance

}  // namespace stepwell::io
