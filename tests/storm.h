// SPDX-License-Identifier: Apache-2.0
// A test that repeats itself does so a little in tests/check, and at length in a storm of
// tests/soak, which sets $STEPWELL_STORM.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace stepwell {

inline uint64_t StormTimes() {
  const char* const times = std::getenv("STEPWELL_STORM");
  return times == nullptr ? 1 : std::strtoull(times, nullptr, 10);
}

// Returns how often to repeat: $STEPWELL_STORM times as often in a storm.
inline uint64_t InAStorm(uint64_t usual) { return usual * StormTimes(); }

// Each how many of the n-th calls: denser in a storm, up to each.
inline uint64_t Stride(uint64_t usual) { return (usual + StormTimes() - 1) / StormTimes(); }

}  // namespace stepwell
