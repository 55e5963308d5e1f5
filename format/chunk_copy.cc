// SPDX-License-Identifier: Apache-2.0
// Copies between arrays and chunks: one strided copy of a box of elements. Axes that both sides
// hold contiguously are merged first, so that the inner loop is a memcpy of whole rows (of the
// whole chunk, where it is one run).
#include <emmintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "format/grid.h"

namespace stepwell::format {
namespace {

struct Axis {
  uint64_t extent;
  int64_t to_stride;  // bytes
  int64_t from_stride;
};

// The correction of one-byte elements during a copy.
enum class Fix { kNone, kBool, kMask2, kMask4 };

std::byte Apply(Fix fix, std::byte value) {
  const auto bits = std::to_integer<uint8_t>(value);
  switch (fix) {
    case Fix::kNone:
      return value;
    case Fix::kBool:
      return std::byte{static_cast<uint8_t>(bits != 0)};
    case Fix::kMask2:
      return value & std::byte{0x03};
    case Fix::kMask4:
      return value & std::byte{0x0F};
  }
  return value;
}

template <Fix kFix>
void FixRow(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
            uint64_t count) {
  if (to_stride == 1 && from_stride == 1) {  // vectorized
    for (uint64_t i = 0; i < count; ++i) to[i] = Apply(kFix, from[i]);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const auto at = static_cast<int64_t>(i);
    to[at * to_stride] = Apply(kFix, from[at * from_stride]);
  }
}

template <size_t kItemBytes>
void CopyRow(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride,
             uint64_t count) {
  if (to_stride == kItemBytes && from_stride == kItemBytes) {
    std::memcpy(to, from, count * kItemBytes);
    return;
  }
  // Pointers past the last element are never formed: strides may lead out of the array.
  for (uint64_t i = 0; i < count; ++i) {
    const auto at = static_cast<int64_t>(i);
    std::memcpy(to + at * to_stride, from + at * from_stride, kItemBytes);
  }
}

// Boxes below this stay in the cache until they are read again.
constexpr uint64_t kStreamedBytesMin = uint64_t{256} << 10;
constexpr uint64_t kStreamedRowBytesMin = 4096;
constexpr uint64_t kCacheLineBytes = 64;

// Copies a row past the cache, which memcpy does for much longer ones only: else each line of `to`
// would be read first. The row `next_bytes` behind this one is fetched meanwhile: no processor
// foresees it. Call _mm_sfence behind the last row.
void StreamRow(std::byte* to, const std::byte* from, uint64_t bytes, int64_t next_bytes) {
  const uint64_t whole = reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0
                             ? AlignDown(bytes, kCacheLineBytes)
                             : 0;
  for (uint64_t at = 0; at < whole; at += kCacheLineBytes) {
    const auto* const line = reinterpret_cast<const __m128i*>(from + at);
    auto* const out = reinterpret_cast<__m128i*>(to + at);
    _mm_prefetch(reinterpret_cast<const char*>(from + at) + next_bytes, _MM_HINT_T0);
    const __m128i parts[] = {_mm_loadu_si128(line), _mm_loadu_si128(line + 1),
                             _mm_loadu_si128(line + 2), _mm_loadu_si128(line + 3)};
    _mm_stream_si128(out, parts[0]);
    _mm_stream_si128(out + 1, parts[1]);
    _mm_stream_si128(out + 2, parts[2]);
    _mm_stream_si128(out + 3, parts[3]);
  }
  std::memcpy(to + whole, from + whole, bytes - whole);
}

using RowFunction = void (*)(std::byte*, int64_t, const std::byte*, int64_t, uint64_t);

RowFunction ChooseRow(uint8_t item_bytes, Fix fix) {
  switch (fix) {
    case Fix::kBool:
      return FixRow<Fix::kBool>;
    case Fix::kMask2:
      return FixRow<Fix::kMask2>;
    case Fix::kMask4:
      return FixRow<Fix::kMask4>;
    case Fix::kNone:
      break;
  }
  switch (item_bytes) {
    case 1:
      return CopyRow<1>;
    case 2:
      return CopyRow<2>;
    case 4:
      return CopyRow<4>;
    case 8:
      return CopyRow<8>;
    default:
      return CopyRow<16>;
  }
}

// `axes` from the outermost to the innermost, no extent zero; the array has room for kRankMax.
void CopyBox(std::byte* to, const std::byte* from, std::array<Axis, kRankMax>& axes, size_t rank,
             uint8_t item_bytes, Fix fix) {
  size_t count = 0;  // merged axes
  for (size_t i = 0; i < rank; ++i) {
    const Axis axis = axes[i];
    if (axis.extent == 1) continue;
    if (count > 0) {
      Axis& outer = axes[count - 1];
      const auto extent = static_cast<int64_t>(axis.extent);
      if (outer.to_stride == axis.to_stride * extent &&
          outer.from_stride == axis.from_stride * extent) {
        outer = {outer.extent * axis.extent, axis.to_stride, axis.from_stride};
        continue;
      }
    }
    axes[count++] = axis;
  }
  const RowFunction copy_row = ChooseRow(item_bytes, fix);
  if (count == 0) {
    copy_row(to, item_bytes, from, item_bytes, 1);
    return;
  }
  const Axis row = axes[count - 1];
  const uint64_t row_bytes = row.extent * item_bytes;
  uint64_t rows = 1;
  for (size_t axis = 0; axis + 1 < count; ++axis) rows *= axes[axis].extent;
  const bool streamed = fix == Fix::kNone && row.to_stride == item_bytes &&
                        row.from_stride == item_bytes && row_bytes >= kStreamedRowBytesMin &&
                        rows * row_bytes >= kStreamedBytesMin;
  const int64_t next_bytes = count > 1 ? axes[count - 2].from_stride : 0;
  std::array<uint64_t, kRankMax> at{};
  for (;;) {
    if (streamed) {
      StreamRow(to, from, row_bytes, next_bytes);
    } else {
      copy_row(to, row.to_stride, from, row.from_stride, row.extent);
    }
    size_t axis = count - 1;
    for (; axis > 0; --axis) {
      const Axis& outer = axes[axis - 1];
      if (++at[axis - 1] < outer.extent) {
        to += outer.to_stride;
        from += outer.from_stride;
        break;
      }
      at[axis - 1] = 0;
      const auto back = static_cast<int64_t>(outer.extent - 1);
      to -= outer.to_stride * back;
      from -= outer.from_stride * back;
    }
    if (axis == 0) break;
  }
  if (streamed) _mm_sfence();  // other threads see the rows before what tells them of these
}

// The same in both directions: a chunk that is read straight to its place, without a copy, must
// leave the same bytes.
Fix FixFor(const DTypeInfo& dtype) {
  if (dtype.dtype == DType::kBool) return Fix::kBool;
  if (dtype.value_bits == 2) return Fix::kMask2;
  if (dtype.value_bits == 4) return Fix::kMask4;
  return Fix::kNone;
}

}  // namespace

void GatherChunk(const StridedArray& array, const DTypeInfo& dtype,
                 std::span<const uint64_t> chunk_shape, uint64_t chunk_index, std::byte* out) {
  const size_t rank = array.shape.size();
  STEPWELL_CHECK(rank <= kRankMax && chunk_shape.size() == rank, "ranks differ");
  const Shape origin = ChunkOrigin(chunk_index, array.shape, chunk_shape);
  std::array<Axis, kRankMax> axes;
  const std::byte* from = array.data;
  auto stride = static_cast<int64_t>(dtype.item_bytes);
  bool padded = false;
  for (size_t axis = rank; axis-- > 0;) {
    STEPWELL_CHECK(origin[axis] < array.shape[axis], "chunk index out of range");
    const uint64_t extent = std::min(chunk_shape[axis], array.shape[axis] - origin[axis]);
    padded = padded || extent != chunk_shape[axis];
    axes[axis] = {extent, stride, array.strides_bytes[axis]};
    from += static_cast<int64_t>(origin[axis]) * array.strides_bytes[axis];
    stride *= static_cast<int64_t>(chunk_shape[axis]);
  }
  if (padded) std::memset(out, 0, static_cast<size_t>(stride));
  CopyBox(out, from, axes, rank, dtype.item_bytes, FixFor(dtype));
}

void GatherChunkPart(const StridedArray& part, std::span<const uint64_t> origin,
                     std::span<const uint64_t> shape, const DTypeInfo& dtype,
                     std::span<const uint64_t> chunk_shape, uint64_t chunk_index, std::byte* out) {
  const size_t rank = shape.size();
  STEPWELL_CHECK(rank <= kRankMax && chunk_shape.size() == rank && origin.size() == rank,
                 "ranks differ");
  const Shape chunk_origin = ChunkOrigin(chunk_index, shape, chunk_shape);
  std::array<Axis, kRankMax> axes;
  const std::byte* from = part.data;
  std::byte* to = out;
  auto stride = static_cast<int64_t>(dtype.item_bytes);
  for (size_t axis = rank; axis-- > 0;) {
    const uint64_t start = std::max(chunk_origin[axis], origin[axis]);
    const uint64_t stop =
        std::min(chunk_origin[axis] + chunk_shape[axis], origin[axis] + part.shape[axis]);
    if (start >= stop) return;
    axes[axis] = {stop - start, stride, part.strides_bytes[axis]};
    from += static_cast<int64_t>(start - origin[axis]) * part.strides_bytes[axis];
    to += static_cast<int64_t>(start - chunk_origin[axis]) * stride;
    stride *= static_cast<int64_t>(chunk_shape[axis]);
  }
  CopyBox(to, from, axes, rank, dtype.item_bytes, FixFor(dtype));
}

void ScatterChunk(ConstBytes chunk, const DTypeInfo& dtype, std::span<const uint64_t> shape,
                  std::span<const uint64_t> chunk_shape, uint64_t chunk_index, const Box& box,
                  const MutableStridedArray& out) {
  const size_t rank = shape.size();
  STEPWELL_CHECK(rank <= kRankMax && chunk_shape.size() == rank && box.start.size() == rank,
                 "ranks differ");
  STEPWELL_CHECK(chunk.size() == ChunkBytes(chunk_shape, dtype.item_bytes), "chunk size differs");
  const Shape origin = ChunkOrigin(chunk_index, shape, chunk_shape);
  std::array<Axis, kRankMax> axes;
  const std::byte* from = chunk.data();
  std::byte* to = out.data;
  auto stride = static_cast<int64_t>(dtype.item_bytes);
  for (size_t axis = rank; axis-- > 0;) {
    const uint64_t start = std::max(origin[axis], box.start[axis]);
    const uint64_t stop = std::min({origin[axis] + chunk_shape[axis], box.stop[axis], shape[axis]});
    if (start >= stop) return;
    axes[axis] = {stop - start, out.strides_bytes[axis], stride};
    from += static_cast<int64_t>(start - origin[axis]) * stride;
    to += static_cast<int64_t>(start - box.start[axis]) * out.strides_bytes[axis];
    stride *= static_cast<int64_t>(chunk_shape[axis]);
  }
  CopyBox(to, from, axes, rank, dtype.item_bytes, FixFor(dtype));
}

}  // namespace stepwell::format
