// SPDX-License-Identifier: Apache-2.0
#include "db/import/shares.h"

#include <algorithm>
#include <bit>

namespace stepwell::db::import {
namespace {

using format::Shape;
// Many arrays of up to 2^62 bytes.
__extension__ using Bytes = unsigned __int128;

// Boxes of a fair share: more make it more equal, and more pieces.
constexpr uint64_t kBoxesPerShare = 16;

// An array on a grid of boxes, in C order.
class BoxGrid {
 public:
  BoxGrid(const ShareArray& array, uint64_t bytes_goal)
      : array_(array), box_shape_(BoxShape(array, bytes_goal)) {
    grid_ = format::GridShape(array.shape, box_shape_);
    strides_.assign(grid_.size(), 1);
    for (size_t axis = grid_.size(); axis-- > 1;) {
      strides_[axis - 1] = strides_[axis] * grid_[axis];
    }
  }

  const Shape& box_shape() const { return box_shape_; }
  uint64_t count() const { return format::ChunkCount(array_.shape, box_shape_); }

  // The bytes of the first `index` boxes.
  uint64_t BytesBefore(uint64_t index) const {
    if (index == count()) return format::ChunkBytes(array_.shape, array_.item_bytes);
    uint64_t elements = 0;
    for (size_t axis = 0; axis < grid_.size(); ++axis) {
      const uint64_t start = index / strides_[axis] % grid_[axis] * box_shape_[axis];
      uint64_t before = start;  // elements of the boxes with the same indices so far
      for (size_t other = 0; other < grid_.size(); ++other) {
        if (other > axis) before *= array_.shape[other];
        if (other < axis) before *= ExtentAt(index, other);
      }
      elements += before;
    }
    return elements * array_.item_bytes;
  }

  // The boxes from `begin` to `end`, merged where they make a larger one.
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
        box.start[other] = begin / strides_[other] % grid_[other] * box_shape_[other];
        const uint64_t merged = other == axis ? number : 1;
        box.stop[other] =
            std::min(box.start[other] + merged * box_shape_[other], array_.shape[other]);
      }
      boxes.push_back(std::move(box));
      begin += number * strides_[axis];
    }
    return boxes;
  }

 private:
  // Leading axes are cut first, in multiples of a stored chunk, until a box has at most
  // `bytes_goal` bytes or is one stored chunk.
  static Shape BoxShape(const ShareArray& array, uint64_t bytes_goal) {
    Shape box = array.shape;
    for (size_t axis = 0; axis < box.size(); ++axis) {
      if (format::ChunkBytes(box, array.item_bytes) <= bytes_goal) break;
      if (array.chunk_shape[axis] >= array.shape[axis]) continue;
      box[axis] = array.chunk_shape[axis];
      const uint64_t bytes = format::ChunkBytes(box, array.item_bytes);
      // A power of two, so that our own chunks divide it more often than not.
      if (bytes < bytes_goal) box[axis] *= std::bit_floor(bytes_goal / bytes);
    }
    return box;
  }

  uint64_t ExtentAt(uint64_t index, size_t axis) const {
    const uint64_t start = index / strides_[axis] % grid_[axis] * box_shape_[axis];
    return std::min(box_shape_[axis], array_.shape[axis] - start);
  }

  const ShareArray& array_;
  Shape box_shape_;
  Shape grid_;
  Shape strides_;  // in boxes
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
  const Bytes fair = total / share.count / kBoxesPerShare;
  const uint64_t bytes_goal =
      std::max(format::kChunkTargetBytes, static_cast<uint64_t>(std::min<Bytes>(fair, INT64_MAX)));
  std::vector<DealtArray> dealt;
  dealt.reserve(arrays.size());
  Bytes before = 0;
  for (const ShareArray& array : arrays) {
    DealtArray& given = dealt.emplace_back();
    if (!is_dealt(array)) {
      given.box_shape = array.shape;
      if (share.index == 0) given.boxes.push_back(format::WholeArray(array.shape));
      continue;
    }
    const BoxGrid grid(array, bytes_goal);
    // Decides by the middle of a box, which is before the end of all.
    const auto share_of = [&](uint64_t index) {
      const Bytes twice = 2 * before + grid.BytesBefore(index) + grid.BytesBefore(index + 1);
      return static_cast<uint32_t>(twice * share.count / (2 * total));
    };
    const auto first_of = [&](uint32_t wanted) {  // the first box of this or a later share
      uint64_t low = 0;
      uint64_t high = grid.count();
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
    given.last_share = share_of(grid.count() - 1);
    given.box_shape = grid.box_shape();
    given.boxes = grid.Boxes(first_of(share.index), first_of(share.index + 1));
    before += format::ChunkBytes(array.shape, array.item_bytes);
  }
  return dealt;
}

}  // namespace stepwell::db::import
