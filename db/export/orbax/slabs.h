// SPDX-License-Identifier: Apache-2.0
// An array in parts that follow each other in C order. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "format/grid.h"

namespace stepwell::db {

// Boxes of at most `bytes_max` (or one element), which end on chunk borders where they can, so that
// hardly a chunk is read twice. An array without elements has none.
class ArraySlabs {
 public:
  ArraySlabs(format::Shape shape, format::Shape chunk_shape, uint64_t item_bytes,
             uint64_t bytes_max);
  // The next one; nothing after the last.
  std::optional<format::Box> Next();

 private:
  const format::Shape shape_;
  const format::Shape chunk_shape_;
  size_t axis_ = 0;         // the one that is cut; those before it go index by index
  uint64_t count_max_ = 1;  // of its indices in a slab
  bool done_ = false;
  format::Shape next_;  // of the next slab, up to axis_
};

}  // namespace stepwell::db
