// SPDX-License-Identifier: Apache-2.0
// Choosing a chunk shape. Leading axes are split first, so a chunk of an array in C order is one
// contiguous run: axes before the split axis have extent 1, axes after it are whole. Exactly one
// axis is cut in parts, and the part is a divisor of the shard's length wherever one gives a chunk
// of 0.25 to 4 MiB.
#include "format/grid.h"

#include <algorithm>

namespace stepwell::format {
namespace {

constexpr uint64_t kChunkBytesMin = kChunkTargetBytes / 4;
constexpr uint64_t kElementsMax = uint64_t{1} << 62;

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t CeilDivide(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// How far `bytes` is from the target, as a ratio >= 1.
double Distance(uint64_t bytes) {
  const double ratio = static_cast<double>(bytes) / static_cast<double>(kChunkTargetBytes);
  return ratio > 1 ? ratio : 1 / ratio;
}

// The divisor c of `length` with c * inner_bytes in [kChunkBytesMin, kChunkBytesMax] that is
// nearest to the target, or 0. Looks for c or for length / c, whichever range is shorter.
uint64_t BestDivisor(uint64_t length, uint64_t inner_bytes) {
  const uint64_t part_min = std::max<uint64_t>(1, CeilDivide(kChunkBytesMin, inner_bytes));
  const uint64_t part_max = std::min(length, kChunkBytesMax / inner_bytes);
  if (part_min > part_max) return 0;
  uint64_t best = 0;
  const auto consider = [&](uint64_t part) {
    if (best == 0 || Distance(part * inner_bytes) < Distance(best * inner_bytes)) best = part;
  };
  const uint64_t count_min = CeilDivide(length, part_max);
  const uint64_t count_max = length / part_min;
  if (count_max < count_min) return 0;
  if (count_max - count_min < part_max - part_min) {
    for (uint64_t count = count_min; count <= count_max; ++count) {
      if (length % count == 0) consider(length / count);
    }
  } else {
    for (uint64_t part = part_max; part >= part_min; --part) {
      if (length % part == 0) consider(part);
    }
  }
  return best;
}

// ceil(length / count) near the target with padding of at most 2 %. Parts of 50 and more pad less
// than that whatever the count; for shorter parts all are tried. One always fits: 1 pads nothing.
uint64_t EvenPart(uint64_t length, uint64_t inner_bytes) {
  const uint64_t part_max = std::min(length, kChunkBytesMax / inner_bytes);
  const uint64_t target = std::clamp<uint64_t>(kChunkTargetBytes / inner_bytes, 1, part_max);
  uint64_t best = 1;
  const auto consider = [&](uint64_t part) {
    const uint64_t padding = (part - length % part) % part;
    if (padding > length / 50) return;
    if (Distance(part * inner_bytes) < Distance(best * inner_bytes)) best = part;
  };
  consider(CeilDivide(length, CeilDivide(length, target)));
  for (uint64_t part = 1; part <= std::min<uint64_t>(part_max, 256); ++part) consider(part);
  return best;
}

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

Shape ChooseChunkShape(std::span<const uint64_t> shape, uint64_t item_bytes,
                       std::span<const uint64_t> shard_shape) {
  const size_t rank = shape.size();
  Shape chunk(rank);
  for (size_t axis = 0; axis < rank; ++axis) {
    chunk[axis] = std::max<uint64_t>(1, shape[axis]);
    // Uneven shards would pad; then the borders of that axis are not kept.
    const uint64_t shard = shard_shape.size() == rank ? shard_shape[axis] : 0;
    if (shard > 0 && chunk[axis] % shard == 0) chunk[axis] = shard;
  }
  uint64_t bytes = std::max<uint64_t>(1, item_bytes);
  for (const uint64_t extent : chunk) bytes = SaturatingProduct(bytes, extent);
  if (bytes <= kChunkTargetBytes) return chunk;

  // Axes are taken from the last to the first while they fit; `inner` is the bytes of those after.
  uint64_t inner = std::max<uint64_t>(1, item_bytes);
  size_t axis = rank;
  while (axis > 0 && SaturatingProduct(inner, chunk[axis - 1]) <= kChunkTargetBytes) {
    inner *= chunk[--axis];
  }
  if (axis == 0) return chunk;  // not reached: the whole is over the target
  --axis;                       // the axis to cut: inner <= target < inner * chunk[axis]
  uint64_t part = BestDivisor(chunk[axis], inner);
  if (part == 0 && SaturatingProduct(inner, chunk[axis]) > kChunkBytesMax) {
    part = EvenPart(std::max<uint64_t>(1, shape[axis]), inner);
  }
  if (part != 0) chunk[axis] = part;
  std::fill(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(axis), uint64_t{1});
  return chunk;
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
