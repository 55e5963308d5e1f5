// SPDX-License-Identifier: Apache-2.0
// Arrays of which each part of a step writes some boxes come back as if one process had saved them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "db/export/export.h"
#include "db/import/import.h"
#include "db/layout.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kPieceParts = 3;

uint64_t CountOf(const format::Shape& shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

// An array of numbers, and the boxes that a grid of shards makes of it.
struct SplitArray {
  std::string name;
  format::Shape shape;
  format::Shape shard_shape;
  std::vector<int32_t> data;
  std::vector<std::pair<format::Box, uint32_t>> boxes;  // with the part that writes it

  std::vector<int32_t> Cut(const format::Box& box) const {
    format::Shape extents(shape.size());
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      extents[axis] = box.stop[axis] - box.start[axis];
    }
    std::vector<int32_t> out(CountOf(extents));
    for (uint64_t i = 0; i < out.size(); ++i) {
      uint64_t rest = i;
      uint64_t at = 0;
      uint64_t scale = 1;
      for (size_t axis = shape.size(); axis-- > 0;) {
        at += (box.start[axis] + rest % extents[axis]) * scale;
        rest /= extents[axis];
        scale *= shape[axis];
      }
      out[i] = data[at];
    }
    return out;
  }
};

SplitArray Split(std::string name, format::Shape shape, const format::Shape& counts,
                 std::mt19937_64& random) {
  SplitArray array;
  array.name = std::move(name);
  array.shape = std::move(shape);
  array.data.resize(CountOf(array.shape));
  for (int32_t& value : array.data) value = static_cast<int32_t>(random());
  for (size_t axis = 0; axis < array.shape.size(); ++axis) {
    array.shard_shape.push_back((array.shape[axis] + counts[axis] - 1) / counts[axis]);
  }
  if (array.data.empty()) return array;
  const uint64_t count = format::ChunkCount(array.shape, array.shard_shape);
  for (uint64_t i = 0; i < count; ++i) {
    format::Box box;
    box.start = format::ChunkOrigin(i, array.shape, array.shard_shape);
    box.stop = box.start;
    for (size_t axis = 0; axis < box.stop.size(); ++axis) {
      box.stop[axis] = std::min(box.stop[axis] + array.shard_shape[axis], array.shape[axis]);
    }
    array.boxes.emplace_back(std::move(box), static_cast<uint32_t>(random() % kPieceParts));
  }
  return array;
}

class GroupPiecesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.statistics = true;
    auto stores = GroupStores::Open(dir_ / "run", kPieceParts, options);
    ASSERT_OK(stores.status());
    group_ = std::move(*stores);
  }

  Status PreparePart(uint32_t part, uint64_t step, const std::vector<SplitArray>& arrays) {
    std::vector<std::vector<int32_t>> memory;
    memory.reserve(1000);
    SaveRequest request;
    request.step = step;
    request.group = GroupSave{SaveId(step), group_.parts};
    ItemInput item{.name = "state", .kind = format::ItemKind::kTree, .leaves = {}};
    for (const SplitArray& array : arrays) {
      LeafInput leaf;
      leaf.record.key = KeyOf("state", array.name);
      leaf.record.dtype = format::DType::kInt32;
      leaf.record.shape = array.shape;
      leaf.shard_shape = array.shard_shape;
      leaf.partial = true;
      for (const auto& [box, owner] : array.boxes) {
        if (owner != part) continue;
        memory.push_back(array.Cut(box));
        ShardInput shard;
        shard.origin = box.start;
        for (size_t axis = 0; axis < box.start.size(); ++axis) {
          shard.shape.push_back(box.stop[axis] - box.start[axis]);
        }
        shard.data = reinterpret_cast<const std::byte*>(memory.back().data());
        leaf.shards.push_back(std::move(shard));
      }
      // Part 0 knows every leaf; the others those of which they write something.
      if (part == 0 || !leaf.shards.empty()) item.leaves.push_back(std::move(leaf));
    }
    request.items.push_back(std::move(item));
    STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle, group_.part(part)->Save(std::move(request)));
    return handle.Wait();
  }
  Status SaveAll(uint64_t step, const std::vector<SplitArray>& arrays) {
    for (uint32_t part = 0; part < kPieceParts; ++part) {
      STEPWELL_RETURN_IF_ERROR(PreparePart(part, step, arrays));
    }
    return group_.DecideAll(Commit(step, step)).status();
  }

  void ExpectBox(StepReader& step, const format::LeafRecord& leaf, const SplitArray& array,
                 const format::Box& box) {
    const std::vector<int32_t> wanted = array.Cut(box);
    std::vector<int32_t> out(wanted.size(), -7);
    const LoadRequest request{&leaf, box, reinterpret_cast<std::byte*>(out.data()), {}};
    const auto stats = step.Load({&request, 1});
    ASSERT_OK(stats.status());
    EXPECT_TRUE(out == wanted) << array.name;
  }

  // The parts' together are those of the array.
  static void ExpectStatistics(const format::LeafRecord& leaf, const SplitArray& array) {
    ASSERT_TRUE(leaf.statistics.has_value()) << array.name;
    EXPECT_EQ(leaf.statistics->elements, array.data.size());
    if (array.data.empty()) return;
    const auto [min, max] = std::minmax_element(array.data.begin(), array.data.end());
    EXPECT_EQ(leaf.statistics->min, *min);
    EXPECT_EQ(leaf.statistics->max, *max);
    double sum = 0;
    for (const int32_t value : array.data) sum += value;
    EXPECT_NEAR(leaf.statistics->sum, sum, 1e3) << "of whole numbers below 2^53";
  }

  void ExpectAll(uint64_t number, const std::vector<SplitArray>& arrays, std::mt19937_64& random) {
    const auto step = group_.part(0)->Read(number);
    ASSERT_OK(step.status());
    EXPECT_EQ((*step)->step().leaf_count, arrays.size());
    uint64_t bytes = 0;
    for (const SplitArray& array : arrays) {
      const auto leaf = (*step)->Find(KeyOf("state", array.name));
      ASSERT_OK(leaf.status());
      ASSERT_TRUE(leaf->has_value());
      bytes += array.data.size() * sizeof(int32_t);
      ExpectStatistics(**leaf, array);
      ExpectBox(**step, **leaf, array, format::WholeArray(array.shape));
      format::Box box = format::WholeArray(array.shape);
      for (size_t axis = 0; axis < box.start.size(); ++axis) {
        if (array.shape[axis] == 0) continue;
        box.start[axis] = random() % array.shape[axis];
        box.stop[axis] = box.start[axis] + 1 + random() % (array.shape[axis] - box.start[axis]);
      }
      ExpectBox(**step, **leaf, array, box);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ((*step)->step().logical_bytes, bytes);
  }

  // An import of the checkpoint has these arrays.
  void ExpectExported(const std::string& path, const std::vector<SplitArray>& arrays) {
    const auto checkpoint = OrbaxCheckpoint::Open(io::LocalFileSystem(), path);
    ASSERT_OK(checkpoint.status());
    auto request = ImportRequest(*checkpoint, 1, {});
    ASSERT_OK(request.status());
    const auto store = Store::Open(path + "-store", {});
    ASSERT_OK(store.status());
    const auto handle = (*store)->Save(std::move(*request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    const auto step = (*store)->Read(1);
    ASSERT_OK(step.status());
    for (const SplitArray& array : arrays) {
      const auto leaf = (*step)->Find(KeyOf("state", array.name));
      ASSERT_OK(leaf.status());
      ASSERT_TRUE(leaf->has_value());
      ExpectBox(**step, **leaf, array, format::WholeArray(array.shape));
    }
  }

  TempDir dir_;
  GroupStores group_;
};

TEST_F(GroupPiecesTest, RandomArraysComeBack) {
  std::mt19937_64 random(7);
  for (uint64_t step = 1; step <= 25; ++step) {
    SCOPED_TRACE(step);
    std::vector<SplitArray> arrays;
    for (uint64_t i = 0; i < 8; ++i) {
      format::Shape shape;
      format::Shape counts;
      for (uint64_t axis = random() % 4; axis > 0; --axis) {
        shape.push_back(random() % 12 == 0 ? 0 : 1 + random() % 40);
        counts.push_back(1 + random() % 4);
      }
      arrays.push_back(Split(StrCat("a", i), std::move(shape), counts, random));
    }
    ASSERT_OK(SaveAll(step, arrays));
    ExpectAll(step, arrays, random);
    if (HasFailure()) return;
  }
  const auto report = group_.part(0)->Verify({});
  ASSERT_OK(report.status());
  EXPECT_THAT(report->problems, IsEmpty());
}

// Chunks of about a MiB; and an axis without divisors, whose pieces have grids of their own.
TEST_F(GroupPiecesTest, LargeArraysAndLongPrimeAxes) {
  std::mt19937_64 random(8);
  std::vector<SplitArray> arrays;
  arrays.push_back(Split("even", {1024, 1500}, {4, 1}, random));
  arrays.push_back(Split("columns", {600, 2048}, {1, 4}, random));
  arrays.push_back(Split("prime", {4000006}, {2}, random));
  ASSERT_OK(SaveAll(1, arrays));
  ExpectAll(1, arrays, random);
  const auto step = group_.part(0)->Read(1);
  const auto even = (*step)->Find(KeyOf("state", "even"));
  EXPECT_FALSE((*even)->partial);
  EXPECT_THAT((*even)->pieces, IsEmpty());
  const auto prime = (*step)->Find(KeyOf("state", "prime"));
  EXPECT_TRUE((*prime)->partial);
  EXPECT_EQ((*prime)->pieces.size(), 2U);
  const auto report = group_.part(0)->Verify({});
  ASSERT_OK(report.status());
  EXPECT_THAT(report->problems, IsEmpty());
}

TEST_F(GroupPiecesTest, WhatNobodyWroteIsMissed) {
  std::mt19937_64 random(9);
  SplitArray array = Split("w", {8, 8}, {4, 1}, random);
  for (auto& [box, owner] : array.boxes) owner = 1;
  array.boxes.pop_back();
  ASSERT_OK(SaveAll(1, {array}));
  const auto step = group_.part(0)->Read(1);
  ASSERT_OK(step.status());
  const auto leaf = (*step)->Find(KeyOf("state", "w"));
  EXPECT_EQ(leaf.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(leaf.status().message(), HasSubstr("state/w"));
  const auto report = group_.part(0)->Verify({});
  ASSERT_OK(report.status());
  ASSERT_EQ(report->problems.size(), 1U);
}

// A part by itself gives what it has, and says what it lacks.
TEST_F(GroupPiecesTest, APartByItselfHasItsBoxes) {
  std::mt19937_64 random(10);
  SplitArray array = Split("w", {9, 4}, {3, 1}, random);
  for (uint32_t part = 0; part < kPieceParts; ++part) array.boxes[part].second = part;
  ASSERT_OK(SaveAll(1, {array}));
  const auto step = group_.part(2)->Read(1);
  ASSERT_OK(step.status());
  const auto leaf = (*step)->Find(KeyOf("state", "w"));
  ASSERT_OK(leaf.status());
  EXPECT_TRUE((*leaf)->partial);
  ExpectBox(**step, **leaf, array, {{7, 1}, {9, 3}});
  std::vector<int32_t> out(36);
  const LoadRequest request{
      &**leaf, format::WholeArray(array.shape), reinterpret_cast<std::byte*>(out.data()), {}};
  const Status status = (*step)->Load({&request, 1}).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("12 of 36 elements"));
  const Status exported = Export(*group_.part(2), 1, dir_ / "x", {}).status();
  EXPECT_EQ(exported.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(exported.message(), HasSubstr("of their root"));
}

// The export equals that of one process: an import of it has the same bytes.
TEST_F(GroupPiecesTest, AnExportHasTheChunksOfAllParts) {
  std::mt19937_64 random(12);
  std::vector<SplitArray> arrays;
  for (uint64_t i = 0; i < 6; ++i) {
    arrays.push_back(Split(StrCat("a", i), {30 + i, 50}, {1 + i % 3, 2}, random));
  }
  ASSERT_OK(SaveAll(1, arrays));
  for (const ExportMode mode : {ExportMode::kAuto, ExportMode::kLink, ExportMode::kCopy}) {
    ExportOptions options;
    options.mode = mode;
    const auto report =
        Export(*group_.part(0), 1, dir_ / StrCat("out", static_cast<int>(mode)), options);
    ASSERT_OK(report.status());
    if (mode != ExportMode::kAuto) {
      EXPECT_EQ(report->mode, mode);
    }
    ExpectExported(report->path, arrays);
  }
}

// Arrays whose pieces have no common grid are encoded anew, all others go as they are.
TEST_F(GroupPiecesTest, AnExportHasOneGridForPiecesWithTheirOwn) {
  StoreOptions options;
  options.codec = CodecPolicy::kBlosc;
  for (const bool compressed : {false, true}) {
    if (compressed) {
      ASSERT_OK(group_.Close());
      group_ = {};
      auto stores = GroupStores::Open(dir_ / "run", kPieceParts, options);
      ASSERT_OK(stores.status());
      group_ = std::move(*stores);
    }
    std::mt19937_64 random(13);
    const std::vector<SplitArray> arrays = {Split("even", {64, 50}, {4, 2}, random),
                                            Split("prime", {2097166}, {2}, random),
                                            Split("rows", {2, 2097166}, {1, 2}, random)};
    const uint64_t step = compressed ? 2 : 1;
    ASSERT_OK(SaveAll(step, arrays));
    for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy}) {
      for (const int zarr : {2, 3}) {
        const std::string name = StrCat("out", step, "-", static_cast<int>(mode), zarr);
        SCOPED_TRACE(name);
        ExportOptions wanted;
        wanted.mode = mode;
        wanted.zarr_format = zarr;
        const auto report = Export(*group_.part(0), step, dir_ / name, wanted);
        ASSERT_OK(report.status());
        EXPECT_EQ(report->mode, mode);
        const uint64_t rewritten = std::filesystem::file_size(report->path + "/state/d/rewritten");
        EXPECT_GT(rewritten, 3 * 2097166U * 4);
        EXPECT_LT(rewritten, 27'000'000U) << "and nothing of the others, and little padding";
        ExpectExported(report->path, arrays);
      }
    }
  }
}

TEST_F(GroupPiecesTest, DamageIsNotWrittenAnew) {
  std::mt19937_64 random(14);
  const SplitArray prime = Split("prime", {2097166}, {2}, random);
  ASSERT_OK(SaveAll(1, {prime}));
  const auto step = group_.part(0)->Read(1);
  ASSERT_OK(step.status());
  const auto leaf = (*step)->Find(KeyOf("state", "prime"));
  ASSERT_OK(leaf.status());
  const format::ChunkRecord& chunk = (*leaf)->chunks.back();
  const std::string segment = SegmentPath(PartPath(dir_ / "run", chunk.part), chunk.segment);
  {
    std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(chunk.offset_bytes + 9));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(chunk.offset_bytes + 9));
    file.put(static_cast<char>(byte ^ 1));
  }
  const Status status = Export(*group_.part(0), 1, dir_ / "x", {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(segment));
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_EQ(entry.path().filename(), "run");
  }
}

TEST_F(GroupPiecesTest, BoxesThatOverlapAreRefused) {
  std::mt19937_64 random(11);
  SplitArray array = Split("w", {8}, {2}, random);
  for (auto& [box, owner] : array.boxes) owner = 0;
  array.boxes[1].first.start = {3};
  EXPECT_EQ(PreparePart(0, 1, {array}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stepwell::db
