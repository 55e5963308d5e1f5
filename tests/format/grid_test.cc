// SPDX-License-Identifier: Apache-2.0
#include "format/grid.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/prng.h"

namespace stepwell::format {
namespace {

// Bytes stored over bytes of the array.
double Padding(const Shape& shape, const Shape& chunk) {
  double ratio = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const uint64_t count = (shape[axis] + chunk[axis] - 1) / chunk[axis];
    ratio *= static_cast<double>(count) * static_cast<double>(chunk[axis]) /
             static_cast<double>(shape[axis]);
  }
  return ratio - 1;
}

void CheckGrid(const Shape& shape, uint64_t item_bytes, const Shape& shard = {}) {
  const Shape chunk = ChooseChunkShape(shape, item_bytes, shard);
  SCOPED_TRACE(testing::PrintToString(shape) + " x " + std::to_string(item_bytes) + " -> " +
               testing::PrintToString(chunk));
  ASSERT_EQ(chunk.size(), shape.size());
  const uint64_t bytes = ChunkBytes(chunk, item_bytes);
  EXPECT_LE(bytes, kChunkBytesMax);
  if (std::find(shape.begin(), shape.end(), uint64_t{0}) != shape.end()) return;
  EXPECT_LE(Padding(shape, chunk), 0.02);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    EXPECT_GE(chunk[axis], 1U);
    EXPECT_LE(chunk[axis], std::max<uint64_t>(1, shape[axis]));
  }
  // If a divisor of the shard gives a chunk of fair size, borders are kept and nothing is padded.
  const bool in_eighths = shard.empty() && ChunkBytes(shape, item_bytes) >= (uint64_t{16} << 20);
  if (Padding(shape, chunk) > 0 && !in_eighths) {
    const Shape& whole = shard.empty() ? shape : shard;
    uint64_t inner = item_bytes;
    for (size_t axis = shape.size(); axis-- > 0; inner *= whole[axis]) {
      for (uint64_t part = 1; part <= whole[axis] && part * inner <= kChunkBytesMax; ++part) {
        EXPECT_FALSE(whole[axis] % part == 0 && part * inner >= kChunkTargetBytes / 4) << part;
      }
    }
  }
}

TEST(GridTest, KnownShapes) {
  EXPECT_EQ(ChooseChunkShape(Shape{}, 4), (Shape{}));
  EXPECT_EQ(ChooseChunkShape(Shape{4097}, 4), (Shape{4097}));
  EXPECT_EQ(ChooseChunkShape(Shape{4096, 1024}, 4), (Shape{512, 256}));
  EXPECT_EQ(ChooseChunkShape(Shape{50257, 100}, 2), (Shape{1733, 100}));
  EXPECT_EQ(ChooseChunkShape(Shape{0, 5}, 4), (Shape{1, 5}));
  EXPECT_EQ(ChooseChunkShape(Shape{0, uint64_t{1} << 40}, 4), (Shape{1, 262144}));
}

// The largest ratio, over all axes, of the bytes of the chunks that an eighth along the axis needs
// to its own bytes.
double ReadOfAnEighth(const Shape& shape, uint64_t item_bytes) {
  const Shape chunk = ChooseChunkShape(shape, item_bytes);
  double worst = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    for (uint64_t i = 0; i < 8; ++i) {
      Box box = WholeArray(shape);
      box.start[axis] = shape[axis] * i / 8;
      box.stop[axis] = shape[axis] * (i + 1) / 8;
      if (box.start[axis] == box.stop[axis]) continue;
      const auto read = static_cast<double>(ChunksInBox(box, shape, chunk).size() *
                                            ChunkBytes(chunk, item_bytes));
      Shape part = shape;
      part[axis] = box.stop[axis] - box.start[axis];
      worst = std::max(worst, read / static_cast<double>(ChunkBytes(part, item_bytes)));
    }
  }
  return worst;
}

TEST(GridTest, AnEighthAlongAnyAxisHasChunksOfItsOwn) {
  EXPECT_EQ(ChooseChunkShape(Shape{16384, 24576}, 4), (Shape{64, 3072}));
  EXPECT_EQ(ChooseChunkShape(Shape{8, 4096, 4096}, 4), (Shape{1, 512, 512}));
  for (const Shape& shape :
       {Shape{16384, 24576}, Shape{2048, 2048}, Shape{1024, 16384}, Shape{4096, 11008},
        Shape{32000, 4096}, Shape{32, 4096, 4096}, Shape{4096, 32, 2048}, Shape{3, 4096, 4096},
        Shape{4096, 3, 4096}, Shape{uint64_t{1} << 26}}) {
    EXPECT_LE(ReadOfAnEighth(shape, 4), 1.001) << testing::PrintToString(shape);
  }
  // Lengths without eighths, and rows of which a part would be too short to be copied fast.
  EXPECT_LE(ReadOfAnEighth(Shape{10007, 4096}, 4), 1.7);
  EXPECT_LE(ReadOfAnEighth(Shape{50257, 1600}, 4), 2.6);
  EXPECT_LE(ReadOfAnEighth(Shape{4096, 1024}, 4), 2.001);
  EXPECT_EQ(ChooseChunkShape(Shape{1 << 20, 64}, 4), (Shape{4096, 64}));
  // Layers of a stack are read one by one. Smaller arrays have chunks of whole rows.
  EXPECT_EQ(ChooseChunkShape(Shape{32, 1024, 1024}, 4), (Shape{1, 256, 1024}));
  EXPECT_EQ(ChooseChunkShape(Shape{1024, 1024}, 4), (Shape{256, 1024}));
}

TEST(GridTest, ShardBordersAreKept) {
  EXPECT_EQ(ChooseChunkShape(Shape{4096, 1024}, 4, Shape{1024, 1024}), (Shape{256, 1024}));
  EXPECT_EQ(ChooseChunkShape(Shape{4096, 1024}, 4, Shape{4096, 256}), (Shape{1024, 256}));
  EXPECT_EQ(ChooseChunkShape(Shape{64, 64}, 4, Shape{8, 64}), (Shape{8, 64}));
  Prng prng(7);
  for (int i = 0; i < 2000; ++i) {
    Shape shard;
    Shape shape;
    for (uint64_t axis = prng.Below(4); axis > 0; --axis) {
      shard.push_back(1 + (prng.Next() & 0xFFF) / (1 + prng.Below(100)));
      shape.push_back(shard.back() * (1 + prng.Below(4)));
    }
    const uint64_t item = uint64_t{1} << prng.Below(5);
    CheckGrid(shape, item, shard);
    const Shape chunk = ChooseChunkShape(shape, item, shard);
    if (Padding(shape, chunk) > 0) continue;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      // A part of a whole axis without a fair divisor straddles; else shards are whole chunks.
      if (ChunkBytes(chunk, item) >= kChunkTargetBytes / 4 || chunk[axis] == shard[axis]) {
        EXPECT_TRUE(shard[axis] % chunk[axis] == 0 || shape[axis] % chunk[axis] == 0);
      }
    }
  }
}

TEST(GridTest, PropertiesHoldForManyShapes) {
  for (uint64_t n : {1u, 2u, 3u, 17u, 19u, 37u, 67u, 4093u, 4097u, 1000003u, 2000003u, 16777259u}) {
    for (uint64_t item : {1u, 2u, 4u, 8u, 16u}) {
      CheckGrid({n}, item);
      CheckGrid({n, 3}, item);
      CheckGrid({n, 61 * 1024}, item);
      CheckGrid({5, n, 251}, item);
      CheckGrid({n, 1048583}, item);
    }
  }
  Prng prng(1);
  for (int i = 0; i < 2000; ++i) {
    Shape shape;
    for (uint64_t axis = prng.Below(5); axis > 0; --axis) {
      shape.push_back(prng.Below(uint64_t{1} << prng.Below(20)));
    }
    const uint64_t item = uint64_t{1} << prng.Below(5);
    if (ElementCount(shape, item).ok()) CheckGrid(shape, item);
  }
}

TEST(GridTest, ShardsWithoutAFairDivisorAreCutOnSeveralAxes) {
  // 1009 rows of 5 MiB: the rows are cut, and the borders of both axes kept.
  const Shape shard{1009, 5 << 20};
  EXPECT_EQ(ChooseChunkShape(Shape{4 * 1009, 2 * (5 << 20)}, 1, shard), (Shape{1, 1 << 20}));
  // Long rows without divisors, so as many as fit of one element each.
  EXPECT_EQ(ChooseChunkShape(Shape{2 << 20, 5000011}, 1, Shape{1 << 20, 5000011}),
            (Shape{1 << 20, 1}));
}

TEST(GridTest, DividingShapesDivide) {
  EXPECT_EQ(DividingChunkShape(Shape{}, 4), Shape{});
  EXPECT_EQ(DividingChunkShape(Shape{4096, 1024}, 4), (Shape{256, 1024}));
  EXPECT_EQ(DividingChunkShape(Shape{5}, 4), Shape{5});
  EXPECT_EQ(DividingChunkShape(Shape{1000003}, 4), Shape{1000003});
  EXPECT_EQ(DividingChunkShape(Shape{2000003}, 4), std::nullopt);
  EXPECT_EQ(DividingChunkShape(Shape{2000003, 3}, 4), std::nullopt);
  EXPECT_EQ(DividingChunkShape(Shape{1024, 2000003}, 1), (Shape{1, 2000003}));
  EXPECT_EQ(DividingChunkShape(Shape{1 << 20, 5000011}, 1), (Shape{1 << 20, 1}));
  Prng prng(8);
  int none = 0;
  for (int i = 0; i < 3000; ++i) {
    Shape shard;
    for (uint64_t axis = prng.Below(5); axis > 0; --axis) {
      shard.push_back(1 + prng.Below(uint64_t{1} << prng.Below(18)));
    }
    const uint64_t item = uint64_t{1} << prng.Below(5);
    const auto chunk = DividingChunkShape(shard, item);
    if (!chunk) {
      EXPECT_GT(ChunkBytes(shard, item), kChunkBytesMax / 64);
      ++none;
      continue;
    }
    for (size_t axis = 0; axis < shard.size(); ++axis) EXPECT_EQ(shard[axis] % (*chunk)[axis], 0U);
    EXPECT_LE(ChunkBytes(*chunk, item), kChunkBytesMax);
    EXPECT_TRUE(*chunk == shard || ChunkBytes(*chunk, item) >= kChunkTargetBytes / 16);
  }
  EXPECT_LT(none, 300);
}

TEST(GridTest, ChunksAsAskedFor) {
  const auto within = [](const Shape& shape, const Shape& shard, uint64_t bytes_max,
                         std::vector<uint32_t> axes = {}) {
    return ChunkShapeWithin(shape, 4, shard, bytes_max, axes).value();
  };
  // Whole shards where they fit, else as few parts as do.
  EXPECT_EQ(within({4096, 1024}, {1024, 1024}, 4 << 20), (Shape{1024, 1024}));
  EXPECT_EQ(within({4096, 1024}, {2048, 1024}, 4 << 20), (Shape{1024, 1024}));
  EXPECT_EQ(within({4096, 1024}, {1024, 1024}, 1 << 20, {1}), (Shape{1024, 256}));
  EXPECT_EQ(within({4096, 1024}, {1024, 1024}, 1 << 20, {0, 1}), (Shape{256, 1024}));
  EXPECT_EQ(within({4096, 1024}, {1024, 1024}, 4096, {1, 0}), (Shape{1024, 1}));
  EXPECT_EQ(within({4, 1024}, {}, 4096, {1, 0}), (Shape{4, 256}));
  EXPECT_EQ(within({48, 1024}, {}, 4096, {1, 0}), (Shape{48, 16}));
  EXPECT_EQ(within({1009, 64}, {}, 16384), (Shape{64, 64}));  // a prime: 16 parts
  EXPECT_EQ(within({41, 256}, {}, 15360), (Shape{14, 256}));  // a prime: the last one is padded
  EXPECT_EQ(within({}, {}, 4096), Shape{});
  EXPECT_EQ(within({0, 7}, {}, 4096, {5}), (Shape{1, 7}));  // nothing to cut
  const auto refused = [](const Shape& shape, uint64_t bytes_max, std::vector<uint32_t> axes) {
    return ChunkShapeWithin(shape, 4, {}, bytes_max, axes).status();
  };
  EXPECT_EQ(refused({9, 9}, 4095, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({9, 9}, (4 << 20) + 1, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({4096, 1024}, 1 << 20, {2}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({4096, 1024}, 1 << 20, {0, 2}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused({4096, 1024}, 4096, {1}).code(), StatusCode::kInvalidArgument);
  Prng prng(9);
  for (int i = 0; i < 3000; ++i) {
    Shape shape;
    for (uint64_t axis = prng.Below(5); axis > 0; --axis) {
      shape.push_back(prng.Below(uint64_t{1} << prng.Below(18)));
    }
    const uint64_t item = uint64_t{1} << prng.Below(5);
    const uint64_t bytes_max = kChunkBytesAskedMin + prng.Below(kChunkBytesMax / 2);
    const Shape chunk = ChunkShapeWithin(shape, item, {}, bytes_max, {}).value();
    const uint64_t bytes = ChunkBytes(chunk, item);
    EXPECT_LE(bytes, bytes_max);
    bool cut = false;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      EXPECT_LE(chunk[axis], std::max<uint64_t>(1, shape[axis]));
      cut = cut || chunk[axis] < shape[axis];
    }
    EXPECT_TRUE(!cut || bytes >= bytes_max / 8) << testing::PrintToString(shape);
    if (std::find(shape.begin(), shape.end(), uint64_t{0}) == shape.end()) {
      EXPECT_LE(Padding(shape, chunk), 0.2);
    }
  }
}

TEST(GridTest, HugeExtentsAreFast) {
  CheckGrid({(uint64_t{1} << 40) + 15}, 1);
  CheckGrid({uint64_t{1} << 55, 3}, 16);
}

TEST(GridTest, ElementCountRefusesWhatIsTooLarge) {
  EXPECT_EQ(ElementCount(Shape{}, 8).value(), 1U);
  EXPECT_EQ(ElementCount(Shape{3, 0, 5}, 8).value(), 0U);
  EXPECT_EQ(ElementCount(Shape{3, 5}, 8).value(), 15U);
  EXPECT_TRUE(ElementCount(Shape{uint64_t{1} << 61}, 2).ok());
  EXPECT_FALSE(ElementCount(Shape{uint64_t{1} << 62}, 2).ok());
  EXPECT_FALSE(ElementCount(Shape{UINT64_MAX, UINT64_MAX}, 1).ok());
  EXPECT_FALSE(ElementCount(Shape{0, UINT64_MAX, UINT64_MAX}, 1).ok());
  EXPECT_TRUE(ElementCount(Shape(kRankMax, 1), 1).ok());
  EXPECT_FALSE(ElementCount(Shape(kRankMax + 1, 1), 1).ok());
}

TEST(GridTest, ChunksInBoxEqualsANaiveSearch) {
  Prng prng(2);
  for (int i = 0; i < 3000; ++i) {
    const size_t rank = prng.Below(4);
    Shape shape(rank);
    Shape chunk(rank);
    Box box{Shape(rank), Shape(rank)};
    for (size_t axis = 0; axis < rank; ++axis) {
      shape[axis] = prng.Below(9);
      chunk[axis] = 1 + prng.Below(5);
      box.start[axis] = prng.Below(shape[axis] + 1);
      box.stop[axis] = box.start[axis] + prng.Below(shape[axis] + 1 - box.start[axis]);
    }
    std::vector<uint64_t> expected;
    const uint64_t count = ChunkCount(shape, chunk);
    for (uint64_t index = 0; index < count; ++index) {
      const Shape origin = ChunkOrigin(index, shape, chunk);
      bool meets = true;
      for (size_t axis = 0; axis < rank; ++axis) {
        meets = meets && std::max(origin[axis], box.start[axis]) <
                             std::min(origin[axis] + chunk[axis], box.stop[axis]);
      }
      if (meets) expected.push_back(index);
    }
    EXPECT_EQ(ChunksInBox(box, shape, chunk), expected);
  }
  EXPECT_EQ(ChunksInBox(WholeArray(Shape{}), Shape{}, Shape{}), std::vector<uint64_t>{0});
  EXPECT_EQ(ChunkCount(Shape{0, 5}, Shape{1, 5}), 0U);
}

}  // namespace
}  // namespace stepwell::format
