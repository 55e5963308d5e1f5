// SPDX-License-Identifier: Apache-2.0
// Arrays in memory, brought from one step to another.
#include "db/read/update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "db/layout.h"
#include "format/key.h"
#include "format/piece.h"
#include "tests/db/support/damage_support.h"
#include "tests/db/support/opened_step.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kRows = 1000;
constexpr uint64_t kColumns = 600;
constexpr uint64_t kBytes = kRows * kColumns * sizeof(float);

// Three chunks in which one element of fifty changes with each step, and a leaf that stays.
const std::vector<LeafSpec> kSpecs = {{.name = "a", .shape = {kRows, kColumns}, .sparse_every = 50},
                                      {.name = "b", .shape = {700}, .changes_every = 100},
                                      {.name = "c", .shape = {}}};

class UpdateTest : public ::testing::TestWithParam<bool> {
 protected:
  struct Step : OpenedStep {
    size_t Find(const std::string& name) const {
      return static_cast<size_t>(
          std::ranges::find(records, KeyOf("state", name), &format::LeafRecord::key) -
          records.begin());
    }
  };

  void SetUp() override {
    StoreOptions options;
    options.delta = GetParam();
    options.codec = CodecPolicy::kRaw;
    auto store = Store::Open(path_, options);
    ASSERT_OK(store.status());
    store_ = *std::move(store);
    for (uint64_t step = 1; step <= 6; ++step) {
      const auto handle = SaveSeeded(store_.get(), step, step, kSpecs);
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
    }
  }

  Step Read(uint64_t number) { return {OpenStep(store_.get(), number)}; }

  // All of leaf "a", in boxes of some rows each.
  static LeafMemory MemoryOf(const Step& before, const Step& after, std::vector<float>* array,
                             uint64_t rows) {
    LeafMemory memory{{before.Find("a"), after.Find("a")}, {}};
    for (uint64_t row = 0; row < kRows; row += rows) {
      memory.boxes.push_back({{{row, 0}, {std::min(row + rows, kRows), kColumns}},
                              reinterpret_cast<std::byte*>(array->data() + row * kColumns),
                              {static_cast<int64_t>(kColumns * sizeof(float)), sizeof(float)}});
    }
    return memory;
  }

  TempDir dir_;
  const std::string path_ = dir_ / "run";
  std::unique_ptr<Store> store_;
};

INSTANTIATE_TEST_SUITE_P(Delta, UpdateTest, ::testing::Bool());

TEST_P(UpdateTest, BringsArraysForthAndBack) {
  for (const auto& [from, to] : {std::pair<uint64_t, uint64_t>{1, 2}, {1, 6}, {6, 2}, {4, 4}}) {
    SCOPED_TRACE(StrCat(from, " to ", to));
    const Step before = Read(from);
    const Step after = Read(to);
    for (const uint64_t rows : {kRows, uint64_t{7}}) {
      std::vector<float> array = LeafData(kSpecs[0], from);
      const LeafMemory memory = MemoryOf(before, after, &array, rows);
      const auto update = StepUpdate::Read(before.compared(), after.compared(), {&memory, 1});
      ASSERT_OK(update.status());
      EXPECT_EQ(array, LeafData(kSpecs[0], from));
      ASSERT_OK((*update)->Apply());
      EXPECT_EQ(array, LeafData(kSpecs[0], to));
      const LoadStats& stats = (*update)->stats();
      EXPECT_EQ(stats.bytes_out, from == to ? 0 : kBytes);
      const bool by_differences = GetParam() && from < to;
      EXPECT_LE(stats.bytes_read, from == to ? 0 : by_differences ? kBytes / 2 : 2 * kBytes);
    }
  }
}

// Where the memory has a part of a chunk, its content before cannot be known from it.
TEST_P(UpdateTest, PartsOfAnArray) {
  const Step before = Read(1);
  const Step after = Read(6);
  std::vector<float> array = LeafData(kSpecs[0], 1);
  LeafMemory memory = MemoryOf(before, after, &array, 10);
  memory.boxes = {memory.boxes[3], memory.boxes[50]};
  const auto update = StepUpdate::Read(before.compared(), after.compared(), {&memory, 1});
  ASSERT_OK(update.status());
  ASSERT_OK((*update)->Apply());
  std::vector<float> wanted = LeafData(kSpecs[0], 1);
  const std::vector<float> other = LeafData(kSpecs[0], 6);
  for (const uint64_t row : {30U, 500U}) {
    const auto begin = static_cast<ptrdiff_t>(row * kColumns);
    const auto end = static_cast<ptrdiff_t>((row + 10) * kColumns);
    std::copy(other.begin() + begin, other.begin() + end, wanted.begin() + begin);
  }
  EXPECT_EQ(array, wanted);
}

TEST_P(UpdateTest, MemoryThatDoesNotHoldTheStepIsRefused) {
  const Step before = Read(3);
  const Step after = Read(5);
  std::vector<float> array = LeafData(kSpecs[0], 3);
  array[kColumns * 998] += 1;
  const std::vector<float> wrong = array;
  const LeafMemory memory = MemoryOf(before, after, &array, kRows);
  const auto update = StepUpdate::Read(before.compared(), after.compared(), {&memory, 1});
  EXPECT_EQ(update.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(update.status().message(), HasSubstr("a does not hold step 3: load step 5"));
  EXPECT_EQ(array, wrong);
}

TEST_P(UpdateTest, DamageIsFoundBeforeAnythingIsWritten) {
  const Step before = Read(1);
  const Step after = Read(2);
  const format::ChunkRecord& chunk = after.records[after.Find("a")].chunks.back();
  FlipByte(SegmentPath(path_, chunk.segment), chunk.offset_bytes + chunk.stored_bytes / 2,
           char{0x40});
  std::vector<float> array = LeafData(kSpecs[0], 1);
  const LeafMemory memory = MemoryOf(before, after, &array, kRows);
  const auto update = StepUpdate::Read(before.compared(), after.compared(), {&memory, 1});
  EXPECT_EQ(update.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(update.status().message(), HasSubstr(".seg: offset"));
  EXPECT_EQ(array, LeafData(kSpecs[0], 1));
}

TEST_P(UpdateTest, OtherLeavesAreRefused) {
  const Step before = Read(1);
  const Step after = Read(2);
  std::vector<float> array = LeafData(kSpecs[0], 1);
  LeafMemory memory = MemoryOf(before, after, &array, kRows);
  memory.leaf.before = before.Find("b");
  EXPECT_EQ(StepUpdate::Read(before.compared(), after.compared(), {&memory, 1}).status().code(),
            StatusCode::kInvalidArgument);
  memory = MemoryOf(before, after, &array, kRows);
  memory.boxes.front().box.stop[0] += 1;
  EXPECT_EQ(StepUpdate::Read(before.compared(), after.compared(), {&memory, 1}).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stepwell::db
