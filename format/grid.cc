// SPDX-License-Identifier: Apache-2.0
// Arithmetic of a grid: which chunk has which elements.
#include "format/grid.h"

#include <algorithm>

namespace stepwell::format {
namespace {

constexpr uint64_t kElementsMax = uint64_t{1} << 62;

}  // namespace

Result<uint64_t> ElementCount(std::span<const uint64_t> shape, uint64_t item_bytes) {
  if (shape.size() > kRankMax) {
    return InvalidArgumentError(StrCat("rank ", shape.size(), "; the limit is ", kRankMax));
  }
  // Zero extents are left out, so that products of any axes stay in range.
  uint64_t bytes = std::max<uint64_t>(1, item_bytes);
  uint64_t count = 1;
  for (const uint64_t extent : shape) {
    bytes = SaturatingProduct(bytes, std::max<uint64_t>(1, extent));
    count *= extent;
  }
  if (bytes > kElementsMax) return InvalidArgumentError("an array of more than 2^62 bytes");
  return count;
}

Shape GridShape(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape) {
  Shape grid(shape.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    grid[axis] = CeilDivide(shape[axis], chunk_shape[axis]);
  }
  return grid;
}

uint64_t ChunkCount(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape) {
  uint64_t count = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    count *= CeilDivide(shape[axis], chunk_shape[axis]);
  }
  return count;
}

Shape ChunkOrigin(uint64_t chunk_index, std::span<const uint64_t> shape,
                  std::span<const uint64_t> chunk_shape) {
  Shape origin(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    const uint64_t extent = CeilDivide(shape[axis], chunk_shape[axis]);
    origin[axis] = chunk_index % extent * chunk_shape[axis];
    chunk_index /= extent;
  }
  return origin;
}

uint64_t ChunkBytes(std::span<const uint64_t> chunk_shape, uint64_t item_bytes) {
  uint64_t bytes = item_bytes;
  for (const uint64_t extent : chunk_shape) bytes = SaturatingProduct(bytes, extent);
  return bytes;
}

Box WholeArray(std::span<const uint64_t> shape) {
  return {Shape(shape.size(), 0), Shape(shape.begin(), shape.end())};
}

std::vector<uint64_t> ChunksInBox(const Box& box, std::span<const uint64_t> shape,
                                  std::span<const uint64_t> chunk_shape) {
  const size_t rank = shape.size();
  Shape first(rank);
  Shape last(rank);  // inclusive
  const Shape grid = GridShape(shape, chunk_shape);
  uint64_t count = 1;
  for (size_t axis = 0; axis < rank; ++axis) {
    const uint64_t stop = std::min(box.stop[axis], shape[axis]);
    if (box.start[axis] >= stop) return {};
    first[axis] = box.start[axis] / chunk_shape[axis];
    last[axis] = (stop - 1) / chunk_shape[axis];
    count *= last[axis] - first[axis] + 1;
  }
  std::vector<uint64_t> chunks;
  chunks.reserve(count);
  Shape at = first;
  while (chunks.size() < count) {
    uint64_t index = 0;
    for (size_t axis = 0; axis < rank; ++axis) index = index * grid[axis] + at[axis];
    chunks.push_back(index);
    for (size_t axis = rank; axis-- > 0;) {
      if (++at[axis] <= last[axis]) break;
      at[axis] = first[axis];
    }
  }
  return chunks;
}

std::vector<int64_t> CStrides(std::span<const uint64_t> shape, uint64_t item_bytes) {
  std::vector<int64_t> strides(shape.size());
  uint64_t stride = item_bytes;
  for (size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = static_cast<int64_t>(stride);
    stride *= std::max<uint64_t>(1, shape[axis]);
  }
  return strides;
}

bool ChunkIsContiguous(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape,
                       uint64_t chunk_index, uint64_t item_bytes, uint64_t* offset_bytes) {
  const Shape origin = ChunkOrigin(chunk_index, shape, chunk_shape);
  uint64_t stride = item_bytes;
  uint64_t offset = 0;
  bool cut = false;  // an axis after this one is not whole
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (origin[axis] + chunk_shape[axis] > shape[axis]) return false;  // padded
    if (cut && chunk_shape[axis] != 1) return false;
    cut = cut || chunk_shape[axis] != shape[axis];
    offset += origin[axis] * stride;
    stride *= shape[axis];
  }
  *offset_bytes = offset;
  return true;
}

}  // namespace stepwell::format
