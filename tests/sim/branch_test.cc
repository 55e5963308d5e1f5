// SPDX-License-Identifier: Apache-2.0
// Stores that share segments: a trunk, branches and branches of these save, delete, pin and reclaim
// in any order, on healthy and on failing disks, with power cuts and kills at any operation. Each
// has what it acknowledged, whatever the others do before and after the crash.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/sim/support/branch_history.h"
#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_checker.h"

namespace stepwell::sim {
namespace {

uint64_t RunBranches(const char* what, uint64_t first, uint64_t rounds, bool faults) {
  const ImageCounts before = CheckedImages();
  uint64_t branches = 0;
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    const std::string problem = RunBranchHistory({seed, faults}, &branches);
    EXPECT_EQ(problem, "") << what << ": replay with STEPWELL_SIM_SEED=" << seed
                           << " STEPWELL_SIM_ROUNDS=1";
    if (!problem.empty() && std::getenv("STEPWELL_SIM_GO_ON") == nullptr) break;
  }
  std::cout << what << ": " << branches << " branches, " << CheckedImages().images - before.images
            << " crash images\n";
  return branches;
}

TEST(BranchTest, HistoriesOfStoresThatShareSegments) {
  EXPECT_GE(RunBranches("branches", 1, 8, /*faults=*/false), 12U);
}

TEST(BranchTest, HistoriesOnFailingDisks) {
  EXPECT_GE(RunBranches("branches on failing disks", 1, 6, /*faults=*/true), 6U);
}

// Stopped at each operation of the making of a branch: it is there, whole, or not, and whole once
// it was acknowledged.
TEST(BranchTest, AStopAtEveryOperation) {
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    for (uint64_t stop = seed;; stop += 7) {
      BranchFamily family(seed, /*faults=*/false);
      for (int i = 0; i < 25; ++i) ASSERT_EQ(family.Act(), "") << "seed " << seed;
      const size_t made = family.branches_made();
      family.world().FreezeAt(family.world().mutating_ops() + stop);
      ASSERT_EQ(family.MakeBranch(), "") << "seed " << seed << " stop " << stop;
      ASSERT_EQ(family.CheckAnImage(), "") << "seed " << seed << " stop " << stop;
      if (family.branches_made() > made || !family.world().frozen()) break;
    }
  }
  std::cout << CheckedImages().images - before.images << " crash images\n";
}

// For hours, or to replay one seed; see README.md.
TEST(BranchTest, Soak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  RunBranches("branches", first, rounds, /*faults=*/false);
}

TEST(BranchTest, SoakOnFailingDisks) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  RunBranches("branches on failing disks", first, rounds, /*faults=*/true);
}

}  // namespace
}  // namespace stepwell::sim
