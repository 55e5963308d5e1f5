// SPDX-License-Identifier: Apache-2.0
// Disks that have no block left for a frame, for STEPWELL or for an open: what gives way, what is
// answered, and what readers and other parts see meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/sim/support/group_workload.h"
#include "tests/sim/support/store_machine.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

Fault NoRoom(const std::string& path, bool forever = true) {
  return {.kind = OpKind::kWrite, .forever = forever, .os_error = ENOSPC, .path_contains = path};
}

Status SaveSeededStep(db::Store* store, uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(const db::SaveHandle handle,
                            db::SaveSeeded(store, step, step, SpecsOf(step)));
  return handle.Wait();
}

uint64_t LargestSpare(const SimWorld& world) {
  uint64_t most = 0;
  for (const auto& [path, size] : world.Files()) {
    if (path.ends_with(".spare")) most = std::max(most, size);
  }
  return most;
}

uint64_t SpareBytes(const SimWorld& world) {
  uint64_t sum = 0;
  for (const auto& [path, size] : world.Files()) {
    if (path.ends_with(".spare")) sum += size;
  }
  return sum;
}

// Saves until there is a spare segment, and takes the ballast away. The next step's number.
uint64_t SaveUntilThereIsASpare(const std::shared_ptr<SimWorld>& world, db::Store* store) {
  uint64_t step = 0;
  while (step < 200 && LargestSpare(*world) == 0) EXPECT_OK(SaveSeededStep(store, step++));
  EXPECT_GT(LargestSpare(*world), 0U);
  EXPECT_OK(SimFileSystem(world).Remove(kStorePath + "/BALLAST"));
  return step;
}

// The first write lands and says that the disk is full; before the second, the log freezes.
TEST(NoRoomTest, AFrameThatIsWrittenAgainHasReachedTheDisk) {
  int unknown = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    const auto world = SimWorld::Make({seed, kUnlimitedBytes});
    StoreMachine machine(world, seed);
    auto store = machine.Open({});
    ASSERT_OK(store.status());
    for (uint64_t step = 0; step < 3; ++step) ASSERT_OK(SaveSeededStep(store->get(), step));
    Fault fault = NoRoom(".seg", /*forever=*/false);
    fault.effect = Fault::Effect::kDoAndFail;
    world->AddFault(fault);
    world->AddFault({.kind = OpKind::kSync, .forever = true, .path_contains = "/STEPWELL"});
    const Status deleted = (*store)->Delete(std::vector<uint64_t>{1});
    (*store)->Close().IgnoreError("frozen");
    store->reset();
    world->ClearFaults();
    StoreMachine after(world->CrashImageProcessKill(seed), seed);
    auto opened = after.Open({});
    ASSERT_OK(opened.status());
    const auto steps = db::StepNumbers(opened->get());
    const bool is_gone = std::ranges::count(steps, 1U) == 0;
    if (deleted.code() == StatusCode::kOutcomeUnknown) {
      ++unknown;
    } else {
      EXPECT_EQ(deleted.ok(), is_gone) << deleted.ToString();
    }
  }
  EXPECT_GT(unknown, 0);
}

TEST(NoRoomTest, SparesGiveWayToAFrame) {
  const auto world = SimWorld::Make({3, kUnlimitedBytes});
  StoreMachine machine(world, 3);
  auto store = machine.Open({.keep_latest = 2, .segment_bytes = uint64_t{48} << 10});
  ASSERT_OK(store.status());
  const uint64_t step = SaveUntilThereIsASpare(world, store->get());
  world->AddFault(NoRoom(".seg", /*forever=*/false));
  EXPECT_OK((*store)->Delete(std::vector<uint64_t>{step - 1}));
  EXPECT_OK(SaveSeededStep(store->get(), step));
}

TEST(NoRoomTest, SparesGiveWayToTheSlot) {
  const auto world = SimWorld::Make({3, kUnlimitedBytes});
  StoreMachine machine(world, 3);
  auto store = machine.Open({.keep_latest = 2, .segment_bytes = uint64_t{48} << 10});
  ASSERT_OK(store.status());
  const uint64_t step = SaveUntilThereIsASpare(world, store->get());
  world->SetHook([&](OpKind) {  // there is room only where the spare was
    world->ClearFaults();
    if (LargestSpare(*world) > 0) world->AddFault(NoRoom("/STEPWELL"));
  });
  EXPECT_OK((*store)->Delete(std::vector<uint64_t>{step - 1}));
  EXPECT_OK((*store)->Reclaim().status());
  world->SetHook(nullptr);
}

TEST(NoRoomTest, SparesGiveWayToAnOpen) {
  constexpr uint64_t kFirstSegmentBytes = uint64_t{32} << 20;  // a spare that is larger is not it
  const auto world = SimWorld::Make({3, kUnlimitedBytes});
  {
    StoreMachine machine(world, 3);
    auto store = machine.Open(
        {.keep_latest = 1, .segment_bytes = uint64_t{256} << 20, .staging_blocks = 16});
    ASSERT_OK(store.status());
    for (uint64_t step = 0; step < 60 && LargestSpare(*world) <= kFirstSegmentBytes; ++step) {
      auto handle = db::SaveSeeded(store->get(), step, step, {{"w", {3 << 20}, true, false}});
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
    }
    ASSERT_GT(LargestSpare(*world), kFirstSegmentBytes);
  }
  EXPECT_OK(SimFileSystem(world).Remove(kStorePath + "/BALLAST"));
  world->SetCapacity(world->UsedBytes());
  StoreMachine machine(world, 4);
  EXPECT_OK(machine.Open({.keep_latest = 1, .segment_bytes = uint64_t{256} << 20}).status());
}

TEST(NoRoomTest, SparesOfLargerStatesAreGivenBack) {
  constexpr uint64_t kElementsPerMiB = (uint64_t{1} << 20) / sizeof(float);
  const auto world = SimWorld::Make({3, kUnlimitedBytes});
  StoreMachine machine(world, 3);
  auto store =
      machine.Open({.keep_latest = 1, .segment_bytes = uint64_t{256} << 20, .staging_blocks = 16});
  ASSERT_OK(store.status());
  uint64_t step = 0;
  const auto save = [&](uint64_t mib) {
    auto handle = db::SaveSeeded(store->get(), step, step,
                                 {{"w",
                                   {mib * kElementsPerMiB},
                                   /*hold=*/false,
                                   /*compressible=*/false}});
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    ++step;
  };
  while (step < 24) save(32);
  const uint64_t before = SpareBytes(*world);
  ASSERT_GT(before, uint64_t{64} << 20);
  while (step < 224) save(1);
  EXPECT_LE(SpareBytes(*world), uint64_t{64} << 20);  // four segments of the smallest size
}

TEST(NoRoomTest, AReclaimThatCannotWriteTheSlotSaysSoAndErasesNothing) {
  const auto world = SimWorld::Make({5, kUnlimitedBytes});
  StoreMachine machine(world, 5);
  auto store = machine.Open({.segment_bytes = uint64_t{4} << 20});
  ASSERT_OK(store.status());
  for (uint64_t step = 0; step < 40; ++step) ASSERT_OK(SaveSeededStep(store->get(), step));
  std::vector<uint64_t> dead(39);
  std::iota(dead.begin(), dead.end(), 0);
  ASSERT_OK((*store)->Delete(dead));
  // The segment that is written to has died in most part: reclaim begins another.
  world->AddFault(NoRoom("/STEPWELL"));
  const Status refused = (*store)->Reclaim().status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
  StoreMachine after(world->CrashImageProcessKill(1), 6);
  auto opened = after.Open({});
  ASSERT_OK(opened.status());
  EXPECT_EQ(db::StepNumbers(opened->get()), std::vector<uint64_t>{39});
  world->ClearFaults();
  const auto report = (*store)->Reclaim();
  ASSERT_OK(report.status());
  EXPECT_LT(report->bytes_after, report->bytes_before);
  ASSERT_OK(db::CheckSeeded(store->get(), 39, 39, SpecsOf(39)));
}

void CommitOnAllParts(const GroupStores& stores, uint64_t step) {
  for (const auto& store : stores.parts) {
    const auto handle = PreparePart(store.get(), step, step);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  const auto decided = stores.parts[0]->Decide(db::Commit(step, step));
  ASSERT_OK(decided.status());
  for (uint32_t part = 1; part < kParts; ++part) {
    const db::Decision told = db::PassOn(db::Commit(step, step), *decided);
    ASSERT_OK(stores.parts[part]->Decide(told).status());
  }
}

// Part 0 or another one shows an older state than the others.
TEST(NoRoomTest, WhatAPartDoesNotShowYetIsNoDamage) {
  for (const bool of_root : {false, true}) {
    SCOPED_TRACE(of_root);
    const auto world = SimWorld::Make({1, kUnlimitedBytes});
    StoreMachine machine(world, 1);
    GroupStores stores;
    ASSERT_OK(stores.Open(&machine));
    for (uint64_t step = 1; step <= 4; ++step) CommitOnAllParts(stores, step);
    world->AddFault(NoRoom(of_root ? "/store/STEPWELL" : "/process_1/STEPWELL"));
    for (uint64_t step = 5; step <= 12; ++step) CommitOnAllParts(stores, step);
    for (uint32_t part = 1; part < kParts; ++part) {
      stores.parts[part]->Reclaim().status().IgnoreError("a full disk refuses it");
    }
    auto reader = machine.Open({.read_only = true});
    ASSERT_OK(reader.status());
    const Status read = ReadSaves(reader->get()).status();
    EXPECT_EQ(read.code(), StatusCode::kUnavailable) << read.ToString();
    StoreMachine after(world->CrashImageProcessKill(1), 2);
    auto later = after.Open({.read_only = true});
    ASSERT_OK(later.status());
    const auto saves = ReadSaves(later->get());
    ASSERT_OK(saves.status());
    EXPECT_EQ(*saves, (db::Saves{{10, 10}, {11, 11}, {12, 12}}));
    world->ClearFaults();
    ASSERT_OK(stores.parts[of_root ? 0 : 1]->Reclaim().status());
    EXPECT_EQ(*ReadSaves(reader->get()), *saves);
  }
}

// The slot is one commit behind after a power cut, or many where the disk was full; the reader has
// scanned the log.
TEST(NoRoomTest, AReaderDoesNotGoBackWhileAWriterOpens) {
  constexpr size_t kSteps = 6;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    const auto before = SimWorld::Make({seed, kUnlimitedBytes});
    StoreMachine machine(before, seed);
    auto store = machine.Open({});
    ASSERT_OK(store.status());
    const bool is_full = seed % 2 == 0;
    if (is_full) before->AddFault(NoRoom("/STEPWELL"));
    for (uint64_t step = 0; step < kSteps; ++step) ASSERT_OK(SaveSeededStep(store->get(), step));
    const auto world =
        is_full ? before->CrashImageProcessKill(seed) : OldSlotImageOf(*before, seed);
    StoreMachine readers(world, seed + 10);
    auto reader = readers.Open({.read_only = true});
    ASSERT_OK(reader.status());
    EXPECT_EQ(db::StepNumbers(reader->get()).size(), kSteps);
    size_t least = kSteps;
    int looks = 0;
    world->SetHook([&](OpKind) {
      if (world->HasLocks(kStorePath + "/RECLAIM")) return;  // the writer holds it: it would wait
      const auto steps = (*reader)->Steps();
      EXPECT_OK(steps.status());
      if (steps.ok()) least = std::min(least, steps->size());
      ++looks;
    });
    StoreMachine next(world, seed + 20);
    auto writer = next.Open({});
    world->SetHook(nullptr);
    ASSERT_OK(writer.status());
    EXPECT_EQ(least, kSteps);
    EXPECT_GT(looks, 3);
  }
}

}  // namespace
}  // namespace stepwell::sim
