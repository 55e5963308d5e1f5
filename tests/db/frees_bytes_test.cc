// SPDX-License-Identifier: Apache-2.0
// The bytes that deleting a step would free, and those that its save says it wrote.
#include "db/log/frees_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "db/log/slot_file.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;
using ::testing::Optional;
using ::testing::Pair;

// 1.2 MB that is the same for ten seeds in a row, beside a leaf that always differs.
const std::vector<LeafSpec> kTuned = {{"frozen", {300'000}, true, false, 10, 0, 150'000},
                                      {"tuned", {1000}, false, false}};
const std::vector<LeafSpec> kFrozen = {kTuned[0]};
constexpr uint64_t kFrozenBytes = 1'200'000;
constexpr uint64_t kTunedBytes = 4000;

// An encoded chunk has a head of some bytes.
auto Near(uint64_t bytes) { return AllOf(Ge(bytes), Le(bytes + 200)); }

class FreesBytesTest : public ReclaimTest {
 protected:
  static void SaveOf(Store* store, uint64_t step, uint64_t seed, const std::vector<LeafSpec>& specs,
                     IfExists if_exists = IfExists::kError) {
    const auto handle = SaveSeeded(store, step, seed, specs, if_exists);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  static uint64_t FreesOf(Store* store, uint64_t step) {
    const std::vector<uint64_t> steps = {step};
    const auto frees = store->FreesBytes(steps);
    EXPECT_OK(frees.status());
    EXPECT_EQ(frees->size(), 1U);
    EXPECT_TRUE(frees->at(step).has_value());
    return frees->at(step).value_or(~uint64_t{0});
  }
  static void DeleteStep(Store* store, uint64_t step) {
    const std::vector<uint64_t> steps = {step};
    ASSERT_OK(store->Delete(steps));
  }
  // Sums the different payloads of all steps but `without`, by their records.
  static uint64_t PayloadBytes(Store* store, uint64_t without = ~uint64_t{0}) {
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> payloads;
    for (const uint64_t step : StepNumbers(store)) {
      if (step == without) continue;
      const auto reader = store->Read(step);
      EXPECT_OK(reader.status());
      const auto leaves = (*reader)->Leaves("");
      EXPECT_OK(leaves.status());
      for (const auto& leaf : *leaves) {
        for (const auto& chunk : leaf.chunks) {
          payloads[{chunk.segment, chunk.offset_bytes}] = chunk.stored_bytes;
        }
      }
    }
    uint64_t bytes = 0;
    for (const auto& [place, stored_bytes] : payloads) bytes += stored_bytes;
    return bytes;
  }
  // Each step frees what the others do not have, one by one and all at once.
  static void ExpectFrees(Store* store) {
    const auto all = store->FreesBytes({});
    ASSERT_OK(all.status());
    const auto numbers = StepNumbers(store);
    ASSERT_EQ(all->size(), numbers.size());
    const uint64_t bytes = PayloadBytes(store);
    for (const uint64_t step : numbers) {
      SCOPED_TRACE(step);
      const uint64_t expected = bytes - PayloadBytes(store, step);
      EXPECT_EQ(all->at(step), expected);
      EXPECT_EQ(FreesOf(store, step), expected);
    }
  }
};

TEST_F(FreesBytesTest, WhatSeveralStepsHaveNoneOfThemFrees) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 5; ++step) SaveOf(store.get(), step, step, kTuned);
  for (uint64_t step = 1; step <= 5; ++step) {
    EXPECT_THAT(FreesOf(store.get(), step), Near(kTunedBytes));
  }
  // Others with content of their own, in the same segments.
  for (uint64_t step = 11; step <= 25; ++step) SaveOf(store.get(), step, step, kTuned);
  ExpectFrees(store.get());
  ASSERT_OK(store->Close());
  StoreOptions options = Options();
  options.read_only = true;
  ExpectFrees(Open(options).get());
}

TEST_F(FreesBytesTest, AStepWhoseChunksAllAreANewerOnesFreesNothing) {
  const auto store = Open(Options());
  SaveOf(store.get(), 1, 1, kFrozen);
  EXPECT_THAT(FreesOf(store.get(), 1), Near(kFrozenBytes));
  SaveOf(store.get(), 2, 1, kFrozen);
  EXPECT_EQ(FreesOf(store.get(), 1), 0U);
  EXPECT_EQ(FreesOf(store.get(), 2), 0U);
  SaveOf(store.get(), 3, 1, kFrozen);
  DeleteStep(store.get(), 1);
  EXPECT_EQ(FreesOf(store.get(), 2), 0U);
  EXPECT_EQ(FreesOf(store.get(), 3), 0U);
}

// A step frees what it alone refers to, too.
TEST_F(FreesBytesTest, TheLastStepThatHasAChunkFreesItWhoeverWroteIt) {
  const auto store = Open(Options());
  SaveOf(store.get(), 1, 1, kFrozen);
  SaveOf(store.get(), 2, 1, kFrozen);
  const auto records = store->Steps();
  ASSERT_OK(records.status());
  EXPECT_THAT(records->back().referenced_bytes, Near(kFrozenBytes));
  DeleteStep(store.get(), 1);
  EXPECT_THAT(FreesOf(store.get(), 2), Near(kFrozenBytes));
  ExpectFrees(store.get());
}

TEST_F(FreesBytesTest, ADeleteFreesWhatWasSaid) {
  const auto store = Open(Options());
  for (const uint64_t step : {1U, 2U, 3U}) SaveOf(store.get(), step, step, kTuned);
  for (const uint64_t step : {11U, 12U}) SaveOf(store.get(), step, step, kTuned);
  // Alone with its content; then with another that has it; then the last of two.
  SaveOf(store.get(), 21, 21, kTuned);
  for (const uint64_t step : {21U, 2U, 11U, 12U}) {
    SCOPED_TRACE(step);
    ASSERT_OK(store->Reclaim().status());
    const uint64_t frees = FreesOf(store.get(), step);
    const uint64_t payloads = PayloadBytes(store.get());
    const SpaceStats before = store->Stats().space;
    DeleteStep(store.get(), step);
    ASSERT_OK(store->Reclaim().status());
    const SpaceStats after = store->Stats().space;
    EXPECT_EQ(payloads - PayloadBytes(store.get()), frees);
    if (frees < kFrozenBytes) continue;
    const auto used = [](const SpaceStats& space) {
      return space.live_bytes + space.padding_bytes + space.dead_bytes;
    };
    EXPECT_GE(used(before) - used(after) + 100'000, frees);
  }
  ExpectFrees(store.get());
}

TEST_F(FreesBytesTest, AStepThatIsNotThereIsNamed) {
  const auto store = Open(Options());
  SaveOf(store.get(), 1, 1, kFrozen);
  const std::vector<uint64_t> steps = {1, 7};
  EXPECT_EQ(store->FreesBytes(steps).status().code(), StatusCode::kNotFound);
  ASSERT_OK(store->Close());
  StoreOptions options = Options();
  options.read_only = true;
  EXPECT_EQ(Open(options)->FreesBytes(steps).status().code(), StatusCode::kNotFound);
}

// Damaged records hide the needs of their step, and so the bytes that a neighbour frees.
TEST_F(FreesBytesTest, WithoutTheRecordsOfANeighbourItIsNotKnown) {
  {
    StoreOptions options = Options();
    options.segment_bytes = 1 << 20;  // each step in segments of its own
    const auto store = Open(options);
    for (const uint64_t step : {1U, 11U, 21U}) SaveOf(store.get(), step, step, kTuned);
    ASSERT_OK(store->Close());
  }
  SegmentFiles files(io::LocalFileSystem(), path_);
  const auto slot_file = SlotFile::Open(io::LocalFileSystem(), path_, /*write=*/false, nullptr);
  const auto state = RecoverByMarks((*slot_file)->Read().value(), files, nullptr);
  ASSERT_OK(state.status());
  LiveSteps::List live;
  for (const auto& [step, each] : state->live) live.push_back(std::make_shared<LiveStep>(each));
  const uint64_t own_bytes = kFrozenBytes + kTunedBytes;
  EXPECT_THAT(FreesBytes(files, live, {}, {}),
              ElementsAre(Pair(1, Optional(Near(own_bytes))), Pair(11, Optional(Near(own_bytes))),
                          Pair(21, Optional(Near(own_bytes)))));

  const auto segments_of = [](const LiveStep& step) {
    std::set<uint64_t> segments;
    for (const auto& extent : step.record.extents) {
      if (extent.stored_bytes > 0) segments.insert(extent.segment);
    }
    return segments;
  };
  auto broken = std::make_shared<LiveStep>(*live[2]);
  broken->place.offset_bytes += kGrainBytes;
  // The step in the middle shares a segment with the first or the last.
  std::vector<bool> beside;
  for (const auto& step : live) {
    bool shares = false;
    for (const uint64_t segment : segments_of(*step)) {
      shares = shares || segments_of(*broken).contains(segment);
    }
    beside.push_back(shares);
  }
  live[2] = broken;
  const auto frees = FreesBytes(files, live, {}, {});
  EXPECT_EQ(frees.at(21), std::nullopt);
  EXPECT_EQ(frees.at(1).has_value(), !beside[0]);
  EXPECT_EQ(frees.at(11).has_value(), !beside[1]);
}

TEST_F(FreesBytesTest, AHandleSaysWhatItsSaveWrote) {
  EXPECT_FALSE(SaveHandle().stats().has_value());
  const auto store = Open(Options());
  for (const uint64_t step : {1U, 2U}) {
    const auto handle = SaveSeeded(store.get(), step, step, kTuned);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    const auto stats = handle->stats();
    ASSERT_TRUE(stats.has_value());
    const auto records = store->Steps();
    ASSERT_OK(records.status());
    const format::StepRecord& record = records->back();
    EXPECT_EQ(stats->logical_bytes, record.logical_bytes);
    EXPECT_EQ(stats->stored_bytes, record.stored_bytes);
    EXPECT_THAT(stats->referenced_bytes, Near(step == 1 ? 0 : kFrozenBytes));
    EXPECT_EQ(stats->owned_bytes(), record.stored_bytes - record.referenced_bytes);
    EXPECT_EQ(stats->chunks, record.chunk_count);
    EXPECT_GT(stats->snapshot_time.count(), 0);
    EXPECT_GE(stats->durable_time, stats->snapshot_time);
  }
  const auto skipped = SaveSeeded(store.get(), 2, 2, kTuned, IfExists::kSkip);
  ASSERT_OK(skipped.status());
  ASSERT_OK(skipped->Wait());
  EXPECT_FALSE(skipped->stats().has_value());
  // A handle outlives its store, with its stats.
  const auto last = SaveSeeded(store.get(), 3, 3, kTuned);
  ASSERT_OK(last.status());
  ASSERT_OK(store->Close());
  ASSERT_TRUE(last->stats().has_value());
  EXPECT_THAT(last->stats()->owned_bytes(), Near(kTunedBytes));
}

}  // namespace
}  // namespace stepwell::db
