// SPDX-License-Identifier: Apache-2.0
// Arrays that are given in shards: what comes back is the array, whatever the shards' boxes and
// strides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "db/save/plan.h"
#include "db/store.h"
#include "tests/db/support/fake_far.h"
#include "tests/db/support/store_support.h"
#include "tests/prng.h"

namespace stepwell::db {
namespace {

using format::Shape;
using ::testing::HasSubstr;

uint64_t Count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

// An array in C order, and boxes of it in memory of their own.
struct Sharded {
  const format::DTypeInfo* dtype = nullptr;
  Shape shape;
  std::vector<std::byte> whole;
  std::vector<std::vector<std::byte>> memory;  // of the shards
  std::vector<ShardInput> shards;

  void AddShard(Prng& prng, const Shape& origin, const Shape& extents) {
    const size_t rank = shape.size();
    const auto item = static_cast<int64_t>(dtype->item_bytes);
    ShardInput shard{origin, extents, nullptr, std::vector<int64_t>(rank)};
    std::vector<size_t> order(rank);
    std::iota(order.begin(), order.end(), size_t{0});
    const bool plain = prng.Below(2) == 0;
    if (!plain) {
      for (size_t i = rank; i > 1; --i) std::swap(order[i - 1], order[prng.Below(i)]);
    }
    int64_t size = item;
    int64_t first = 0;
    for (size_t i = rank; i-- > 0;) {
      const auto extent = static_cast<int64_t>(std::max<uint64_t>(1, extents[order[i]]));
      const int64_t stride = size + (plain ? 0 : static_cast<int64_t>(prng.Below(3)));
      const bool backwards = !plain && prng.Below(3) == 0;
      shard.strides_bytes[order[i]] = backwards ? -stride : stride;
      if (backwards) first += stride * (extent - 1);
      size = stride * extent;
    }
    auto& bytes = memory.emplace_back(static_cast<size_t>(size));
    std::byte* const data = bytes.data() + first;
    const auto whole_strides = format::CStrides(shape, dtype->item_bytes);
    const uint64_t count = Count(extents);
    for (uint64_t flat = 0; flat < count; ++flat) {
      uint64_t rest = flat;
      int64_t from = 0;
      int64_t to = 0;
      for (size_t axis = rank; axis-- > 0; rest /= extents[axis]) {
        const auto at = static_cast<int64_t>(rest % extents[axis]);
        from += (static_cast<int64_t>(origin[axis]) + at) * whole_strides[axis];
        to += at * shard.strides_bytes[axis];
      }
      std::memcpy(data + to, whole.data() + from, dtype->item_bytes);
    }
    shard.data = count == 0 ? nullptr : data;
    if (plain && prng.Below(2) == 0) shard.strides_bytes.clear();
    shards.push_back(std::move(shard));
  }

  // Cuts the box in two, and so on.
  void CutAtRandom(Prng& prng, const Shape& origin, const Shape& extents, int depth) {
    std::vector<size_t> axes;
    for (size_t axis = 0; axis < extents.size(); ++axis) {
      if (extents[axis] > 1) axes.push_back(axis);
    }
    if (axes.empty() || depth == 0 || prng.Below(5) == 0) return AddShard(prng, origin, extents);
    const size_t axis = axes[prng.Below(axes.size())];
    Shape left = extents;
    Shape right = extents;
    Shape middle = origin;
    left[axis] = 1 + prng.Below(extents[axis] - 1);
    right[axis] -= left[axis];
    middle[axis] += left[axis];
    CutAtRandom(prng, origin, left, depth - 1);
    CutAtRandom(prng, middle, right, depth - 1);
  }

  void CutOnGrid(Prng& prng, const Shape& pitch) {
    const uint64_t count = format::ChunkCount(shape, pitch);
    for (uint64_t i = 0; i < count; ++i) {
      const Shape origin = format::ChunkOrigin(i, shape, pitch);
      Shape extents = pitch;
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        extents[axis] = std::min(extents[axis], shape[axis] - origin[axis]);
      }
      AddShard(prng, origin, extents);
    }
  }

  LeafInput Input(const std::string& name) const {
    LeafInput leaf;
    leaf.record.key = KeyOf("state", name);
    leaf.record.kind = format::LeafKind::kArray;
    leaf.record.dtype = dtype->dtype;
    leaf.record.shape = shape;
    leaf.shards = shards;
    return leaf;
  }
};

std::shared_ptr<Sharded> MakeSharded(Prng& prng, format::DType dtype, Shape shape) {
  auto sharded = std::make_shared<Sharded>();
  sharded->dtype = format::FindDType(dtype);
  sharded->shape = std::move(shape);
  sharded->whole = prng.Bytes(Count(sharded->shape) * sharded->dtype->item_bytes);
  if (prng.Below(3) == 0) {  // compressible
    std::fill(sharded->whole.begin(), sharded->whole.end(), std::byte{1});
  }
  if (dtype == format::DType::kBool || sharded->dtype->value_bits != 0) {
    for (std::byte& byte : sharded->whole) byte &= std::byte{1};
  }
  return sharded;
}

std::shared_ptr<Sharded> RandomSharded(Prng& prng, uint64_t bytes_max) {
  const auto dtypes = format::AllDTypes();
  const format::DTypeInfo& dtype = dtypes[prng.Below(dtypes.size())];
  Shape shape(prng.Below(5));
  uint64_t left = bytes_max / dtype.item_bytes;
  for (uint64_t& extent : shape) {
    extent = 1 + prng.Below(std::min<uint64_t>(left, uint64_t{1} << (1 + prng.Below(20))));
    left = std::max<uint64_t>(1, left / extent);
  }
  std::shuffle(shape.begin(), shape.end(), std::minstd_rand(static_cast<unsigned>(prng.Next())));
  if (!shape.empty() && prng.Below(12) == 0) shape[prng.Below(shape.size())] = 0;
  auto sharded = MakeSharded(prng, dtype.dtype, shape);
  if (prng.Below(2) == 0) {
    Shape pitch = shape;
    for (uint64_t& extent : pitch) {
      extent = std::max<uint64_t>(1, extent);
      const uint64_t parts = 1 + prng.Below(4);
      extent =
          prng.Below(2) == 0 && extent % parts == 0 ? extent / parts : (extent + parts - 1) / parts;
    }
    sharded->CutOnGrid(prng, pitch);
  } else if (Count(shape) > 0 || prng.Below(2) == 0) {
    sharded->CutAtRandom(prng, Shape(shape.size(), 0), shape, 4);
  } else {
    sharded->AddShard(prng, Shape(shape.size(), 0), shape);
  }
  std::shuffle(sharded->shards.begin(), sharded->shards.end(),
               std::minstd_rand(static_cast<unsigned>(prng.Next())));
  return sharded;
}

class ShardsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open(CodecPolicy codec = CodecPolicy::kAuto) {
    StoreOptions options;
    options.codec = codec;
    options.far_window_bytes = uint64_t{1} << 20;
    auto store = Store::Open(dir_ / "run", options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return std::move(store).value();
  }
  // Saves one leaf and gives what became of it.
  Status Save(Store* store, LeafInput leaf) {
    SaveRequest request;
    request.step = next_step_++;
    request.items.push_back({.name = "state", .leaves = {}});
    request.items[0].leaves.push_back(std::move(leaf));
    auto saved = store->Save(std::move(request));
    return saved.ok() ? saved->Wait() : saved.status();
  }

  TempDir dir_;
  uint64_t next_step_ = 0;
};

TEST_F(ShardsTest, RandomShardsComeBackAsTheArray) {
  Prng prng(1);
  for (const CodecPolicy codec : {CodecPolicy::kAuto, CodecPolicy::kBlosc, CodecPolicy::kRaw}) {
    auto store = Open(codec);
    for (uint64_t round = 0; round < InAStorm(8); ++round) {
      SaveRequest request;
      request.step = next_step_++;
      request.items.push_back({.name = "state", .leaves = {}});
      std::vector<std::shared_ptr<Sharded>> arrays;
      std::vector<bool> held;
      const auto far = std::make_shared<FakeFar>();
      request.far = far;
      request.far_behind = prng.Below(2) == 0;
      for (int i = 0; i < 6; ++i) {
        const uint64_t bytes_max = i == 0 ? uint64_t{6} << 20 : 20000;
        auto& array = arrays.emplace_back(RandomSharded(prng, bytes_max));
        LeafInput leaf = array->Input("leaf" + std::to_string(i));
        held.push_back(prng.Below(2) == 0);
        if (prng.Below(3) == 0) {
          for (ShardInput& shard : leaf.shards) {
            if (shard.strides_bytes.empty()) {
              shard.strides_bytes = format::CStrides(shard.shape, array->dtype->item_bytes);
            }
            far->Take(&shard, Count(shard.shape) * array->dtype->item_bytes);
          }
          held.back() = request.far_behind;
        } else if (held.back()) {
          leaf.hold = array;
        }
        if (prng.Below(4) == 0) leaf.chunk_bytes_max = 4096 + prng.Below(100000);
        request.items[0].leaves.push_back(std::move(leaf));
      }
      auto saved = store->Save(std::move(request));
      ASSERT_TRUE(saved.ok()) << saved.status().ToString();
      for (size_t i = 0; i < arrays.size(); ++i) {  // what Save had to copy may change now
        if (held[i]) continue;
        for (auto& bytes : arrays[i]->memory) {
          std::fill(bytes.begin(), bytes.end(), std::byte{0xEE});
        }
      }
      ASSERT_OK(saved->Wait());
      const auto reader = store->Read(next_step_ - 1);
      ASSERT_TRUE(reader.ok());
      for (size_t i = 0; i < arrays.size(); ++i) {
        const auto leaf = (*reader)->Find(KeyOf("state", "leaf" + std::to_string(i)));
        ASSERT_TRUE(leaf.ok() && leaf->has_value());
        const auto& record = **leaf;
        SCOPED_TRACE(testing::PrintToString(arrays[i]->shape) + " in chunks of " +
                     testing::PrintToString(record.chunk_shape));
        std::vector<std::byte> out(arrays[i]->whole.size());
        LoadRequest load{.leaf = &record,
                         .box = format::WholeArray(record.shape),
                         .out = out.data(),
                         .strides_bytes = {}};
        const auto stats = (*reader)->Load({&load, 1});
        ASSERT_TRUE(stats.ok()) << stats.status().ToString();
        ASSERT_EQ(out, arrays[i]->whole);
      }
    }
    ASSERT_OK(store->Close());
  }
}

TEST_F(ShardsTest, ChunksThatLieInOneShardAreEncodedFromItsMemory) {
  Prng prng(2);
  auto array = MakeSharded(prng, format::DType::kFloat32, {2048, 512});
  array->shards.clear();
  array->memory.clear();
  for (uint64_t row = 0; row < 2; ++row) {
    for (uint64_t column = 0; column < 2; ++column) {
      auto& bytes = array->memory.emplace_back(array->whole.size() / 4);
      array->shards.push_back({{row * 1024, column * 256}, {1024, 256}, bytes.data(), {}});
    }
  }
  PlannedLeaf leaf;
  leaf.input = array->Input("w");
  ASSERT_OK(PlanLeaf(CodecPolicy::kBlosc, &leaf));
  EXPECT_EQ(leaf.input.record.chunk_shape, (Shape{1024, 256}));
  EXPECT_EQ(leaf.input.record.shard_shape, (Shape{1024, 256}));
  for (uint64_t chunk = 0; chunk < 4; ++chunk) {
    const ConstBytes run = InSource(leaf, {.logical_bytes = 1 << 20, .chunk_index = chunk});
    EXPECT_EQ(run.data(), array->memory[chunk].data()) << chunk;
  }
  // A chunk that two shards share is gathered.
  leaf = {};
  leaf.input = array->Input("w");
  leaf.input.shard_shape = {1024, 512};
  ASSERT_OK(PlanLeaf(CodecPolicy::kBlosc, &leaf));
  EXPECT_EQ(InSource(leaf, {.logical_bytes = 1 << 20, .chunk_index = 0}).data(), nullptr);
}

TEST_F(ShardsTest, WhatIsNoArrayIsRefusedByName) {
  auto store = Open();
  Prng prng(3);
  const auto array = MakeSharded(prng, format::DType::kInt16, {4, 6});
  array->CutOnGrid(prng, {2, 3});
  const auto refused = [&](auto spoil) {
    LeafInput leaf = array->Input("w");
    spoil(&leaf);
    const Status status = Save(store.get(), std::move(leaf));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("leaf 'w'"));
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shards.pop_back(); }),
              HasSubstr("its 3 shards have 18 of the 24 elements of its shape (4, 6)"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shards[3] = leaf->shards[1]; }),
              HasSubstr("shards [0:2, 3:6] and [0:2, 3:6] overlap"));
  EXPECT_THAT(refused([](LeafInput* leaf) {
                leaf->shards[3].origin = {1, 3};
              }),
              HasSubstr("shards [0:2, 3:6] and [1:3, 3:6] overlap"));
  EXPECT_THAT(refused([](LeafInput* leaf) {
                leaf->shards[3].origin = {3, 3};
              }),
              HasSubstr("shard 3, [3:5, 3:6], reaches out of the array's shape (4, 6)"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shards[3].origin[0] = UINT64_MAX; }),
              HasSubstr("reaches out"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shards[0].data = nullptr; }),
              HasSubstr("shard 0 has no data"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shards[1].origin = {0}; }),
              HasSubstr("shard 1 has other axes"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shards[1].strides_bytes = {2}; }),
              HasSubstr("strides"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->shard_shape = {2}; }), HasSubstr("other axes"));
  EXPECT_THAT(refused([](LeafInput* leaf) { leaf->chunk_bytes_max = 5; }),
              HasSubstr("at most 5 bytes were asked for; 4096 to 4194304"));
  const auto large = MakeSharded(prng, format::DType::kFloat32, {64, 1 << 16});
  large->CutOnGrid(prng, {64, 1 << 16});
  LeafInput leaf = large->Input("w");
  leaf.chunk_bytes_max = 1 << 20;
  leaf.chunk_axes = {2};
  EXPECT_THAT(Save(store.get(), leaf).message(), HasSubstr("axis 2 of an array of 2 axes"));
  leaf.chunk_bytes_max = 1 << 17;
  leaf.chunk_axes = {0};
  EXPECT_THAT(Save(store.get(), leaf).message(),
              HasSubstr("at least 262144 bytes; at most 131072"));
  // Two boxes without axes, and what is not complete but partial.
  const auto scalar = MakeSharded(prng, format::DType::kInt16, {});
  scalar->AddShard(prng, {}, {});
  scalar->AddShard(prng, {}, {});
  EXPECT_THAT(Save(store.get(), scalar->Input("s")).message(), HasSubstr("overlap"));
  leaf.partial = true;
  EXPECT_EQ(Save(store.get(), leaf).code(), StatusCode::kInvalidArgument);
  ASSERT_OK(Save(store.get(), array->Input("w")));
}

TEST_F(ShardsTest, ManyShardsThatTouchButDoNotOverlapAreTaken) {
  Prng prng(4);
  const auto array = MakeSharded(prng, format::DType::kInt8, {300, 7});
  for (uint64_t row = 0; row < 300; ++row) {  // irregular: of 3 and 4 columns by turns
    const uint64_t cut = 3 + row % 2;
    array->AddShard(prng, {row, 0}, {1, cut});
    array->AddShard(prng, {row, cut}, {1, 7 - cut});
  }
  auto store = Open();
  EXPECT_OK(Save(store.get(), array->Input("w")));
}

// The bytes of all chunks of a partial leaf, against the array.
void CheckPieces(const Sharded& array, const PlannedLeaf& leaf) {
  const auto& record = leaf.input.record;
  const size_t item = array.dtype->item_bytes;
  uint64_t chunk_index = 0;
  ASSERT_EQ(record.pieces.size(), leaf.shards.shards().size());
  for (size_t p = 0; p < record.pieces.size(); ++p) {
    const format::PieceRecord& piece = record.pieces[p];
    const ShardInput& shard = leaf.shards.shards()[p];
    EXPECT_EQ(piece.first_chunk, chunk_index);
    EXPECT_EQ(piece.origin, shard.origin);
    EXPECT_EQ(piece.shape, shard.shape);
    std::vector<std::byte> out(Count(shard.shape) * item);
    std::vector<std::byte> wanted(out.size());
    format::Box box = format::WholeArray(shard.shape);
    const auto strides = format::CStrides(shard.shape, item);
    const uint64_t count = format::ChunkCount(shard.shape, piece.chunk_shape);
    for (uint64_t i = 0; i < count; ++i, ++chunk_index) {
      const ChunkTask task{.logical_bytes = LogicalChunkBytes(leaf, chunk_index),
                           .chunk_index = chunk_index};
      std::vector<std::byte> chunk(task.logical_bytes);
      GatherTo(leaf, task, chunk.data());
      const ConstBytes run = InSource(leaf, task);
      if (run.data() != nullptr) {
        EXPECT_TRUE(std::equal(run.begin(), run.end(), chunk.begin(), chunk.end()));
      }
      format::ScatterChunk(chunk, *array.dtype, shard.shape, piece.chunk_shape, i, box,
                           {out.data(), shard.shape, strides});
    }
    for (size_t axis = 0; axis < box.start.size(); ++axis) {
      box.start[axis] = shard.origin[axis];
      box.stop[axis] = shard.origin[axis] + shard.shape[axis];
    }
    format::ScatterChunk(array.whole, *array.dtype, array.shape, array.shape, 0, box,
                         {wanted.data(), shard.shape, strides});
    EXPECT_EQ(out, wanted);
  }
  EXPECT_EQ(chunk_index, record.chunk_count);
}

TEST_F(ShardsTest, PartsOfAnArrayHaveEveryChunkInOneShard) {
  Prng prng(5);
  for (int round = 0; round < 60; ++round) {
    const auto array = RandomSharded(prng, round % 10 == 0 ? uint64_t{12} << 20 : 30000);
    if (Count(array->shape) == 0) continue;
    PlannedLeaf leaf;
    leaf.input = array->Input("w");
    leaf.input.partial = true;
    leaf.input.shards.resize(1 + prng.Below(leaf.input.shards.size()));
    if (prng.Below(3) == 0) leaf.input.chunk_bytes_max = 4096 + prng.Below(10000);
    SCOPED_TRACE(testing::PrintToString(array->shape));
    ASSERT_OK(PlanLeaf(CodecPolicy::kAuto, &leaf));
    EXPECT_EQ(leaf.codec, format::CodecId::kRaw);
    CheckPieces(*array, leaf);
  }
  // Shards whose length has no divisor that fits: grids of their own.
  const auto prime = MakeSharded(prng, format::DType::kInt8, {2 * 5000011});
  prime->CutOnGrid(prng, {5000011});
  PlannedLeaf leaf;
  leaf.input = prime->Input("w");
  leaf.input.partial = true;
  leaf.input.shards.erase(leaf.input.shards.begin());
  ASSERT_OK(PlanLeaf(CodecPolicy::kAuto, &leaf));
  EXPECT_EQ(leaf.input.record.shard_shape, Shape{5000011});
  ASSERT_EQ(leaf.input.record.pieces.size(), 1U);
  EXPECT_LE(leaf.input.record.pieces[0].chunk_shape[0], format::kChunkBytesMax);
  CheckPieces(*prime, leaf);
}

}  // namespace
}  // namespace stepwell::db
