// SPDX-License-Identifier: Apache-2.0
// Random arrays, and boxes of them, through staging memory; compared byte for byte.
#include "db/mesh/staging_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "tests/prng.h"

namespace stepwell::db {
namespace {

using format::Box;
using format::LeafRecord;
using format::Shape;

constexpr uint64_t kBatchBytes = 1024;
constexpr uint64_t kItemBytes = 2;

uint64_t Volume(const Box& box) {
  uint64_t volume = 1;
  for (size_t axis = 0; axis < box.start.size(); ++axis) volume *= box.stop[axis] - box.start[axis];
  return volume;
}

// Calls `visit` with the position of each element in the array, in C order of the box.
template <typename Visit>
void ForEach(const Box& box, const Shape& shape, const Visit& visit) {
  Shape at = box.start;
  for (uint64_t n = Volume(box); n > 0; --n) {
    uint64_t position = 0;
    for (size_t axis = 0; axis < shape.size(); ++axis) position = position * shape[axis] + at[axis];
    visit(position);
    for (size_t axis = shape.size(); axis-- > 0;) {
      if (++at[axis] < box.stop[axis]) break;
      at[axis] = box.start[axis];
    }
  }
}

LeafRecord RandomLeaf(Prng& random) {
  LeafRecord leaf;
  leaf.dtype = DType::kUInt16;
  const size_t rank = random.Below(5);
  for (size_t axis = 0; axis < rank; ++axis) {
    leaf.shape.push_back(1 + random.Below(rank < 3 ? 90 : 14));
    leaf.chunk_shape.push_back(1 + random.Below(leaf.shape.back()));
  }
  if (random.OneIn(8)) leaf.chunk_shape.clear();  // pieces with grids of their own
  return leaf;
}

Box RandomBox(Prng& random, const Shape& shape) {
  Box box = format::WholeArray(shape);
  if (random.OneIn(3)) return box;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    box.start[axis] = random.Below(shape[axis]);
    box.stop[axis] = box.start[axis] + 1 + random.Below(shape[axis] - box.start[axis]);
  }
  return box;
}

constexpr uint64_t kCases = 300;

struct RandomCase {
  explicit RandomCase(uint64_t seed) {
    Prng random(seed);
    leaves.resize(1 + random.Below(3));
    for (LeafRecord& leaf : leaves) {
      leaf = RandomLeaf(random);
      for (uint64_t n = 1 + random.Below(5); n > 0; --n) {
        targets.push_back({.leaf = &leaf,
                           .box = RandomBox(random, leaf.shape),
                           .near = static_cast<uint32_t>(random.Below(2))});
      }
      if (random.Coin()) targets.push_back(targets.back());  // a replica
    }
    batches = PlanStaging(targets, kBatchBytes);
  }

  std::vector<LeafRecord> leaves;
  std::vector<StagedTarget> targets;
  std::vector<StagedBatch> batches;
};

// The elements of a piece are their positions in the array.
void FillStaging(const StagedPiece& piece, std::vector<std::byte>* staging) {
  ASSERT_LE(piece.offset_bytes + Volume(piece.box) * kItemBytes, staging->size());
  std::byte* out = staging->data() + piece.offset_bytes;
  ForEach(piece.box, piece.leaf->shape, [&](uint64_t position) {
    const auto element = static_cast<uint16_t>(position);
    std::memcpy(out, &element, kItemBytes);
    out += kItemBytes;
  });
}

// Returns the bytes that were copied.
uint64_t Send(const StagedPiece& piece, const std::vector<std::byte>& staging, const Box& target,
              std::vector<uint16_t>* memory) {
  uint64_t bytes = 0;
  const std::byte* from = staging.data() + piece.offset_bytes;
  auto* to = reinterpret_cast<std::byte*>(memory->data());
  for (const RowsCopy& copy : CopiesInto(piece.box, target, kItemBytes)) {
    for (uint64_t row = 0; row < copy.rows; ++row) {
      const uint64_t at = copy.to_bytes + row * copy.to_pitch_bytes;
      EXPECT_LE(at + copy.row_bytes, memory->size() * kItemBytes);
      std::memcpy(to + at, from + copy.from_bytes + row * copy.row_bytes, copy.row_bytes);
      bytes += copy.row_bytes;
    }
  }
  return bytes;
}

void EveryTargetGetsItsBox(const RandomCase& test) {
  std::vector<std::vector<uint16_t>> memory;
  std::vector<uint64_t> sent_bytes(test.targets.size(), 0);
  for (const StagedTarget& target : test.targets) memory.emplace_back(Volume(target.box), 0xFFFF);
  for (const StagedBatch& batch : test.batches) {
    std::vector<std::vector<std::byte>> staging;
    for (const uint64_t bytes : batch.bytes) staging.emplace_back(bytes);
    for (const StagedPiece& piece : batch.pieces) FillStaging(piece, &staging.at(piece.near));
    for (const StagedPiece& piece : batch.pieces) {
      for (const uint32_t number : piece.targets) {
        ASSERT_EQ(test.targets[number].leaf, piece.leaf);
        sent_bytes[number] +=
            Send(piece, staging[piece.near], test.targets[number].box, &memory[number]);
      }
    }
  }
  for (size_t i = 0; i < test.targets.size(); ++i) {
    EXPECT_EQ(sent_bytes[i], memory[i].size() * kItemBytes) << "each element once";
    size_t n = 0;
    ForEach(test.targets[i].box, test.targets[i].leaf->shape, [&](uint64_t position) {
      ASSERT_EQ(memory[i][n++], static_cast<uint16_t>(position)) << "target " << i;
    });
  }
}

TEST(StagingPlanTest, EveryTargetGetsItsBoxAndEachElementOnce) {
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    EveryTargetGetsItsBox(RandomCase(seed));
  }
}

TEST(StagingPlanTest, AChunkIsInOneBatchAndBatchesAreBounded) {
  size_t batches = 0;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    SCOPED_TRACE(seed);
    const RandomCase test(seed);
    batches += test.batches.size();
    std::map<std::pair<const LeafRecord*, uint64_t>, size_t> batch_of;
    for (size_t i = 0; i < test.batches.size(); ++i) {
      std::set<std::pair<const LeafRecord*, uint64_t>> chunks;
      for (const StagedPiece& piece : test.batches[i].pieces) {
        const Shape& shape = piece.leaf->shape;  // one chunk, where the grid is the pieces' affair
        const Shape& grid = piece.leaf->chunk_shape.empty() ? shape : piece.leaf->chunk_shape;
        for (const uint64_t chunk : format::ChunksInBox(piece.box, shape, grid)) {
          chunks.insert({piece.leaf, chunk});
          EXPECT_EQ(batch_of.try_emplace({piece.leaf, chunk}, i).first->second, i);
        }
      }
      for (const uint64_t bytes : test.batches[i].bytes) {
        EXPECT_TRUE(bytes <= kBatchBytes || chunks.size() == 1) << bytes;
      }
    }
  }
  EXPECT_GT(batches, 3 * kCases);  // arrays were cut
}

}  // namespace
}  // namespace stepwell::db
