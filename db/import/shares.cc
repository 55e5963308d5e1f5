// SPDX-License-Identifier: Apache-2.0
#include "db/import/shares.h"

#include <algorithm>
#include <bit>

namespace stepwell::db::import {
namespace {

using format::Shape;
// Many arrays of up to 2^62 bytes.
__extension__ using Bytes = unsigned __int128;

// Cells of a fair share: more make it more equal, and more pieces.
constexpr uint64_t kCellsPerShare = 16;

// An array in cells: C order over the grid.
class Cells {
 public:
  Cells(const ShareArray& array, uint64_t bytes_goal)
      : array_(array), cell_shape_(CellShape(array, bytes_goal)) {
    grid_ = format::GridShape(array.shape, cell_shape_);
    strides_.assign(grid_.size(), 1);
    for (size_t axis = grid_.size(); axis-- > 1;) {
      strides_[axis - 1] = strides_[axis] * grid_[axis];
    }
  }

  const Shape& cell_shape() const { return cell_shape_; }
  uint64_t count() const { return format::ChunkCount(array_.shape, cell_shape_); }

  // The bytes of the first `cell` cells.
  uint64_t BytesBefore(uint64_t cell) const {
    if (cell == count()) return format::ChunkBytes(array_.shape, array_.item_bytes);
    uint64_t elements = 0;
    for (size_t axis = 0; axis < grid_.size(); ++axis) {
      const uint64_t start = cell / strides_[axis] % grid_[axis] * cell_shape_[axis];
      uint64_t slab = start;  // what lies before, of the cells with the same indices so far
      for (size_t other = 0; other < grid_.size(); ++other) {
        if (other > axis) slab *= array_.shape[other];
        if (other < axis) slab *= ExtentAt(cell, other);
      }
      elements += slab;
    }
    return elements * array_.item_bytes;
  }

  // The cells from `begin` to `end` as boxes, each as large as it can be.
  std::vector<format::Box> Boxes(uint64_t begin, uint64_t end) const {
    std::vector<format::Box> boxes;
    if (grid_.empty() && begin < end) boxes.emplace_back();
    while (begin < end && !grid_.empty()) {
      size_t axis = 0;
      while (begin % strides_[axis] != 0 || end - begin < strides_[axis]) ++axis;
      const uint64_t index = begin / strides_[axis] % grid_[axis];
      const uint64_t number = std::min((end - begin) / strides_[axis], grid_[axis] - index);
      format::Box box = format::WholeArray(array_.shape);
      for (size_t other = 0; other <= axis; ++other) {
        box.start[other] = begin / strides_[other] % grid_[other] * cell_shape_[other];
        const uint64_t cells = other == axis ? number : 1;
        box.stop[other] =
            std::min(box.start[other] + cells * cell_shape_[other], array_.shape[other]);
      }
      boxes.push_back(std::move(box));
      begin += number * strides_[axis];
    }
    return boxes;
  }

 private:
  // Leading axes are cut first, in multiples of a stored chunk, until a cell has at most
  // `bytes_goal` bytes or is one stored chunk.
  static Shape CellShape(const ShareArray& array, uint64_t bytes_goal) {
    Shape cell = array.shape;
    for (size_t axis = 0; axis < cell.size(); ++axis) {
      if (format::ChunkBytes(cell, array.item_bytes) <= bytes_goal) break;
      if (array.chunk_shape[axis] >= array.shape[axis]) continue;
      cell[axis] = array.chunk_shape[axis];
      const uint64_t bytes = format::ChunkBytes(cell, array.item_bytes);
      // A power of two, so that our own chunks divide it more often than not.
      if (bytes < bytes_goal) cell[axis] *= std::bit_floor(bytes_goal / bytes);
    }
    return cell;
  }

  uint64_t ExtentAt(uint64_t cell, size_t axis) const {
    const uint64_t start = cell / strides_[axis] % grid_[axis] * cell_shape_[axis];
    return std::min(cell_shape_[axis], array_.shape[axis] - start);
  }

  const ShareArray& array_;
  Shape cell_shape_;
  Shape grid_;
  Shape strides_;  // in cells
};

bool IsEmpty(const Shape& shape) {
  return std::any_of(shape.begin(), shape.end(), [](uint64_t extent) { return extent == 0; });
}

}  // namespace

std::vector<DealtArray> DealArrays(std::span<const ShareArray> arrays, const ImportShare& share) {
  Bytes total = 0;
  const auto is_dealt = [&](const ShareArray& array) {
    return share.count > 1 && !array.only_first && !IsEmpty(array.shape);
  };
  for (const ShareArray& array : arrays) {
    if (is_dealt(array)) total += format::ChunkBytes(array.shape, array.item_bytes);
  }
  const Bytes fair = total / share.count / kCellsPerShare;
  const uint64_t bytes_goal =
      std::max(format::kChunkTargetBytes, static_cast<uint64_t>(std::min<Bytes>(fair, INT64_MAX)));
  std::vector<DealtArray> dealt;
  dealt.reserve(arrays.size());
  Bytes before = 0;
  for (const ShareArray& array : arrays) {
    DealtArray& given = dealt.emplace_back();
    if (!is_dealt(array)) {
      given.cell_shape = array.shape;
      if (share.index == 0) given.boxes.push_back(format::WholeArray(array.shape));
      continue;
    }
    const Cells cells(array, bytes_goal);
    // Of the middle of a cell, which is before the end of all.
    const auto share_of = [&](uint64_t cell) {
      const Bytes twice = 2 * before + cells.BytesBefore(cell) + cells.BytesBefore(cell + 1);
      return static_cast<uint32_t>(twice * share.count / (2 * total));
    };
    const auto first_of = [&](uint32_t wanted) {  // the first cell of this or a later share
      uint64_t low = 0;
      uint64_t high = cells.count();
      while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (share_of(middle) < wanted) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      return low;
    };
    given.first_share = share_of(0);
    given.last_share = share_of(cells.count() - 1);
    given.cell_shape = cells.cell_shape();
    given.boxes = cells.Boxes(first_of(share.index), first_of(share.index + 1));
    before += format::ChunkBytes(array.shape, array.item_bytes);
  }
  return dealt;
}

}  // namespace stepwell::db::import
