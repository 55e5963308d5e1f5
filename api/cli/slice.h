// SPDX-License-Identifier: Apache-2.0
// NumPy's basic slicing, and how a selection is cut into parts that fit into memory. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <stepwell/result.h>

namespace stepwell::cli {

using Shape = std::vector<uint64_t>;

// Elements start, start + step, …, `count` of them, of one axis.
struct AxisRange {
  uint64_t start = 0;
  int64_t step = 1;
  uint64_t count = 0;
  bool dropped = false;  // an index, not a slice: the result lacks the axis

  uint64_t At(uint64_t i) const { return start + i * static_cast<uint64_t>(step); }
  AxisRange Part(uint64_t first, uint64_t part_count) const {
    return {At(first), step, part_count, dropped};
  }
};
using Ranges = std::vector<AxisRange>;  // one an axis

Ranges WholeRanges(const Shape& shape);
// "0:16, :, -1", "::2", "..., 3", with or without brackets. kInvalidArgument says which part is
// wrong, and why.
Result<Ranges> ParseSlice(const std::string& text, const Shape& shape);
// Extents of the selection, without the dropped axes.
Shape ResultShape(const Ranges& ranges);
// |step|, also of the smallest number.
uint64_t StepSize(const AxisRange& range);

// Cuts a selection into parts that follow each other in C order. From the first to the last element
// of a part there are at most `bytes_max` bytes of the array's box (at least one element), and
// parts end on chunk borders where they can, so that no chunk is read twice.
class SelectionBoxes {
 public:
  SelectionBoxes(Ranges ranges, Shape chunk_shape, uint64_t item_bytes, uint64_t bytes_max);
  // The next part; nothing after the last. An empty selection has none.
  std::optional<Ranges> Next();

 private:
  uint64_t CountAt(uint64_t first) const;

  const Ranges ranges_;
  const Shape chunk_shape_;
  size_t axis_ = 0;           // the one that is cut; those before it go index by index
  uint64_t inner_bytes_ = 0;  // of the box below one index of that axis
  const uint64_t bytes_max_;
  std::vector<uint64_t> next_;  // per axis up to axis_; empty when done
};

}  // namespace stepwell::cli
