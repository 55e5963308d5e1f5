// SPDX-License-Identifier: Apache-2.0
// splitmix64: the same numbers on every machine, so that a seed is one run everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepwell {

class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Uniform enough in [0, bound); `bound` > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  bool Coin() { return (Next() >> 63) != 0; }
  std::vector<std::byte> Bytes(size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(Next() & 0xFF);
    return bytes;
  }

 private:
  uint64_t state_;
};

}  // namespace stepwell
