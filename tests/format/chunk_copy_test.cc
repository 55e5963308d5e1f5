// SPDX-License-Identifier: Apache-2.0
// GatherChunk and ScatterChunk against loops over single elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "format/grid.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

// Calls fn(index) for every element index below `extents`, in C order.
template <typename Fn>
void ForEach(const Shape& extents, const Fn& fn) {
  uint64_t count = 1;
  for (const uint64_t extent : extents) count *= extent;
  for (uint64_t flat = 0; flat < count; ++flat) {
    Shape at(extents.size());
    uint64_t rest = flat;
    for (size_t axis = extents.size(); axis-- > 0; rest /= extents[axis]) {
      at[axis] = rest % extents[axis];
    }
    fn(at, flat);
  }
}

// An array somewhere in `memory`, with random axis order, gaps and directions.
struct RandomArray {
  std::vector<std::byte> memory;
  std::vector<int64_t> strides;
  size_t first = 0;  // offset of element 0

  RandomArray(Prng& prng, const Shape& shape, uint64_t item_bytes) : strides(shape.size()) {
    std::vector<size_t> order(shape.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (prng.Below(2) == 0) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[prng.Below(i)]);
    }
    uint64_t size = item_bytes;
    for (size_t i = order.size(); i-- > 0;) {
      const size_t axis = order[i];
      const uint64_t stride = size + (prng.Below(4) == 0 ? prng.Below(5) : 0);
      strides[axis] = static_cast<int64_t>(stride);
      size = stride * std::max<uint64_t>(1, shape[axis]);
      if (prng.Below(4) == 0 && shape[axis] > 0) {
        first += stride * (shape[axis] - 1);
        strides[axis] = -strides[axis];
      }
    }
    memory = prng.Bytes(size + item_bytes);
  }
  std::byte* At(const Shape& index) {
    int64_t at = static_cast<int64_t>(first);
    for (size_t axis = 0; axis < index.size(); ++axis) {
      at += static_cast<int64_t>(index[axis]) * strides[axis];
    }
    return memory.data() + at;
  }
};

uint8_t Saved(const DTypeInfo& dtype, uint8_t value) {
  if (dtype.dtype == DType::kBool) return value != 0;
  if (dtype.value_bits != 0) return value & static_cast<uint8_t>((1 << dtype.value_bits) - 1);
  return value;
}
TEST(ChunkCopyTest, EqualsElementLoops) {
  Prng prng(1);
  for (int round = 0; round < 4000; ++round) {
    const DTypeInfo& dtype = AllDTypes()[prng.Below(AllDTypes().size())];
    const size_t rank = prng.Below(5);
    Shape shape(rank);
    Shape chunk_shape(rank);
    Box box{Shape(rank), Shape(rank)};
    Shape box_shape(rank);
    for (size_t axis = 0; axis < rank; ++axis) {
      shape[axis] = 1 + prng.Below(6);
      chunk_shape[axis] = prng.Below(3) == 0 ? shape[axis] : 1 + prng.Below(6);
      box.start[axis] = prng.Below(2) == 0 ? 0 : prng.Below(shape[axis]);
      box.stop[axis] = prng.Below(2) == 0
                           ? shape[axis]
                           : box.start[axis] + prng.Below(shape[axis] + 1 - box.start[axis]);
      box_shape[axis] = box.stop[axis] - box.start[axis];
    }
    RandomArray array(prng, shape, dtype.item_bytes);
    RandomArray out(prng, box_shape, dtype.item_bytes);
    RandomArray expected_out = out;
    const StridedArray view{array.memory.data() + array.first, shape, array.strides};
    std::vector<std::byte> chunk(ChunkBytes(chunk_shape, dtype.item_bytes));
    for (uint64_t index = 0; index < ChunkCount(shape, chunk_shape); ++index) {
      const Shape origin = ChunkOrigin(index, shape, chunk_shape);
      chunk = prng.Bytes(chunk.size());
      GatherChunk(view, dtype, chunk_shape, index, chunk.data());
      ForEach(chunk_shape, [&](Shape at, uint64_t flat) {
        bool inside = true;
        for (size_t axis = 0; axis < rank; ++axis) {
          at[axis] += origin[axis];
          inside = inside && at[axis] < shape[axis];
        }
        for (size_t byte = 0; byte < dtype.item_bytes; ++byte) {
          const auto found = std::to_integer<uint8_t>(chunk[flat * dtype.item_bytes + byte]);
          const uint8_t expected =
              inside ? Saved(dtype, std::to_integer<uint8_t>(array.At(at)[byte])) : uint8_t{0};
          ASSERT_EQ(found, expected);
        }
      });
      uint64_t offset = 0;
      if (ChunkIsContiguous(shape, chunk_shape, index, dtype.item_bytes, &offset) &&
          array.strides == CStrides(shape, dtype.item_bytes) &&
          FindDType(dtype.dtype)->value_bits == 0 && dtype.dtype != DType::kBool) {
        EXPECT_EQ(std::memcmp(chunk.data(), view.data + offset, chunk.size()), 0);
      }
      ScatterChunk(chunk, dtype, shape, chunk_shape, index, box,
                   {out.memory.data() + out.first, box_shape, out.strides});
    }
    ForEach(box_shape, [&](const Shape& at, uint64_t) {
      Shape source = at;
      for (size_t axis = 0; axis < rank; ++axis) source[axis] += box.start[axis];
      for (size_t byte = 0; byte < dtype.item_bytes; ++byte) {
        expected_out.At(at)[byte] =
            static_cast<std::byte>(Saved(dtype, std::to_integer<uint8_t>(array.At(source)[byte])));
      }
    });
    ASSERT_EQ(out.memory, expected_out.memory);  // nothing else was touched
  }
}

// Rows long enough to go past the cache, of boxes large enough; from and to any place.
TEST(ChunkCopyTest, LongRowsEqualTheirs) {
  Prng prng(2);
  const DTypeInfo& dtype = *FindDType(DType::kFloat64);
  for (int round = 0; round < 40; ++round) {
    const Shape shape{300 + prng.Below(40), 1200 + prng.Below(600)};
    const Shape chunk_shape{130 + prng.Below(70), prng.Below(2) == 0 ? 512 : 500 + prng.Below(700)};
    const uint64_t gap = 8 * prng.Below(40);
    const std::vector<int64_t> strides{static_cast<int64_t>(8 * shape[1] + gap), 8};
    const std::vector<std::byte> array = prng.Bytes(shape[0] * (8 * shape[1] + gap));
    std::vector<std::byte> out(array.size() + 64);
    std::vector<std::byte> chunk(ChunkBytes(chunk_shape, 8) + 64);
    const size_t at = prng.Below(2) * prng.Below(64);
    for (uint64_t index = 0; index < ChunkCount(shape, chunk_shape); ++index) {
      std::fill(chunk.begin(), chunk.end(), std::byte{0x5A});
      GatherChunk({array.data(), shape, strides}, dtype, chunk_shape, index, chunk.data() + at);
      const Shape origin = ChunkOrigin(index, shape, chunk_shape);
      for (uint64_t row = 0; row < chunk_shape[0] && origin[0] + row < shape[0]; ++row) {
        const uint64_t width = std::min(chunk_shape[1], shape[1] - origin[1]);
        ASSERT_EQ(std::memcmp(chunk.data() + at + row * 8 * chunk_shape[1],
                              array.data() + (origin[0] + row) * static_cast<size_t>(strides[0]) +
                                  8 * origin[1],
                              8 * width),
                  0);
      }
      ASSERT_TRUE(at == 0 || chunk[at - 1] == std::byte{0x5A});
      ASSERT_TRUE(at == 64 || chunk[at + ChunkBytes(chunk_shape, 8)] == std::byte{0x5A});
      ScatterChunk(ConstBytes(chunk).subspan(at, ChunkBytes(chunk_shape, 8)), dtype, shape,
                   chunk_shape, index, WholeArray(shape), {out.data() + at, shape, strides});
    }
    for (uint64_t row = 0; row < shape[0]; ++row) {
      const size_t start = row * static_cast<size_t>(strides[0]);
      ASSERT_EQ(std::memcmp(out.data() + at + start, array.data() + start, 8 * shape[1]), 0);
      for (uint64_t i = 0; i < gap; ++i) {  // nothing else was touched
        ASSERT_EQ(out[at + start + 8 * shape[1] + i], std::byte{0});
      }
    }
  }
}

TEST(ChunkCopyTest, ContiguousChunksAreFoundInTheArray) {
  uint64_t offset = 0;
  EXPECT_TRUE(ChunkIsContiguous(Shape{}, Shape{}, 0, 4, &offset));
  EXPECT_EQ(offset, 0U);
  EXPECT_TRUE(ChunkIsContiguous(Shape{2, 6, 5}, Shape{1, 3, 5}, 3, 4, &offset));
  EXPECT_EQ(offset, (6U + 3U) * 5U * 4U);
  EXPECT_FALSE(ChunkIsContiguous(Shape{2, 6, 5}, Shape{2, 3, 5}, 0, 4, &offset));
  EXPECT_FALSE(ChunkIsContiguous(Shape{7}, Shape{4}, 1, 4, &offset));
  EXPECT_TRUE(ChunkIsContiguous(Shape{7}, Shape{4}, 0, 4, &offset));
}

}  // namespace
}  // namespace stepwell::format
