// SPDX-License-Identifier: Apache-2.0
// Whole lives of stores of all shapes, on healthy and on failing disks.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_history.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

void RunHistories(const char* what, uint64_t first, uint64_t rounds, bool faults) {
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    const std::string problem = RunHistory({seed, seed % 16 == 0, faults});
    EXPECT_EQ(problem, "") << what << ": replay with STEPWELL_SIM_SEED=" << seed
                           << " STEPWELL_SIM_ROUNDS=1";
    if (!problem.empty() && std::getenv("STEPWELL_SIM_GO_ON") == nullptr) break;
  }
  std::cout << what << ": " << CheckedImages().images - before.images << " crash images\n";
}

TEST(HistoryTest, OfAllShapes) { RunHistories("histories", 1, 32, /*faults=*/false); }

TEST(HistoryTest, OnFailingDisks) { RunHistories("failing disks", 1, 32, /*faults=*/true); }

// After a power cut STEPWELL is as last synced, and one read, open or look of the recovery fails.
void FailEachReadOfARecovery(uint64_t seed, bool crash_first, bool read_only) {
  const auto world = SimWorld::Make({seed, kUnlimitedBytes});
  StoreMachine machine(world, seed);
  Shape shape = ShapeOf(seed);
  shape.first_steps = 0;
  shape.close_percent = 0;
  Workload workload(&machine, seed, shape);
  for (int i = 0; i < 25 && workload.Act(); ++i) {
  }
  ASSERT_EQ(workload.problem(), "") << "seed " << seed;
  const std::vector<Steps> legal = workload.model().Legal();
  auto image = OldSlotImageOf(*world, seed);
  if (crash_first) {
    image->FreezeAt(image->mutating_ops() + 1 + seed % 12);
    StoreMachine first(image, seed + 1);
    first.Open({}).status().IgnoreError("it is cut off");
    image = OldSlotImageOf(*image, seed);
  }
  for (const OpKind kind : {OpKind::kRead, OpKind::kOpen, OpKind::kLook}) {
    bool finished = false;
    for (uint64_t nth = 1; !finished; nth += 1 + nth / 16) {
      for (const int os_error : {EIO, kind == OpKind::kOpen ? EMFILE : ENOMEM}) {
        const auto broken = image->CrashImageProcessKill(nth);
        broken->AddFault({.kind = kind, .nth = nth, .os_error = os_error});
        {
          StoreMachine second(broken, nth);
          const auto store = second.Open({.read_only = read_only});
          finished = broken->faults_struck() == 0;
          if (store.ok()) {
            const auto seen = ReadAll(store->get());
            ASSERT_NE(seen.status().code(), StatusCode::kInternal) << seen.status().ToString();
          }
        }
        broken->ClearFaults();
        ASSERT_EQ(CheckImage(broken, legal, {nth, false, 0}), "")
            << "seed " << seed << ": " << NameOf(kind) << " " << nth
            << " of the recovery failed, errno " << os_error;
      }
    }
  }
}

TEST(HistoryTest, AReadOfTheRecoveryFails) {
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    FailEachReadOfARecovery(seed, /*crash_first=*/seed % 2 == 0, /*read_only=*/seed % 3 == 0);
    if (HasFatalFailure()) break;
  }
  std::cout << "reads of recoveries: " << CheckedImages().images - before.images
            << " crash images\n";
}

// Each operation of that kind in a session fails once, in a run of its own. The session goes on,
// and ends with a power cut.
void FailEachOperationOf(uint64_t seed, OpKind kind, int os_error) {
  Shape shape = ShapeOf(seed);
  shape.first_steps = 0;
  shape.segment_bytes = uint64_t{48} << 10;
  for (uint64_t nth = 1;; nth += 1 + nth / 8) {
    const auto world = SimWorld::Make({seed, kUnlimitedBytes});
    StoreMachine machine(world, seed);
    Workload workload(&machine, seed, shape);
    ASSERT_TRUE(workload.Open()) << workload.problem();
    workload.Tolerate();
    world->AddFault({.kind = kind, .nth = nth, .os_error = os_error});
    for (int i = 0; i < 25; ++i) {
      if (!workload.Act()) workload.Drop();  // as a program that opens it again
    }
    const std::string where =
        StrCat("seed ", seed, ": ", NameOf(kind), " ", nth, " failed, errno ", os_error);
    ASSERT_EQ(workload.problem(), "") << where;
    const bool struck = world->faults_struck() > 0;
    world->ClearFaults();
    const std::vector<Steps> legal = workload.model().Legal();
    ASSERT_EQ(CheckImage(ImageOf(*world, nth), legal, {nth, false, 0}), "") << where;
    if (!struck) return;
  }
}

class FailedOperationTest : public ::testing::TestWithParam<OpKind> {};

TEST_P(FailedOperationTest, LosesNothing) {
  const ImageCounts before = CheckedImages();
  const bool grows = GetParam() == OpKind::kCreate || GetParam() == OpKind::kAllocate ||
                     GetParam() == OpKind::kRename;
  for (uint64_t seed = 1; seed <= 3 && !HasFatalFailure(); ++seed) {
    FailEachOperationOf(seed, GetParam(), grows ? ENOSPC : EIO);
    if (!HasFatalFailure()) FailEachOperationOf(seed, GetParam(), EMFILE);
  }
  std::cout << CheckedImages().images - before.images << " crash images\n";
}

INSTANTIATE_TEST_SUITE_P(Kinds, FailedOperationTest,
                         ::testing::Values(OpKind::kOpen, OpKind::kLook, OpKind::kCreate,
                                           OpKind::kAllocate, OpKind::kPunch, OpKind::kTruncate,
                                           OpKind::kRename, OpKind::kRemove,
                                           OpKind::kSyncDirectory),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

// For hours, or to replay one seed; see README.md.
TEST(HistoryTest, Soak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  RunHistories("histories", first, rounds, /*faults=*/false);
}

TEST(HistoryTest, SoakOnFailingDisks) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  RunHistories("failing disks", first, rounds, /*faults=*/true);
}

}  // namespace
}  // namespace stepwell::sim
