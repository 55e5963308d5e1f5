// SPDX-License-Identifier: Apache-2.0
// Choosing a chunk shape. Leading axes are split first, so a chunk of a shard in C order is one
// contiguous run: axes before the split axis have extent 1, axes after it are whole. One axis is
// cut in parts, and the part is a divisor of the shard's length wherever one gives a chunk of 0.25
// to 4 MiB; where none does, several axes of a shard may be cut. A large array that is not sharded
// is cut as if it were, in eighths of each axis (EighthsOf).
#include <algorithm>

#include "format/grid.h"

namespace stepwell::format {
namespace {

// The desired size of a chunk in bytes; min <= target <= max.
struct Window {
  uint64_t min;
  uint64_t target;
  uint64_t max;
};
constexpr Window kUsual = {kChunkTargetBytes / 4, kChunkTargetBytes, kChunkBytesMax};
// Chunks of a shard below this cost more than the shard's own grid.
constexpr uint64_t kDividingBytesMin = kChunkTargetBytes / 16;

// Returns the distance of `bytes` from the target, as a ratio >= 1.
double Distance(uint64_t bytes, uint64_t target) {
  const double ratio = static_cast<double>(bytes) / static_cast<double>(target);
  return ratio > 1 ? ratio : 1 / ratio;
}

// The divisor c of `length` with c * inner_bytes in the window that is nearest to the target, or 0.
// Looks for c or for length / c, whichever range is shorter.
uint64_t BestDivisor(uint64_t length, uint64_t inner_bytes, const Window& window) {
  const uint64_t part_min = std::max<uint64_t>(1, CeilDivide(window.min, inner_bytes));
  const uint64_t part_max = std::min(length, window.max / inner_bytes);
  if (part_min > part_max) return 0;
  uint64_t best = 0;
  const auto consider = [&](uint64_t part) {
    if (best == 0 ||
        Distance(part * inner_bytes, window.target) < Distance(best * inner_bytes, window.target)) {
      best = part;
    }
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
uint64_t EvenPart(uint64_t length, uint64_t inner_bytes, const Window& window) {
  const uint64_t part_max = std::min(length, window.max / inner_bytes);
  const uint64_t target = std::clamp<uint64_t>(window.target / inner_bytes, 1, part_max);
  uint64_t best = 1;
  const auto consider = [&](uint64_t part) {
    const uint64_t padding = (part - length % part) % part;
    if (padding > length / 50) return;
    if (Distance(part * inner_bytes, window.target) < Distance(best * inner_bytes, window.target)) {
      best = part;
    }
  };
  consider(CeilDivide(length, CeilDivide(length, target)));
  for (uint64_t part = 1; part <= std::min<uint64_t>(part_max, 256); ++part) consider(part);
  return best;
}

// One shard as a chunk, whatever its size; extents >= 1. Uneven shards would pad: the borders of
// such an axis are not kept.
Shape ShardAsChunk(std::span<const uint64_t> shape, std::span<const uint64_t> shard_shape) {
  Shape chunk(shape.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    chunk[axis] = std::max<uint64_t>(1, shape[axis]);
    const uint64_t shard = shard_shape.size() == shape.size() ? shard_shape[axis] : 0;
    if (shard > 0 && chunk[axis] % shard == 0) chunk[axis] = shard;
  }
  return chunk;
}

// At most window.max bytes: divisors on every axis, from the last to the first as long as the
// chunk is below the window.
Shape Divide(std::span<const uint64_t> shard, uint64_t item_bytes, const Window& window) {
  Shape chunk(shard.size(), 1);
  uint64_t bytes = std::max<uint64_t>(1, item_bytes);
  for (size_t axis = shard.size(); axis-- > 0 && bytes < window.min;) {
    const uint64_t length = std::max<uint64_t>(1, shard[axis]);
    if (SaturatingProduct(bytes, length) <= window.target) {
      chunk[axis] = length;
    } else {
      chunk[axis] = BestDivisor(length, bytes, {1, window.target, window.max});
    }
    bytes *= chunk[axis];
  }
  return chunk;
}

// Arrays below this are read whole, or almost, as fast as their parts.
constexpr uint64_t kEighthsBytesMin = uint64_t{16} << 20;
// Copies of shorter runs are slower than those of whole rows.
constexpr uint64_t kRunBytesMin = 1024;

// A part of an axis of which an eighth consists of whole ones, or nearly: an eighth, or the largest
// divisor of which there are up to 64, or all of it where there is none.
uint64_t Eighth(uint64_t length) {
  if (length <= 8) return 1;
  for (uint64_t count = 8; count <= std::min<uint64_t>(64, length); ++count) {
    if (length % count == 0) return length / count;
  }
  return length;
}

// The shards that an array on one device is cut as, so that an eighth along any axis has chunks of
// its own. Empty: as one. Slices along leading axes of a MiB or more, as layers of a stack, have
// their own chunks anyway.
Shape EighthsOf(std::span<const uint64_t> shape, uint64_t item_bytes) {
  if (std::find(shape.begin(), shape.end(), uint64_t{0}) != shape.end()) return {};
  uint64_t bytes = std::max<uint64_t>(1, item_bytes);
  size_t first = shape.size();  // the first axis that is not such a leading one
  while (first > 0 && bytes < kChunkTargetBytes) bytes = SaturatingProduct(bytes, shape[--first]);
  if (bytes < kEighthsBytesMin) return {};
  Shape part(shape.size(), 1);
  for (size_t axis = first; axis < shape.size(); ++axis) part[axis] = Eighth(shape[axis]);
  while (part.back() * item_bytes < kRunBytesMin && part.back() < shape.back()) {
    part.back() = shape.back() % (2 * part.back()) == 0 ? 2 * part.back() : shape.back();
  }
  // Small ones are joined along the axis that has been joined least, the last of several.
  while (ChunkBytes(part, item_bytes) < kUsual.min) {
    size_t best = shape.size();
    for (size_t axis = shape.size(); axis-- > first;) {
      if (shape[axis] % (2 * part[axis]) != 0) continue;
      if (best == shape.size() || shape[axis] / part[axis] > shape[best] / part[best]) best = axis;
    }
    if (best == shape.size()) return {};
    part[best] *= 2;
  }
  return part;
}

// The chunk shape of a shard, or of an array that is one.
Shape ChunkShapeOfShard(std::span<const uint64_t> shape, uint64_t item_bytes,
                        std::span<const uint64_t> shard_shape) {
  const size_t rank = shape.size();
  Shape chunk = ShardAsChunk(shape, shard_shape);
  if (ChunkBytes(chunk, std::max<uint64_t>(1, item_bytes)) <= kChunkTargetBytes) return chunk;

  // Axes are taken from the last to the first while they fit; `inner` is the bytes of those after.
  uint64_t inner = std::max<uint64_t>(1, item_bytes);
  size_t axis = rank;
  while (axis > 0 && SaturatingProduct(inner, chunk[axis - 1]) <= kChunkTargetBytes) {
    inner *= chunk[--axis];
  }
  if (axis == 0) return chunk;  // not reached: the whole is over the target
  --axis;                       // the axis to cut: inner <= target < inner * chunk[axis]
  uint64_t part = BestDivisor(chunk[axis], inner, kUsual);
  if (part == 0 && SaturatingProduct(inner, chunk[axis]) > kChunkBytesMax) {
    if (chunk != ShardAsChunk(shape, {})) {
      Shape divided = Divide(chunk, item_bytes, kUsual);
      if (ChunkBytes(divided, item_bytes) >= kUsual.min) return divided;
    }
    part = EvenPart(std::max<uint64_t>(1, shape[axis]), inner, kUsual);
  }
  if (part != 0) chunk[axis] = part;
  std::fill(chunk.begin(), chunk.begin() + static_cast<std::ptrdiff_t>(axis), uint64_t{1});
  return chunk;
}

}  // namespace

Shape ChooseChunkShape(std::span<const uint64_t> shape, uint64_t item_bytes,
                       std::span<const uint64_t> shard_shape) {
  const bool is_sharded = !shard_shape.empty() && !std::ranges::equal(shape, shard_shape);
  if (is_sharded) return ChunkShapeOfShard(shape, item_bytes, shard_shape);
  return ChunkShapeOfShard(shape, item_bytes, EighthsOf(shape, item_bytes));
}

std::optional<Shape> DividingChunkShape(std::span<const uint64_t> shard_shape,
                                        uint64_t item_bytes) {
  const Shape usual = ChunkShapeOfShard(shard_shape, item_bytes, {});
  bool divides = true;
  for (size_t axis = 0; axis < usual.size(); ++axis) {
    divides = divides && shard_shape[axis] % usual[axis] == 0;
  }
  if (divides && ChunkBytes(usual, item_bytes) >= kDividingBytesMin) return usual;
  Shape divided = Divide(shard_shape, item_bytes, kUsual);
  const bool whole = std::equal(divided.begin(), divided.end(), shard_shape.begin());
  if (!whole && ChunkBytes(divided, item_bytes) < kDividingBytesMin) return std::nullopt;
  return divided;
}

Result<Shape> ChunkShapeWithin(std::span<const uint64_t> shape, uint64_t item_bytes,
                               std::span<const uint64_t> shard_shape, uint64_t bytes_max,
                               std::span<const uint32_t> axes) {
  if (bytes_max < kChunkBytesAskedMin || bytes_max > kChunkBytesMax) {
    return InvalidArgumentError(StrCat("chunks of at most ", bytes_max, " bytes were asked for; ",
                                       kChunkBytesAskedMin, " to ", kChunkBytesMax,
                                       " bytes are possible"));
  }
  Shape chunk = ShardAsChunk(shape, shard_shape);
  uint64_t bytes = ChunkBytes(chunk, std::max<uint64_t>(1, item_bytes));
  std::vector<uint32_t> order(axes.begin(), axes.end());
  for (uint32_t axis = 0; axes.empty() && axis < shape.size(); ++axis) order.push_back(axis);
  for (const uint32_t axis : order) {
    if (bytes > bytes_max && axis >= shape.size()) {
      return InvalidArgumentError(StrCat("chunks are to be cut along axis ", axis,
                                         " of an array of ",
                                         Counted(shape.size(), "axis", "axes")));
    }
  }
  for (const uint32_t axis : order) {
    if (bytes <= bytes_max) break;
    // The axis in as few parts as fit. Where no divisor is near that, the last part is padded (by
    // some 15 % of the axis at most: short axes have near divisors).
    const uint64_t inner = bytes / chunk[axis];
    uint64_t part = 1;
    if (inner <= bytes_max) {
      part = BestDivisor(chunk[axis], inner, {bytes_max / 4, bytes_max, bytes_max});
      const uint64_t length = std::max<uint64_t>(1, shape[axis]);
      if (part == 0) part = CeilDivide(length, CeilDivide(length, bytes_max / inner));
    }
    chunk[axis] = part;
    bytes = inner * part;
  }
  if (bytes > bytes_max) {
    return InvalidArgumentError(StrCat("cut along the given axes its chunks have at least ", bytes,
                                       " bytes; at most ", bytes_max,
                                       " were asked for: give more axes"));
  }
  return chunk;
}

}  // namespace stepwell::format
