// SPDX-License-Identifier: Apache-2.0
// The seeds of a soak, from outside.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace stepwell::sim {

// Reads STEPWELL_SIM_SEED and STEPWELL_SIM_ROUNDS; false if neither is set.
inline bool SeedsFromOutside(uint64_t* first, uint64_t* rounds) {
  const char* seed_text = std::getenv("STEPWELL_SIM_SEED");
  const char* rounds_text = std::getenv("STEPWELL_SIM_ROUNDS");
  if (seed_text != nullptr) *first = std::strtoull(seed_text, nullptr, 10);
  if (rounds_text != nullptr) *rounds = std::strtoull(rounds_text, nullptr, 10);
  return seed_text != nullptr || rounds_text != nullptr;
}

}  // namespace stepwell::sim
