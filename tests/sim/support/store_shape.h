// SPDX-License-Identifier: Apache-2.0
// The shape of a run: sizes and numbers, drawn from its seed.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/support/store_machine.h"

namespace stepwell::sim {

struct Shape {
  uint64_t segment_bytes = uint64_t{192} << 10;
  uint64_t staging_blocks = 6;
  uint64_t first_steps = 0;    // small steps that are saved before anything else
  uint64_t tiny_percent = 0;   // of the saves: steps of a few bytes, in their frames alone
  uint64_t large_percent = 0;  // of the saves: steps of 1.2 MB
  uint64_t keep_max = 5;       // retention, where there is one, keeps 2 to so many
  size_t readers = 0;          // that stay open over many actions, at most
  uint64_t close_percent = 4;  // of the actions
  bool can_punch = true;
  bool with_index = false;
  bool squeezes = true;           // the disk is almost full at times
  std::string path = kStorePath;  // of the store
};

inline Shape UsualShape(uint64_t seed, bool with_index) {
  Shape shape;
  shape.can_punch = seed % 3 != 0;
  shape.with_index = with_index;
  return shape;
}
// Segments smaller and larger than a step, few live steps and ten thousand, readers that stay.
Shape ShapeOf(uint64_t seed);
std::string ToText(const Shape& shape);

}  // namespace stepwell::sim
