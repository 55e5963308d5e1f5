// SPDX-License-Identifier: Apache-2.0
// Simulated time: every look at the clock moves it by one tick, so that time never stands still.
#pragma once

#include <atomic>
#include <cstdint>

#include "io/clock.h"

namespace stepwell::sim {

class SimClock final : public io::Clock {
 public:
  explicit SimClock(int64_t tick_nanos = 1000) : tick_nanos_(tick_nanos) {}
  int64_t WallNanos() override { return wall_offset_nanos_ + Tick(); }
  int64_t MonotonicNanos() override { return Tick(); }
  void Advance(int64_t nanos) { now_nanos_ += nanos; }
  // The wall clock may jump, also back; the monotonic one does not.
  void JumpWall(int64_t nanos) { wall_offset_nanos_ += nanos; }

 private:
  int64_t Tick() { return now_nanos_ += tick_nanos_; }

  const int64_t tick_nanos_;
  std::atomic<int64_t> now_nanos_{0};
  std::atomic<int64_t> wall_offset_nanos_{1'700'000'000'000'000'000};
};

}  // namespace stepwell::sim
