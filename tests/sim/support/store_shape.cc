// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_shape.h"

#include "io/bytes.h"
#include "tests/prng.h"

namespace stepwell::sim {

Shape ShapeOf(uint64_t seed) {
  Prng prng(seed ^ 0x5EA9E);
  Shape shape;
  static constexpr uint64_t kKiB[] = {24, 24, 24, 48, 96, 192, 1024, 4096};
  shape.segment_bytes = kKiB[prng.Below(std::size(kKiB))] << 10;
  shape.staging_blocks = 4 + prng.Below(4);
  static constexpr uint64_t kTinyPercent[] = {0, 0, 30, 90};
  shape.tiny_percent = kTinyPercent[prng.Below(std::size(kTinyPercent))];
  if (prng.OneIn(8)) shape.large_percent = 10;
  // A catalog names every live step, so many steps want larger segments.
  if (prng.OneIn(10)) shape.first_steps = 50 + prng.Below(350);
  if (prng.OneIn(100)) shape.first_steps = 1000 + prng.Below(2000);
  // Uses a generator of its own, so that the other seeds' shapes stay.
  if (Prng many(seed ^ 0x10'000); many.OneIn(400)) shape.first_steps = 10'000 + many.Below(3000);
  if (shape.first_steps > 0) {
    shape.tiny_percent = 90;
    shape.large_percent = 0;
    shape.segment_bytes = shape.first_steps < 100 ? uint64_t{192} << 10 : uint64_t{4} << 20;
  }
  shape.keep_max = prng.OneIn(3) ? 5 : 5 + shape.first_steps + prng.Below(20);
  shape.readers = prng.Coin() ? 0 : 1 + prng.Below(4);
  static constexpr uint64_t kClosePercent[] = {1, 4, 4, 15};
  shape.close_percent = kClosePercent[prng.Below(std::size(kClosePercent))];
  shape.can_punch = !prng.OneIn(3);
  return shape;
}

std::string ToText(const Shape& shape) {
  return StrCat("segments of ", shape.segment_bytes >> 10, " KiB, ", shape.first_steps,
                " steps first, ", shape.tiny_percent, "% tiny, ", shape.large_percent, "% large, ",
                shape.readers, " readers, keep to ", shape.keep_max,
                shape.can_punch ? "" : ", no holes", shape.with_index ? ", index" : "");
}

}  // namespace stepwell::sim
