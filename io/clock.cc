// SPDX-License-Identifier: Apache-2.0
#include "io/clock.h"

#include <ctime>

namespace stepwell::io {
namespace {

int64_t Nanos(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

class MachineClock final : public Clock {
 public:
  int64_t WallNanos() override { return Nanos(CLOCK_REALTIME); }
  int64_t MonotonicNanos() override { return Nanos(CLOCK_MONOTONIC); }
};

}  // namespace

Clock* SystemClock() {
  static MachineClock clock;
  return &clock;
}

}  // namespace stepwell::io
