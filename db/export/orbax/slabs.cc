// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/slabs.h"

#include <algorithm>
#include <utility>

namespace stepwell::db {

ArraySlabs::ArraySlabs(format::Shape shape, format::Shape chunk_shape, uint64_t item_bytes,
                       uint64_t bytes_max)
    : shape_(std::move(shape)), chunk_shape_(std::move(chunk_shape)) {
  done_ = std::find(shape_.begin(), shape_.end(), 0U) != shape_.end();
  if (done_ || shape_.empty()) return;
  // The first axis of which one index has no more than `bytes_max` below it.
  uint64_t below_bytes = item_bytes;
  for (axis_ = shape_.size() - 1; axis_ > 0 && below_bytes * shape_[axis_] <= bytes_max; --axis_) {
    below_bytes *= shape_[axis_];
  }
  count_max_ = std::max<uint64_t>(bytes_max / below_bytes, 1);
  if (count_max_ > chunk_shape_[axis_]) count_max_ -= count_max_ % chunk_shape_[axis_];
  next_.assign(axis_ + 1, 0);
}

std::optional<format::Box> ArraySlabs::Next() {
  if (done_) return std::nullopt;
  format::Box box = format::WholeArray(shape_);
  if (shape_.empty()) {
    done_ = true;
    return box;
  }
  for (size_t axis = 0; axis < axis_; ++axis) {
    box.start[axis] = next_[axis];
    box.stop[axis] = next_[axis] + 1;
  }
  box.start[axis_] = next_[axis_];
  box.stop[axis_] = std::min(next_[axis_] + count_max_, shape_[axis_]);
  next_[axis_] = box.stop[axis_];
  for (size_t axis = axis_; next_[axis] == shape_[axis]; --axis) {
    if (axis == 0) {
      done_ = true;
      break;
    }
    next_[axis] = 0;
    ++next_[axis - 1];
  }
  return box;
}

}  // namespace stepwell::db
