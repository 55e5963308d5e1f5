// SPDX-License-Identifier: Apache-2.0
// Which process of several reads which boxes of a checkpoint's arrays (DESIGN.md, "Import"). Pure:
// every process computes its own share, and nothing is asked of anybody. Private to db/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "db/import/import.h"
#include "format/grid.h"

namespace stepwell::db::import {

struct ShareArray {
  format::Shape shape;
  format::Shape chunk_shape;  // of the stored values: none is read by two
  uint64_t item_bytes = 1;
  bool only_first = false;  // for the first share, whatever its size
};

struct DealtArray {
  uint32_t first_share = 0;  // the shares that have some of it
  uint32_t last_share = 0;
  // Borders of boxes are multiples of it: whole stored values, or the array's end.
  format::Shape box_shape;
  // The boxes of the requested share, ascending by origin. Adjacent boxes of the grid are merged.
  std::vector<format::Box> boxes;
  size_t first_box = 0;  // the index of the first among the boxes of all arrays
};

// The arrays lie one behind another, each on a grid of boxes, and the shares are equal stretches of
// that line: a share has the boxes whose middle is in its stretch. So it has at most its part of
// all bytes and the largest box. Arrays without elements are the first share's.
std::vector<DealtArray> DealArrays(std::span<const ShareArray> arrays, const ImportShare& share);

}  // namespace stepwell::db::import
