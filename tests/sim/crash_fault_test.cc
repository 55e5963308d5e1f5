// SPDX-License-Identifier: Apache-2.0
// The disk fails while it is used: full, read and write errors; and planted bugs, which the checks
// of crash_test.cc must catch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Rig {
  explicit Rig(uint64_t seed)
      : world(SimWorld::Make({seed, kUnlimitedBytes})), machine(world, seed) {}
  std::unique_ptr<db::Store> Open(const OpenSpec& spec = {}) {
    auto store = machine.Open(spec);
    EXPECT_TRUE(store.ok()) << store.status().ToString() << "\n" << machine.log();
    return store.ok() ? std::move(*store) : nullptr;
  }
  Status Save(db::Store* store, uint64_t step) {
    auto handle = db::SaveSeeded(store, step, step, SpecsOf(step));
    return handle.ok() ? handle->Wait() : handle.status();
  }

  std::shared_ptr<SimWorld> world;
  StoreMachine machine;
};

// ---- a full disk -----------------------------------------------------------------------------

class FullDisk : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Index, FullDisk, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "WithIndex" : "LogAlone"; });

TEST_P(FullDisk, FailsThatSaveAloneAndTheNextOneWorks) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Rig rig(seed);
    Prng prng(seed);
    auto store = rig.Open({.with_index = GetParam()});
    uint64_t step = 0;
    Steps kept;
    for (; step < 3 + seed % 3; ++step) {
      ASSERT_OK(rig.Save(store.get(), step));
      kept[step] = step;
    }
    // Full somewhere within the next saves: several are in flight when it happens.
    rig.world->SetCapacity(rig.world->UsedBytes() + prng.Below(200'000));
    std::vector<std::pair<uint64_t, db::SaveHandle>> handles;
    bool refused = false;
    for (int i = 0; i < 60 && !refused; ++i, ++step) {
      const auto handle = db::SaveSeeded(store.get(), step, step, SpecsOf(step));
      ASSERT_OK(handle.status());
      handles.emplace_back(step, *handle);
      if (i % 3 != 2) continue;
      for (auto& [number, one] : handles) {
        const Status status = one.Wait();
        ASSERT_THAT(status.code(), AnyOf(StatusCode::kOk, StatusCode::kResourceExhausted))
            << status.ToString();
        if (status.ok()) kept[number] = number;
        refused |= !status.ok();
      }
      handles.clear();
    }
    ASSERT_TRUE(refused) << seed;
    store->Wait().IgnoreError("the handles were asked");
    auto seen = ReadAll(store.get());
    ASSERT_OK(seen.status());
    EXPECT_EQ(*seen, kept) << seed;
    // A crash now loses nothing, and a full disk can be opened.
    const auto image = rig.world->Crash({seed, {}, {}});
    {
      StoreMachine after(image, seed);
      auto reopened = after.Open({.with_index = GetParam()});
      ASSERT_TRUE(reopened.ok()) << reopened.status().ToString() << "\nseed " << seed << " used "
                                 << image->UsedBytes() << DescribeSegments(*image) << "\n"
                                 << after.log();
      seen = ReadAll(reopened->get());
      ASSERT_OK(seen.status());
      EXPECT_EQ(*seen, kept) << seed;
      const std::vector<uint64_t> one{kept.begin()->first};
      EXPECT_OK((*reopened)->Delete(one));
    }
    // Deleting works on the full disk.
    const std::vector<uint64_t> two{0, 1};
    ASSERT_OK(store->Delete(two));
    kept.erase(0);
    kept.erase(1);
    // Space comes back: the next save works, without reopening.
    rig.world->SetCapacity(rig.world->UsedBytes() + (uint64_t{8} << 20));
    ASSERT_OK(rig.Save(store.get(), 500));
    kept[500] = 500;
    ASSERT_OK(store->Close());
    EXPECT_EQ(CheckImage(rig.world->Crash({seed, {}, {}}), {kept}, {seed, GetParam(), 1}), "");
  }
}

TEST_P(FullDisk, DeletingGivesTheSpaceBackThatSavingNeeds) {
  Rig rig(3);
  auto store = rig.Open({.with_index = GetParam()});
  // Without the ballast: it was never made on so small a disk.
  rig.world->SetCapacity(rig.world->UsedBytes() + (uint64_t{3} << 20));
  uint64_t step = 0;
  for (int round = 0; round < 4; ++round) {
    Status status;
    const uint64_t first = step;
    while (status.ok() && step < first + 1000) {
      status = rig.Save(store.get(), step);
      if (status.ok()) ++step;
    }
    ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    ASSERT_GT(step, first + 3) << "round " << round;
    const auto steps = db::StepNumbers(store.get());
    ASSERT_OK(store->Delete(steps));
    store->Wait().IgnoreError("reported above");
  }
  ASSERT_OK(store->Close());
}

// Behaves like btrfs, which writes nothing in place: the slot of STEPWELL has no room, the log has.
// Changes are acknowledged, a crash loses none of them, and nothing goes that the old slot names.
TEST_P(FullDisk, ASlotThatCannotBeWrittenIsTriedAgain) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    Rig rig(seed);
    const OpenSpec spec{.with_index = GetParam(), .segment_bytes = uint64_t{24} << 10};
    auto store = rig.Open(spec);
    Steps kept;
    uint64_t step = 0;
    const auto save = [&](uint64_t count) {
      for (; count > 0; --count, ++step) {
        ASSERT_OK(rig.Save(store.get(), step));
        kept[step] = step;
      }
    };
    const auto check = [&] {
      EXPECT_EQ(CheckImage(rig.world->Crash({seed, {}, {}}), {kept}, {seed, GetParam(), 1}), "");
    };
    save(4);
    rig.world->AddFault({.kind = OpKind::kWrite,
                         .forever = true,
                         .os_error = ENOSPC,
                         .path_contains = "/STEPWELL"});
    save(6 + seed);
    check();
    ASSERT_OK(store->Delete(std::vector<uint64_t>{1, 2, 5}));
    for (const uint64_t dead : {1U, 2U, 5U}) kept.erase(dead);
    check();
    const size_t files = rig.world->Files().size();
    const Status refused = store->Reclaim().status();
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
    EXPECT_THAT(refused.message(), HasSubstr("STEPWELL cannot be written"));
    EXPECT_GE(rig.world->Files().size(), files);
    check();
    EXPECT_GT(rig.world->faults_struck(), 0U);
    rig.world->ClearFaults();
    if (seed % 2 == 0) save(1);
    ASSERT_OK(store->Reclaim().status());
    check();
    ASSERT_OK(store->Close());
    check();
  }
}

// The store gives back, as it goes on, what saves had written when the disk was full.
TEST_P(FullDisk, RefusedSavesLeaveNoSegmentsBehind) {
  Rig rig(4);
  auto store =
      rig.Open({.keep_latest = 2, .with_index = GetParam(), .segment_bytes = uint64_t{24} << 10});
  const auto segments = [&] {
    size_t count = 0;
    for (const auto& [path, size] : rig.world->Files()) count += path.ends_with(".seg") ? 1 : 0;
    return count;
  };
  size_t most = 0;
  for (uint64_t round = 0; round < 40; ++round) {
    rig.world->SetCapacity(rig.world->UsedBytes() + 60'000);
    const auto large = SaveStep(store.get(), 1'000'000 + round, kLarge | (2 * round));
    ASSERT_OK(large.status());
    EXPECT_EQ(large->Wait().code(), StatusCode::kResourceExhausted);
    rig.world->SetCapacity(kUnlimitedBytes);
    for (uint64_t i = 0; i < 4; ++i) ASSERT_OK(rig.Save(store.get(), 4 * round + i));
    if (round >= 20) most = std::max(most, segments());
  }
  EXPECT_LE(most, 16U);
}

TEST(RetentionTest, GivesSpaceBackAcrossSessionsAndCrashes) {
  Rig rig(5);
  auto world = rig.world;
  Steps kept;
  uint64_t step = 0;
  for (int session = 0; session < 12; ++session) {
    StoreMachine machine(world, static_cast<uint64_t>(session));
    auto store = machine.Open({.keep_latest = 2});
    ASSERT_OK(store.status());
    for (int i = 0; i < 20; ++i, ++step) {
      ASSERT_OK(rig.Save(store->get(), step));
    }
    // Two live steps, the segments behind two catalogs, what sessions left half used.
    EXPECT_LE(CountSegments(*world), 10U) << "session " << session << DescribeSegments(*world);
    if (session % 2 == 0) {
      ASSERT_OK((*store)->Close());
    } else {
      world = world->Crash({static_cast<uint64_t>(session), {}, {}});
    }
  }
}

// ---- errors of the device --------------------------------------------------------------------

// From some operation on one kind fails; all handles say so, reading goes on, reopening recovers.
void FailForGood(OpKind kind, const std::string& path, uint64_t rounds) {
  int froze = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    Rig rig(seed);
    Prng prng(seed);
    StoreModel model;
    auto store = rig.Open();
    for (uint64_t step = 0; step < 4; ++step) {
      auto handle = db::SaveSeeded(store.get(), step, step, SpecsOf(step));
      ASSERT_OK(handle.status());
      model.Saved(step, step, {}, *handle);
    }
    ASSERT_OK(store->Wait());
    rig.world->AddFault({kind, 1 + prng.Below(12), false, EIO, Fault::Effect::kFail, path});
    Status refused;
    for (uint64_t step = 4; step < 16 && refused.ok(); ++step) {
      auto handle = db::SaveSeeded(store.get(), step, step, SpecsOf(step));
      refused = handle.status();
      if (handle.ok()) model.Saved(step, step, {}, *handle);
    }
    const Status waited = store->Wait();  // ends, whatever happened
    const auto seen = ReadAll(store.get());
    ASSERT_OK(seen.status());
    EXPECT_EQ(*seen, model.Legal().front());
    if (!refused.ok() || !waited.ok()) {
      ++froze;
      // All that is left is refused, naming the first error, until it is opened again.
      const auto again = db::SaveSeeded(store.get(), 100, 100, SpecsOf(100));
      EXPECT_EQ(again.status().code(), StatusCode::kFailedPrecondition);
      EXPECT_THAT(again.status().message(), HasSubstr("simulated fault"));
      const std::vector<uint64_t> zero{0};
      EXPECT_FALSE(store->Delete(zero).ok());
    }
    store->Close().IgnoreError("said by the handles");
    store.reset();
    rig.world->ClearFaults();
    const std::vector<Steps> legal = model.Legal();
    EXPECT_EQ(CheckImage(rig.world->Crash({seed, {}, {}}), legal, {seed, false, 1}), "") << seed;
    EXPECT_EQ(CheckImage(rig.world->CrashImageProcessKill(seed), legal, {seed, false, 1}), "")
        << seed;
  }
  EXPECT_GT(froze, 0);
}

TEST(DeviceErrorTest, AFailedWriteFreezes) { FailForGood(OpKind::kWrite, "/store/segments", 30); }
TEST(DeviceErrorTest, AFailedSyncFreezes) { FailForGood(OpKind::kSync, "/store/segments", 30); }
TEST(DeviceErrorTest, AFailedSlotWriteFreezes) { FailForGood(OpKind::kWrite, "STEPWELL", 15); }

// After a power cut, with STEPWELL as it was first synced.
TEST(DeviceErrorTest, AReaderThatCannotTellRefuses) {
  Rig rig(1);
  auto store = rig.Open();
  for (uint64_t step = 1; step <= 4; ++step) ASSERT_OK(rig.Save(store.get(), step));
  const std::string first = *rig.world->Contents("/store/STEPWELL");
  ASSERT_OK(store->Delete(std::vector<uint64_t>{2}));
  ASSERT_OK(rig.Save(store.get(), 5));
  for (const OpKind kind : {OpKind::kSync, OpKind::kRead}) {
    const auto image = rig.world->Crash({1, SectorOdds{1, 0, 0, 0}, NameLoss::kNone});
    ASSERT_TRUE(image->Poke("/store/STEPWELL", 0, AsBytes(first)));
    StoreMachine machine(image, 2);
    image->AddFault({.kind = kind, .forever = true, .path_contains = ".seg"});
    const auto refused = machine.Open({.read_only = true});
    EXPECT_EQ(refused.status().code(), StatusCode::kIoError) << refused.status().ToString();
    image->ClearFaults();
    const auto reader = machine.Open({.read_only = true});
    ASSERT_OK(reader.status());
    EXPECT_THAT(db::StepNumbers(reader->get()), ::testing::ElementsAre(1, 3, 4, 5));
  }
}

// An export has a link to it; its last block cannot be read when the store is opened.
TEST(DeviceErrorTest, ALinkedSegmentStaysAsItIs) {
  Rig rig(1);
  const std::string segment = "/store/segments/0000000001.seg";
  auto store = rig.Open();
  ASSERT_OK(rig.Save(store.get(), 1));
  ASSERT_OK(store->Close());
  store = rig.Open();
  ASSERT_OK(rig.Save(store.get(), 2));
  SimFileSystem files(rig.world);
  ASSERT_OK(files.Link(segment, "/link"));
  const std::string before = *rig.world->Contents("/link");
  const auto image = rig.world->CrashImageProcessKill(1);
  StoreMachine machine(image, 2);
  image->AddFault({.kind = OpKind::kRead,
                   .forever = true,
                   .path_contains = segment,
                   .range = {before.size() - kPageBytes, kPageBytes}});
  ASSERT_OK(machine.Open({}).status());
  EXPECT_EQ(*image->Contents("/link"), before);
}

// ---- planted bugs ----------------------------------------------------------------------------

// Runs with a bug until an image shows it; the number of images that it took, 0: never shown.
int ImagesUntilCaught(const std::function<void(Rig*)>& plant) {
  int images = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rig rig(seed);
    plant(&rig);
    Workload workload(&rig.machine, seed, UsualShape(seed, false));
    for (int i = 0; i < 25 && workload.Act(); ++i) {
      if (i % 4 != 3) continue;
      ++images;
      const uint64_t image = seed * 100 + static_cast<uint64_t>(i);
      if (!CheckImage(rig.world->Crash({image, {}, {}}), workload.model().Legal(),
                      {image, false, 0})
               .empty()) {
        return images;
      }
    }
    EXPECT_EQ(workload.problem(), "");
  }
  return 0;
}

void LoseForever(Rig* rig, OpKind kind, const std::string& path) {
  rig->world->AddFault({kind, 1, true, EIO, Fault::Effect::kLose, path});
}

TEST(PlantedBugTest, NoneIsSeenWhereNoneIs) {
  EXPECT_EQ(ImagesUntilCaught([](Rig*) {}), 0);
}

TEST(PlantedBugTest, ASkippedFlushOfSegmentsIsCaught) {
  EXPECT_GT(ImagesUntilCaught([](Rig* rig) { LoseForever(rig, OpKind::kSync, "/segments/"); }), 0);
}

TEST(PlantedBugTest, ASkippedFlushOfTheNamesOfSegmentsIsCaught) {
  EXPECT_GT(ImagesUntilCaught(
                [](Rig* rig) { LoseForever(rig, OpKind::kSyncDirectory, "/store/segments"); }),
            0);
}

TEST(PlantedBugTest, ASkippedFlushOfTheSlotsIsCaught) {
  EXPECT_GT(ImagesUntilCaught([](Rig* rig) { LoseForever(rig, OpKind::kSync, "STEPWELL"); }), 0);
}

TEST(PlantedBugTest, AWriteThatIsLostIsCaught) {
  EXPECT_GT(
      ImagesUntilCaught([](Rig* rig) {
        rig->world->AddFault({OpKind::kWrite, 20, false, EIO, Fault::Effect::kLose, "/segments/"});
      }),
      0);
}

TEST(PlantedBugTest, AnEarlyAcknowledgementIsCaught) {
  EXPECT_GT(ImagesUntilCaught([](Rig* rig) { rig->machine.AcknowledgeEarly(); }), 0);
}

// A new segment's file is made, and looking at it fails: that save fails, the next takes another
// file.
TEST(DeviceErrorTest, ALookAtASegmentFailsOneSave) {
  for (const OpKind kind : {OpKind::kLook, OpKind::kOpen, OpKind::kCreate}) {
    bool struck = true;
    for (uint64_t nth = 1; struck; ++nth) {
      const auto world = SimWorld::Make({nth, kUnlimitedBytes});
      StoreMachine machine(world, nth);
      const auto store = machine.Open({.segment_bytes = uint64_t{24} << 10});
      ASSERT_OK(store.status());
      world->AddFault({.kind = kind, .nth = nth, .path_contains = "/segments/"});
      int failures = 0;
      Steps saved;
      for (uint64_t step = 1; step <= 8; ++step) {
        const auto handle = SaveStep(store->get(), step, step);
        const Status status = handle.ok() ? handle->Wait() : handle.status();
        // Before a save is acknowledged, the engine checks that the store still has its name.
        if (status.code() == StatusCode::kOutcomeUnknown) break;
        failures += status.ok() ? 0 : 1;
        if (status.ok()) saved[step] = HeldOf(step);
      }
      struck = world->faults_struck() > 0;
      EXPECT_LE(failures, 1) << NameOf(kind) << " " << nth << "\n" << machine.log();
      world->ClearFaults();
      for (const auto& [step, held] : saved) ASSERT_OK(CheckStep(store->get(), step, held));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace stepwell::sim
