// SPDX-License-Identifier: Apache-2.0
#include "db/stats/histogram.h"

#include <algorithm>
#include <bit>

namespace stepwell::db {

size_t Histogram::StepOf(uint64_t us) {
  us = std::min(us, (uint64_t{1} << kBitsMax) - 1);
  const auto bits = static_cast<int>(std::bit_width(us));
  if (bits <= kStepBits) return us;
  const int shift = bits - 1 - kStepBits;  // leaves the leading one and kStepBits behind it
  return (static_cast<size_t>(shift) << kStepBits) + (us >> shift);
}

uint64_t Histogram::UpperEnd(size_t step) {
  constexpr size_t kExact = size_t{1} << kStepBits;
  if (step < 2 * kExact) return step;
  const size_t shift = (step >> kStepBits) - 1;
  const uint64_t first = kExact + (step & (kExact - 1));
  return ((first + 1) << shift) - 1;
}

void Histogram::Record(int64_t nanos) {
  const uint64_t us = nanos <= 0 ? 0 : static_cast<uint64_t>(nanos) / 1000;
  counts_[StepOf(us)].fetch_add(1, std::memory_order_relaxed);
  total_us_.fetch_add(us, std::memory_order_relaxed);
  uint64_t seen = max_us_.load(std::memory_order_relaxed);
  while (us > seen && !max_us_.compare_exchange_weak(seen, us, std::memory_order_relaxed)) {
  }
}

LatencyStats Histogram::Summary() const {
  std::array<uint64_t, kSteps> counts;
  LatencyStats out;
  for (size_t i = 0; i < kSteps; ++i) {
    counts[i] = counts_[i].load(std::memory_order_relaxed);
    out.count += counts[i];
  }
  out.total_us = total_us_.load(std::memory_order_relaxed);
  out.max_us = max_us_.load(std::memory_order_relaxed);
  const auto percentile = [&](uint64_t percent) -> uint64_t {
    // The smallest value that at least `percent` of all do not exceed.
    const uint64_t rank = std::max<uint64_t>((out.count * percent + 99) / 100, 1);
    uint64_t below = 0;
    for (size_t i = 0; i < kSteps; ++i) {
      below += counts[i];
      if (below >= rank) return std::min(UpperEnd(i), out.max_us);
    }
    return 0;
  };
  out.p50_us = percentile(50);
  out.p99_us = percentile(99);
  return out;
}

}  // namespace stepwell::db
