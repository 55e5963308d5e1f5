// SPDX-License-Identifier: Apache-2.0
// Statistics through sessions with and without them, reclaim, rewrites and groups.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "db/group.h"
#include "tests/db/support/store_support.h"
#include "tests/sim/support/sim_world.h"
#include "tests/sim/support/store_machine.h"

namespace stepwell::sim {
namespace {

const std::vector<db::LeafSpec> kSpecs = {{"changing", {3000}, true, false, 1, 0, 4096},
                                          {"steady", {5000}, true, false, 1000, 0, 8192},
                                          {"small", {3}, false, false},
                                          {"padded", {71, 53}, false, false, 1, 0, 5000}};

Status SaveAndWait(db::Store* store, uint64_t step, uint64_t seed) {
  STEPWELL_ASSIGN_OR_RETURN(const auto handle, db::SaveSeeded(store, step, seed, kSpecs));
  return handle.Wait();
}

// All arrays have them, and they are right.
Status CheckAll(db::Store* store, uint64_t step, uint64_t seed) {
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store->Read(step));
  STEPWELL_RETURN_IF_ERROR(db::CheckSeeded(reader.get(), seed, kSpecs));
  for (const db::LeafSpec& spec : kSpecs) {
    STEPWELL_ASSIGN_OR_RETURN(const auto leaf, reader->Find(db::KeyOf("state", spec.name)));
    STEPWELL_RETURN_IF_ERROR(db::CheckStatistics(*leaf, db::LeafData(spec, seed)));
  }
  return OkStatus();
}

format::LeafStatistics Of(db::Store* store, uint64_t step, const std::string& name) {
  const auto reader = store->Read(step);
  EXPECT_OK(reader.status());
  const auto leaf = (*reader)->Find(db::KeyOf("state", name));
  EXPECT_OK(leaf.status());
  EXPECT_TRUE((*leaf)->statistics.has_value());
  return (*leaf)->statistics.value_or(format::LeafStatistics());
}

TEST(StatisticsTest, AreRightInEverySessionThatTakesThem) {
  const auto world = SimWorld::Make({1, kUnlimitedBytes});
  StoreMachine machine(world, 1);
  uint64_t step = 0;
  for (int session = 0; session < 6; ++session) {
    const bool takes = session % 3 != 1;
    auto store = machine.Open({.delta = session % 2 == 0, .statistics = takes});
    ASSERT_OK(store.status());
    for (int i = 0; i < 4; ++i, ++step) {
      ASSERT_OK(SaveAndWait(store->get(), step, step));
      if (takes) EXPECT_OK(CheckAll(store->get(), step, step));
      if (!takes) EXPECT_OK(db::CheckSeeded(store->get(), step, step, kSpecs));
    }
    ASSERT_OK((*store)->Close());
  }
}

// What did not change is referred to, and counts as unchanged.
TEST(StatisticsTest, ReferencesAreNoChanges) {
  const auto world = SimWorld::Make({2, kUnlimitedBytes});
  StoreMachine machine(world, 2);
  auto store = machine.Open({.delta = false, .statistics = true});
  ASSERT_OK(store.status());
  for (const uint64_t step : {1U, 2U}) ASSERT_OK(SaveAndWait(store->get(), step, step));
  EXPECT_EQ(Of(store->get(), 2, "steady").changed, 0U);
  EXPECT_EQ(Of(store->get(), 2, "steady").changed_count, format::ChangedCount::kExact);
  EXPECT_EQ(Of(store->get(), 2, "changing").changed, 3000U);
  EXPECT_EQ(Of(store->get(), 2, "changing").changed_count, format::ChangedCount::kAtMost);
}

TEST(StatisticsTest, AnArrayThatIsNotReadHasThem) {
  const auto world = SimWorld::Make({3, kUnlimitedBytes});
  StoreMachine machine(world, 3);
  auto store = machine.Open({.statistics = true});
  ASSERT_OK(store.status());
  for (const uint64_t step : {1U, 2U, 3U}) {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(kSpecs.size());
    db::SaveRequest request = db::MakeRequest(step, 7, kSpecs, &scratch);
    request.ticket = step;
    for (db::LeafInput& leaf : request.items[0].leaves) leaf.unchanged_since = step == 1 ? 0 : 1;
    auto handle = (*store)->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    EXPECT_OK(CheckAll(store->get(), step, 7));
  }
  EXPECT_EQ(Of(store->get(), 3, "changing").changed, 0U);
}

// The session before took none: what the caller knows of it does not count, and the array is read.
TEST(StatisticsTest, AnArrayThatIsNotReadAfterASessionWithout) {
  const auto world = SimWorld::Make({7, kUnlimitedBytes});
  StoreMachine machine(world, 7);
  for (const bool takes : {false, true}) {
    auto store = machine.Open({.statistics = takes});
    ASSERT_OK(store.status());
    const uint64_t step = takes ? 2 : 1;
    std::vector<std::vector<float>> scratch;
    scratch.reserve(kSpecs.size());
    db::SaveRequest request = db::MakeRequest(step, 7, kSpecs, &scratch);
    request.ticket = takes ? 1 : 0;
    for (db::LeafInput& leaf : request.items[0].leaves) leaf.unchanged_since = 1;
    auto handle = (*store)->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    if (takes) EXPECT_OK(CheckAll(store->get(), 2, 7));
  }
}

TEST(StatisticsTest, WhatIsNotFiniteEntersNothing) {
  const auto world = SimWorld::Make({8, kUnlimitedBytes});
  StoreMachine machine(world, 8);
  auto store = machine.Open({.statistics = true});
  ASSERT_OK(store.status());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> data = {1, nan, -2, std::numeric_limits<float>::infinity()};
  db::SaveRequest request;
  request.step = 1;
  request.items.push_back({.name = "state", .leaves = {}});
  db::LeafInput leaf;
  leaf.record.key = db::KeyOf("state", "w");
  leaf.record.dtype = format::DType::kFloat32;
  leaf.record.shape = {data.size()};
  leaf.data = reinterpret_cast<const std::byte*>(data.data());
  request.items[0].leaves.push_back(std::move(leaf));
  auto handle = (*store)->Save(std::move(request));
  ASSERT_OK(handle.status());
  ASSERT_OK(handle->Wait());
  const format::LeafStatistics taken = Of(store->get(), 1, "w");
  EXPECT_EQ(taken.nonfinite, 2U);
  EXPECT_EQ(taken.min, -2);
  EXPECT_EQ(taken.max, 1);
  EXPECT_EQ(taken.sum, -1);
  EXPECT_EQ(taken.sum_of_squares, 5);
}

// Most steps die, their space is given back around what is left, and the store is opened again.
// (tests/db/statistics_test.cc has moves.)
TEST(StatisticsTest, SurviveReclaim) {
  const auto world = SimWorld::Make({4, kUnlimitedBytes});
  StoreMachine machine(world, 4);
  for (int session = 0; session < 2; ++session) {
    auto store = machine.Open({.statistics = true});
    ASSERT_OK(store.status());
    if (session == 0) {
      std::vector<uint64_t> dead;
      for (uint64_t step = 0; step < 60; ++step) {
        ASSERT_OK(SaveAndWait(store->get(), step, step));
        if (step % 7 != 3) dead.push_back(step);
      }
      ASSERT_OK((*store)->Delete(dead));
      ASSERT_OK((*store)->Reclaim().status());
    }
    for (uint64_t step = 3; step < 60; step += 7) EXPECT_OK(CheckAll(store->get(), step, step));
    ASSERT_OK((*store)->Close());
  }
}

TEST(StatisticsTest, SurviveTheLossOfAnItem) {
  const auto world = SimWorld::Make({5, kUnlimitedBytes});
  StoreMachine machine(world, 5);
  auto store = machine.Open({.statistics = true});
  ASSERT_OK(store.status());
  std::vector<std::vector<float>> scratch;
  scratch.reserve(kSpecs.size());
  db::SaveRequest request = db::MakeRequest(1, 1, kSpecs, &scratch);
  const float value = 1;
  db::LeafInput leaf;
  leaf.record.key = db::KeyOf("other", "w");
  leaf.record.dtype = format::DType::kFloat32;
  leaf.data = reinterpret_cast<const std::byte*>(&value);
  request.items.push_back({.name = "other", .leaves = {}});
  request.items.back().leaves.push_back(std::move(leaf));
  auto handle = (*store)->Save(std::move(request));
  ASSERT_OK(handle.status());
  ASSERT_OK(handle->Wait());
  const std::string other = "other";
  ASSERT_OK((*store)->DeleteItems(1, {&other, 1}));
  EXPECT_OK(CheckAll(store->get(), 1, 1));
}

// Two processes have halves of an array.
TEST(StatisticsTest, PartsAddUp) {
  const auto world = SimWorld::Make({6, kUnlimitedBytes});
  StoreMachine machine(world, 6);
  auto root = machine.Open({.group = db::StoreGroup{}, .statistics = true});
  ASSERT_OK(root.status());
  auto second = machine.Open({.group = db::StoreGroup{(*root)->id(), 1}, .statistics = true});
  ASSERT_OK(second.status());
  const db::LeafSpec spec{"w", {2000}};
  const std::vector<float> data = db::LeafData(spec, 1);
  const format::Id128 save_id = {1};
  const std::vector<db::Store*> parts = {root->get(), second->get()};
  for (uint64_t part = 0; part < 2; ++part) {
    db::SaveRequest request;
    request.step = 1;
    request.group = db::GroupSave{save_id, {0, 1}};
    request.items.push_back({.name = "state", .leaves = {}});
    db::LeafInput leaf;
    leaf.record.key = db::KeyOf("state", "w");
    leaf.record.dtype = format::DType::kFloat32;
    leaf.record.shape = {2000};
    leaf.shard_shape = {1000};
    leaf.partial = true;
    leaf.shards.push_back({.origin = {part * 1000},
                           .shape = {1000},
                           .data = reinterpret_cast<const std::byte*>(&data[part * 1000]),
                           .strides_bytes = {}});
    request.items[0].leaves.push_back(std::move(leaf));
    auto handle = parts[part]->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  db::Decision decision;
  decision.step = 1;
  decision.save_id = save_id;
  decision.commit = true;
  ASSERT_OK((*root)->Decide(decision).status());
  const auto reader = (*root)->Read(1);
  ASSERT_OK(reader.status());
  const auto leaf = (*reader)->Find(db::KeyOf("state", "w"));
  ASSERT_OK(leaf.status());
  EXPECT_OK(db::CheckStatistics(**leaf, data));
}

}  // namespace
}  // namespace stepwell::sim
