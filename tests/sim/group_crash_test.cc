// SPDX-License-Identifier: Apache-2.0
// Power cuts and kills at every moment of a group's life. What they leave is read through part 0
// before anything is decided, then decided as a collective open does.
#include <gtest/gtest.h>

#include <iostream>

#include "tests/sim/support/group_workload.h"
#include "tests/sim/support/soak_seeds.h"

namespace stepwell::sim {
namespace {

constexpr uint64_t kGroupOperationImages = 600;

uint64_t StopGroupEverywhere(uint64_t seed, int actions, uint64_t stride) {
  uint64_t total = 0;
  uint64_t images = 0;
  for (uint64_t stop = 0; stop <= total; stop += stop == 0 ? 1 : stride) {
    const auto world = SimWorld::Make({seed, kUnlimitedBytes});
    world->FreezeAt(stop);  // 0: never
    StoreMachine machine(world, seed);
    GroupExpected expected;
    {
      GroupWorkload workload(&machine, seed);
      workload.Run(actions);
      EXPECT_EQ(workload.problem(), "") << "seed " << seed << " stop " << stop;
      if (!workload.problem().empty()) return images;
      expected = {workload.Legal(), workload.Undecided()};
      if (stop > 0 && !world->frozen()) break;
      if (stop == 0) {
        total = world->mutating_ops();
        continue;
      }
    }
    const uint64_t image = seed * 100003 + stop;
    ++images;
    const std::string problem =
        CheckGroupImage(ImageOf(*world, image), expected, image, image % 4 == 0 ? 2 : 0);
    EXPECT_EQ(problem, "") << "seed " << seed << " stop " << stop << " of " << total << "\n"
                           << machine.log();
    if (!problem.empty()) return images;
  }
  return images;
}

TEST(GroupCrashTest, AStopAtEveryOperation) {
  uint64_t images = 0;
  for (uint64_t seed = 1; images < kGroupOperationImages && !HasFailure(); ++seed) {
    images += StopGroupEverywhere(seed, 14, 1);
  }
  std::cout << "groups: " << images << " crash images\n";
}

// A decision that is told twice is acknowledged when it is durable, the second time, too.
TEST(GroupCrashTest, ARepeatedDecisionWaitsForTheFirst) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto world = SimWorld::Make({seed, kUnlimitedBytes});
    StoreMachine machine(world, seed);
    GroupStores stores;
    ASSERT_OK(stores.Open(&machine));
    for (const auto& store : stores.parts) {
      auto handle = PreparePart(store.get(), 1, 1);
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
    }
    const auto decided = stores.parts[0]->Decide(db::Commit(1, 1));
    ASSERT_OK(decided.status());
    db::Decision told = db::PassOn(db::Commit(1, 1), *decided);
    for (const bool wait : {false, true}) {
      told.wait = wait;
      ASSERT_OK(stores.parts[1]->Decide(told).status());
    }
    StoreMachine after(world->Crash({seed, SectorOdds{0, 1, 0, 0}, NameLoss::kPrefix}), seed);
    GroupStores crashed;
    ASSERT_OK(crashed.Open(&after));
    EXPECT_TRUE(db::PreparedSteps(crashed.parts[1].get()).empty());
  }
}

// For hours, or to replay one seed (README.md).
TEST(GroupCrashTest, Soak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  uint64_t images = 0;
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    images += StopGroupEverywhere(seed, 10 + static_cast<int>(seed % 40), 1 + seed % 5);
  }
  std::cout << "groups: " << images << " crash images\n";
}

}  // namespace
}  // namespace stepwell::sim
