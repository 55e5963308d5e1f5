// SPDX-License-Identifier: Apache-2.0
// The chunk grid of an array, and copies between an array in memory and its chunks.
//
// A chunk is always full: C-order, little-endian, edge chunks padded with zeros (zarr). Rule of the
// grid: axes are split evenly, leading axes first, into chunks of about 1 MiB (0.25 to 4 MiB),
// on shard borders, with padding of at most 2 %. Large arrays that are not sharded are also split
// on the borders of eighths of each axis.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/dtype.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

using Shape = std::vector<uint64_t>;

inline constexpr size_t kRankMax = 64;
inline constexpr uint64_t kChunkTargetBytes = uint64_t{1} << 20;
inline constexpr uint64_t kChunkBytesMax = uint64_t{4} << 20;

constexpr uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}
constexpr uint64_t CeilDivide(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Number of elements (1 for rank 0) or kInvalidArgument when the product, or its size in bytes,
// exceeds 2^62 or the rank exceeds kRankMax.
Result<uint64_t> ElementCount(std::span<const uint64_t> shape, uint64_t item_bytes);

// The chunk shape for an array; `shard_shape` (same rank, or empty: the whole array) is the shape
// of one shard, whose borders chunks keep (but see the rule of the grid: a shard without a fair
// divisor has chunks that straddle its borders). Every extent >= 1. The chunk is never over
// kChunkBytesMax.
Shape ChooseChunkShape(std::span<const uint64_t> shape, uint64_t item_bytes,
                       std::span<const uint64_t> shard_shape = {});
// A chunk shape that divides the shard on every axis, so that every chunk lies in one shard: near
// the target, at most kChunkBytesMax. None where the best would be below 64 KiB and a fraction of
// the shard (long axes without divisors): such shards need grids of their own.
std::optional<Shape> DividingChunkShape(std::span<const uint64_t> shard_shape, uint64_t item_bytes);
// The chunk shape that a caller asks for: one shard, cut along `axes` (in this order; empty: all,
// leading axes first) in as few parts as make chunks of at most `bytes_max` bytes. Borders are kept
// where the shard's length has a divisor of that size. kInvalidArgument when the axes do not
// suffice, or the bytes are out of range.
inline constexpr uint64_t kChunkBytesAskedMin = 4096;
Result<Shape> ChunkShapeWithin(std::span<const uint64_t> shape, uint64_t item_bytes,
                               std::span<const uint64_t> shard_shape, uint64_t bytes_max,
                               std::span<const uint32_t> axes);

// ceil(shape / chunk_shape) per axis; a zero extent gives 0 chunks. Rank 0: {}.
Shape GridShape(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape);
// Product of GridShape: 1 for rank 0, 0 for zero-size arrays.
uint64_t ChunkCount(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape);
// Element index of the first element of chunk `chunk_index` (C order over the grid).
Shape ChunkOrigin(uint64_t chunk_index, std::span<const uint64_t> shape,
                  std::span<const uint64_t> chunk_shape);
uint64_t ChunkBytes(std::span<const uint64_t> chunk_shape, uint64_t item_bytes);

// A box of elements: start <= i < stop on every axis.
struct Box {
  Shape start;
  Shape stop;
};
Box WholeArray(std::span<const uint64_t> shape);
// Chunk indices, ascending, whose elements meet `box` (none when the box is empty).
std::vector<uint64_t> ChunksInBox(const Box& box, std::span<const uint64_t> shape,
                                  std::span<const uint64_t> chunk_shape);

// Array memory with byte strides (any sign); `data` is element (0, 0, ...).
struct StridedArray {
  const std::byte* data = nullptr;
  std::span<const uint64_t> shape;
  std::span<const int64_t> strides_bytes;
};
struct MutableStridedArray {
  std::byte* data = nullptr;
  std::span<const uint64_t> shape;  // of the destination region (the box's extents)
  std::span<const int64_t> strides_bytes;
};
std::vector<int64_t> CStrides(std::span<const uint64_t> shape, uint64_t item_bytes);

// Writes chunk `chunk_index` of `array` to `out` (ChunkBytes long), zero-padded at the edges.
// Sub-byte types are stored with zero high bits, bools as 0 or 1. The common case of
// whole contiguous rows is one memcpy.
void GatherChunk(const StridedArray& array, const DTypeInfo& dtype,
                 std::span<const uint64_t> chunk_shape, uint64_t chunk_index, std::byte* out);
// The same for an array of `shape` of which `part` has the box that begins at `origin`: copies only
// what the box has of the chunk, and pads nothing.
void GatherChunkPart(const StridedArray& part, std::span<const uint64_t> origin,
                     std::span<const uint64_t> shape, const DTypeInfo& dtype,
                     std::span<const uint64_t> chunk_shape, uint64_t chunk_index, std::byte* out);
// Returns true if the chunk is one contiguous, unpadded run of the C-contiguous array; a read can
// then go straight to memory. Also gives the run's offset in the array, in bytes.
bool ChunkIsContiguous(std::span<const uint64_t> shape, std::span<const uint64_t> chunk_shape,
                       uint64_t chunk_index, uint64_t item_bytes, uint64_t* offset_bytes);
// Copies the part of a decoded chunk that lies in `box` to `out`, whose element 0 is box.start.
// Sub-byte types come out with zero high bits, as ml_dtypes 0.6 and JAX hold them (-8 as int4 is
// 0x08; all versions read 0xF8 as the same value).
void ScatterChunk(ConstBytes chunk, const DTypeInfo& dtype, std::span<const uint64_t> shape,
                  std::span<const uint64_t> chunk_shape, uint64_t chunk_index, const Box& box,
                  const MutableStridedArray& out);

}  // namespace stepwell::format
