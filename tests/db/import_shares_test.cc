// SPDX-License-Identifier: Apache-2.0
// Which share reads what of a checkpoint's arrays, against counting every element.
#include "db/import/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/db/support/store_support.h"

namespace stepwell::db::import {
namespace {

using format::Shape;

std::vector<ShareArray> RandomArrays(std::mt19937_64& random) {
  std::vector<ShareArray> arrays(1 + random() % 12);
  for (ShareArray& array : arrays) {
    const size_t rank = random() % 5;
    for (size_t axis = 0; axis < rank; ++axis) {
      const uint64_t extent =
          random() % 40 == 0 ? 0 : 1 + random() % (rank == 1 ? 3000 : 13 - rank);
      array.shape.push_back(extent);
      array.chunk_shape.push_back(1 + random() % (random() % 2 == 0 ? extent + 3 : extent / 3 + 1));
    }
    // So large that few elements are many bytes.
    array.item_bytes = uint64_t{1} << random() % 20;
    array.only_first = random() % 10 == 0;
  }
  return arrays;
}

uint64_t BytesOf(const ShareArray& array) {
  return format::ChunkBytes(array.shape, array.item_bytes);
}

bool IsOnBorder(uint64_t place, uint64_t unit, uint64_t extent) {
  return place % unit == 0 || place == extent;
}

// Counts how often each element of an array is in boxes, in C order.
class Counts {
 public:
  explicit Counts(const ShareArray& array)
      : shape_(array.shape), counts_(format::ChunkBytes(array.shape, 1)) {}

  void Add(const format::Box& box) {
    Shape place = box.start;
    for (size_t axis = 0; axis < place.size(); ++axis) {
      if (box.start[axis] >= box.stop[axis]) return;
    }
    for (;;) {
      uint64_t number = 0;
      for (size_t axis = 0; axis < place.size(); ++axis) {
        number = number * shape_[axis] + place[axis];
      }
      ++counts_[number];
      size_t axis = place.size();
      while (axis > 0 && ++place[axis - 1] == box.stop[axis - 1]) {
        place[axis - 1] = box.start[axis - 1];
        --axis;
      }
      if (axis == 0) return;
    }
  }
  bool AllOnce() const {
    return std::all_of(counts_.begin(), counts_.end(), [](int count) { return count == 1; });
  }

 private:
  const Shape shape_;
  std::vector<int> counts_;
};

// Boxes of one share of one array: on borders, ascending, and told by first_share and last_share.
void CheckShare(const ShareArray& array, const DealtArray& dealt, uint32_t index) {
  if (!dealt.boxes.empty()) {
    EXPECT_GE(index, dealt.first_share);
    EXPECT_LE(index, dealt.last_share);
  }
  for (size_t i = 0; i < dealt.boxes.size(); ++i) {
    const format::Box& box = dealt.boxes[i];
    EXPECT_TRUE(i == 0 || dealt.boxes[i - 1].start < box.start);
    for (size_t axis = 0; axis < array.shape.size(); ++axis) {
      const uint64_t extent = array.shape[axis];
      for (const uint64_t place : {box.start[axis], box.stop[axis]}) {
        EXPECT_TRUE(extent == 0 || IsOnBorder(place, dealt.box_shape[axis], extent));
        EXPECT_TRUE(extent == 0 || IsOnBorder(place, array.chunk_shape[axis], extent));
      }
    }
  }
}

TEST(ImportSharesTest, EveryElementIsInOneShareAndSharesAreEqual) {
  std::mt19937_64 random(11);
  size_t cut = 0;
  size_t cut_on_several_axes = 0;
  for (int round = 0; round < 250; ++round) {
    const auto arrays = RandomArrays(random);
    const auto share_count = static_cast<uint32_t>(1 + random() % 9);
    std::vector<Counts> counts(arrays.begin(), arrays.end());
    std::vector<uint64_t> bytes(share_count, 0);  // without what is the first's by decree
    uint64_t total = 0;
    uint64_t box_bytes_max = 0;
    for (uint32_t index = 0; index < share_count; ++index) {
      const auto dealt = DealArrays(arrays, {index, share_count});
      ASSERT_EQ(dealt.size(), arrays.size());
      for (size_t i = 0; i < arrays.size(); ++i) {
        CheckShare(arrays[i], dealt[i], index);
        for (const format::Box& box : dealt[i].boxes) {
          counts[i].Add(box);
          uint64_t box_bytes = arrays[i].item_bytes;
          for (size_t axis = 0; axis < box.start.size(); ++axis) {
            box_bytes *= box.stop[axis] - box.start[axis];
          }
          if (!arrays[i].only_first) bytes[index] += box_bytes;
        }
        if (dealt[i].boxes.size() > 1) ++cut_on_several_axes;
        if (index > 0) continue;
        if (dealt[i].last_share > 0) ++cut;
        if (arrays[i].only_first) {
          EXPECT_EQ(dealt[i].last_share, 0u);
          EXPECT_EQ(dealt[i].boxes.size(), 1u);
          continue;
        }
        total += BytesOf(arrays[i]);
        box_bytes_max =
            std::max(box_bytes_max, format::ChunkBytes(dealt[i].box_shape, arrays[i].item_bytes));
      }
    }
    for (size_t i = 0; i < arrays.size(); ++i) EXPECT_TRUE(counts[i].AllOnce()) << round;
    for (const uint64_t share_bytes : bytes) {
      EXPECT_LE(share_bytes, total / share_count + 1 + box_bytes_max) << round;
      EXPECT_GE(share_bytes + box_bytes_max + 1, total / share_count) << round;
    }
  }
  EXPECT_GT(cut, 200u);
  EXPECT_GT(cut_on_several_axes, 100u);
}

TEST(ImportSharesTest, BoxesAreSmallBesideAShare) {
  // 1 GiB in stored chunks of 16 KiB: 16 boxes a share, each of whole chunks.
  const ShareArray array{{16384, 16384}, {64, 64}, 4, false};
  const auto dealt = DealArrays({&array, 1}, {1, 4});
  EXPECT_EQ(dealt[0].box_shape, (Shape{256, 16384}));
  ASSERT_EQ(dealt[0].boxes.size(), 1u);
  EXPECT_EQ(dealt[0].boxes[0].start, (Shape{4096, 0}));
  EXPECT_EQ(dealt[0].boxes[0].stop, (Shape{8192, 16384}));
  // One leading row is too large: the next axis is cut, too.
  const ShareArray wide{{2, 65536, 1024}, {1, 128, 1024}, 4, false};
  const auto row = DealArrays({&wide, 1}, {2, 3});
  EXPECT_EQ(row[0].box_shape[0], 1u);
  EXPECT_LT(row[0].box_shape[1], 65536u);
  ASSERT_EQ(row[0].boxes.size(), 1u);
  EXPECT_EQ(row[0].boxes[0].start[0], 1u);
}

TEST(ImportSharesTest, HugeShapesDoNotOverflow) {
  const std::vector<ShareArray> arrays(64, {{uint64_t{1} << 61}, {uint64_t{1} << 40}, 2, false});
  for (const uint32_t index : {0u, 511u, 1023u}) {
    const auto dealt = DealArrays(arrays, {index, 1024});
    uint64_t elements = 0;
    for (const DealtArray& array : dealt) {
      for (const format::Box& box : array.boxes) elements += box.stop[0] - box.start[0];
    }
    EXPECT_EQ(elements, uint64_t{1} << 57) << index;
  }
}

}  // namespace
}  // namespace stepwell::db::import
