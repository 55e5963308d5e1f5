// SPDX-License-Identifier: Apache-2.0
// Latencies in logarithmic steps of at most 1/16. Thread-safe; recording is a few relaxed atomic
// additions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "db/store.h"

namespace stepwell::db {

class Histogram {
 public:
  void Record(int64_t nanos);
  // What was recorded so far. A percentile is the upper end of its step, at most the maximum.
  LatencyStats Summary() const;

 private:
  // Below 16 microseconds each has its own step, above 16 steps to each power of two, to 2^40.
  static constexpr int kStepBits = 4;
  static constexpr int kBitsMax = 40;
  static constexpr size_t kSteps = (kBitsMax - kStepBits + 1) << kStepBits;
  static size_t StepOf(uint64_t us);
  static uint64_t UpperEnd(size_t step);

  std::array<std::atomic<uint64_t>, kSteps> counts_{};
  std::atomic<uint64_t> total_us_{0};
  std::atomic<uint64_t> max_us_{0};
};

}  // namespace stepwell::db
