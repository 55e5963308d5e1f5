// SPDX-License-Identifier: Apache-2.0
// Two steps compared: by their records alone, by content where these cannot tell; and one leaf read
// in several steps.
#include "db/read/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "db/layout.h"
#include "db/read/load_steps.h"
#include "format/key.h"
#include "format/piece.h"
#include "tests/db/support/damage_support.h"
#include "tests/db/support/opened_step.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CompareTest : public ::testing::Test {
 protected:
  using Step = OpenedStep;

  void SetUp() override {
    auto store = Store::Open(dir_ / "run", {});
    ASSERT_OK(store.status());
    store_ = *std::move(store);
  }

  void Save(uint64_t step, uint64_t seed, const std::vector<LeafSpec>& specs) {
    auto handle = SaveSeeded(store_.get(), step, seed, specs);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }

  Step Read(uint64_t number) { return OpenStep(store_.get(), number); }

  static LeafRecord Find(const Step& step, const std::string& name) {
    return *std::ranges::find(step.records, KeyOf("state", name), &LeafRecord::key);
  }

  // All leaves; both steps have the same.
  static Result<LeafChanges> Compare(const Step& before, const Step& after, bool elements) {
    std::vector<LeafPair> pairs(before.records.size());
    for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = {i, i};
    return CompareLeaves(before.compared(), after.compared(), pairs, {.count_elements = elements});
  }

  static std::vector<std::string> NamesOf(const LeafChanges& changes, const Step& step) {
    std::vector<std::string> names;
    for (const LeafChange& change : changes.changes) {
      names.push_back(
          format::PathToText(format::DecodeLeafKey(step.records[change.leaf.after].key)->path));
    }
    return names;
  }

  TempDir dir_;
  std::unique_ptr<Store> store_;
  const std::vector<LeafSpec> specs_ = {{.name = "a", .shape = {7}},
                                        {.name = "b", .shape = {1000, 1100}, .changes_every = 2},
                                        {.name = "c", .shape = {}},
                                        {.name = "d", .shape = {0, 3}}};
};

TEST_F(CompareTest, RecordsTellWhatDiffers) {
  Save(1, 2, specs_);
  Save(2, 3, specs_);
  const Step one = Read(1);
  const Step other = Read(2);
  const auto changes = Compare(one, other, /*elements=*/false);
  ASSERT_OK(changes.status());
  EXPECT_THAT(NamesOf(*changes, other), ElementsAre("a", "c", "text"));
  EXPECT_EQ(changes->stats.reads, 0U);
  const auto itself = Compare(one, one, /*elements=*/true);
  ASSERT_OK(itself.status());
  EXPECT_THAT(itself->changes, IsEmpty());
  EXPECT_EQ(itself->stats.reads, 0U);
}

TEST_F(CompareTest, ChunksWithoutAHashAreReadAndCompared) {
  Save(1, 2, specs_);
  Save(2, 3, specs_);
  Save(3, 4, specs_);
  const Step one = Read(1);
  for (const bool elements : {false, true}) {
    for (const auto& [number, names] : std::vector<std::pair<uint64_t, std::vector<std::string>>>{
             {2, {"a", "c", "text"}}, {3, {"a", "b", "c", "text"}}}) {
      Step other = Read(number);
      uint64_t chunks = 0;
      for (LeafRecord& record : other.records) {
        for (format::ChunkRecord& chunk : record.chunks) chunk.hash = {};
        chunks += record.chunks.size();
      }
      const auto changes = Compare(one, other, elements);
      ASSERT_OK(changes.status());
      EXPECT_EQ(NamesOf(*changes, other), names);
      EXPECT_GE(changes->stats.chunks, 2 * (chunks - 1));  // the text may differ in length
      for (const LeafChange& change : changes->changes) {
        const LeafRecord& record = other.records[change.leaf.after];
        const bool is_array = record.kind == format::LeafKind::kArray;
        EXPECT_EQ(change.changed_chunks, record.chunks.size());
        EXPECT_EQ(change.changed_elements.has_value(), elements && is_array);
      }
      const auto boxes = ChangedBoxes(one.records[1], other.records[1]);
      ASSERT_OK(boxes.status());
      EXPECT_FALSE(boxes->has_value());
    }
  }
}

TEST_F(CompareTest, WhatMayNotBeReadIsAsked) {
  Save(1, 2, specs_);
  Save(2, 3, specs_);
  const Step one = Read(1);
  Step other = Read(2);
  std::vector<LeafPair> pairs(one.records.size());
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = {i, i};
  for (LeafRecord& record : other.records) {
    for (format::ChunkRecord& chunk : record.chunks) {
      if (record.key == KeyOf("state", "b") || record.key == KeyOf("state", "text")) {
        chunk.hash = {};
      }
    }
  }
  const auto changes = CompareLeaves(one.compared(), other.compared(), pairs, {.may_read = false});
  ASSERT_OK(changes.status());
  EXPECT_EQ(changes->stats.reads, 0U);
  EXPECT_THAT(NamesOf(*changes, other), ElementsAre("a", "b", "c", "text"));
  uint64_t elements = 0;
  for (const AskedBox& asked : changes->asked) {
    EXPECT_EQ(changes->changes[asked.change].changed_chunks, 0U);
    if (asked.change == 1) elements += format::ChunkBytes(format::Extents(asked.box), 1);
  }
  EXPECT_EQ(elements, 1000U * 1100U);
}

TEST_F(CompareTest, BoxesOfTheChunksThatDiffer) {
  const std::vector<LeafSpec> specs = {{.name = "w",
                                        .shape = {64, 1024},
                                        .changes_every = 2,
                                        .steady_bytes = 128 << 10,
                                        .chunk_bytes_max = 32 << 10}};
  Save(1, 2, specs);
  Save(2, 3, specs);
  const auto boxes = ChangedBoxes(Find(Read(1), "w"), Find(Read(2), "w"));
  ASSERT_OK(boxes.status());
  ASSERT_TRUE(boxes->has_value());
  std::vector<uint64_t> rows;
  for (const format::Box& box : **boxes) {
    EXPECT_EQ(box.stop, (format::Shape{box.start[0] + 8, 1024}));
    rows.push_back(box.start[0]);
  }
  EXPECT_THAT(rows, ElementsAre(32, 40, 48, 56));
}

TEST_F(CompareTest, ARecordThatContradictsItselfIsDamage) {
  Save(1, 2, specs_);
  const Step one = Read(1);
  Step other = Read(1);
  other.records[1].chunks.pop_back();
  const auto changes = Compare(one, other, /*elements=*/false);
  EXPECT_EQ(changes.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(changes.status().message(), HasSubstr("step 1"));
  EXPECT_EQ(ChangedBoxes(one.records[1], other.records[1]).status().code(), StatusCode::kDataLoss);
}

TEST_F(CompareTest, OneLeafOfManyStepsIsReadOnce) {
  const std::vector<LeafSpec> specs = {{.name = "w", .shape = {5000}, .changes_every = 3}};
  std::vector<Step> steps;
  for (uint64_t seed = 0; seed < 9; ++seed) {
    Save(seed, seed, specs);
    steps.push_back(Read(seed));
  }
  std::vector<std::vector<float>> out(steps.size(), std::vector<float>(5000));
  std::vector<StepRequest> requests;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto leaf = std::ranges::find(steps[i].records, KeyOf("state", "w"), &LeafRecord::key);
    requests.push_back({steps[i].reader.get(),
                        {&*leaf,
                         format::WholeArray(leaf->shape),
                         reinterpret_cast<std::byte*>(out[i].data()),
                         {}}});
  }
  const auto stats = LoadFromSteps(requests);
  ASSERT_OK(stats.status());
  EXPECT_EQ(stats->chunks, 3U);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(out[i], LeafData(specs[0], i)) << i;
  // The error is that of the step that has the damage.
  const format::ChunkRecord chunk = requests[3].request.leaf->chunks[0];
  FlipByte(SegmentPath(dir_ / "run", chunk.segment), chunk.offset_bytes + 100, 1);
  const auto damaged = LoadFromSteps(requests);
  EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(damaged.status().message(), HasSubstr("step 3: "));
}

}  // namespace
}  // namespace stepwell::db
