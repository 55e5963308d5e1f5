// SPDX-License-Identifier: Apache-2.0
// Power cuts and kills at every moment of a store's life. Each image is opened, compared with the
// model, verified, written to and opened once more; README.md here says how to replay a failure.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>

#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

// The numbers of images that the tests check. tests/check counts the images of all tests, and wants
// 5,000.
constexpr uint64_t kImagesOfAStop = 5;
constexpr uint64_t kEveryOperationImages = 2'000;
constexpr uint64_t kRandomImages = 500;
constexpr uint64_t kIndexImages = 120;

// A workload on a new machine that stops at mutating operation `stop` (0: never).
struct Run {
  Run(uint64_t seed, bool with_index, uint64_t stop, int actions)
      : world(SimWorld::Make({seed, kUnlimitedBytes})) {
    world->FreezeAt(stop);
    StoreMachine machine(world, seed);
    Workload workload(&machine, seed, UsualShape(seed, with_index));
    workload.Run(actions);
    problem = workload.problem();
    // Reading goes on, and shows nothing that is not there.
    if (problem.empty() && workload.store() != nullptr) {
      const auto seen = ReadAll(workload.store());
      if (!seen.ok()) problem = StrCat("reading after the stop: ", seen.status().ToString());
    }
    legal = workload.model().Legal();
  }

  std::shared_ptr<SimWorld> world;
  std::string problem;
  std::vector<Steps> legal;
};

void Report(const char* what, const ImageCounts& before) {
  std::cout << what << ": " << CheckedImages().images - before.images << " crash images, "
            << CheckedImages().with_index - before.with_index << " of them with the index\n";
}

// Stops the same run at every `stride`-th operation.
void StopEverywhere(uint64_t seed, bool with_index, int actions, uint64_t stride, uint64_t images) {
  const Run whole(seed, with_index, 0, actions);
  ASSERT_EQ(whole.problem, "");
  ASSERT_EQ(whole.legal.size(), 1U);
  const uint64_t total = whole.world->mutating_ops();
  for (uint64_t stop = 1; stop <= total; stop += stride) {
    const Run run(seed, with_index, stop, actions);
    ASSERT_EQ(run.problem, "") << "seed " << seed << " stop " << stop;
    for (uint64_t i = 0; i < images; ++i) {
      const uint64_t image = stop * images + i;
      const int again = image % 5 == 0 ? 2 : 0;
      ASSERT_EQ(CheckImage(ImageOf(*run.world, image), run.legal, {image, with_index, again}), "")
          << "seed " << seed << " stop " << stop << " of " << total << " image " << image;
    }
  }
}

// A long run of one seed, with images of moments in it and of a stop at the end.
void RandomRun(uint64_t seed, const Shape& shape) {
  const bool with_index = shape.with_index;
  Prng prng(seed);
  const auto world = SimWorld::Make({seed, kUnlimitedBytes});
  StoreMachine machine(world, seed);
  Workload workload(&machine, seed, shape);
  const uint64_t actions = 20 + prng.Below(60);
  for (uint64_t i = 0; i < actions; ++i) {
    if (!workload.Act()) break;
    if (!prng.OneIn(8)) continue;
    // The machine goes on; only what is acknowledged by now must be in the image.
    const uint64_t image = prng.Next() % 1'000'000;
    ASSERT_EQ(CheckImage(ImageOf(*world, image), workload.model().Legal(),
                         {image, with_index, prng.OneIn(3) ? 1 : 0}),
              "")
        << "seed " << seed << " after action " << i << " image " << image;
    if (i == actions / 2) world->FreezeAt(world->mutating_ops() + prng.Below(400));
  }
  ASSERT_EQ(workload.problem(), "") << "seed " << seed;
  const std::vector<Steps> legal = workload.model().Legal();
  for (int i = 0; i < 4; ++i) {
    const uint64_t image = prng.Next() % 1'000'000;
    ASSERT_EQ(CheckImage(ImageOf(*world, image), legal, {image, with_index, 1}), "")
        << "seed " << seed << " at the end, image " << image;
  }
}

TEST(CrashTest, AStopAtEveryOperation) {
  const ImageCounts before = CheckedImages();
  StopEverywhere(1, false, 30, 1, kImagesOfAStop);
  if (HasFatalFailure()) return;
  Report("a stop at every operation", before);
  EXPECT_GE(CheckedImages().images - before.images, kEveryOperationImages);
}

TEST(CrashTest, AStopAtEveryFifthOperation) {
  const ImageCounts before = CheckedImages();
  StopEverywhere(2, false, 30, 5, 2);
  Report("a stop at every fifth operation", before);
}

TEST(CrashTest, RandomRuns) {
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = 1; CheckedImages().images - before.images < kRandomImages; ++seed) {
    RandomRun(seed, UsualShape(seed, false));
    if (HasFatalFailure()) return;
  }
  Report("random runs", before);
}

// Segments that are smaller than a step: each step begins some, and reclaim is always near.
Shape SmallSegments(uint64_t seed) {
  Shape shape = UsualShape(seed, false);
  shape.segment_bytes = uint64_t{24} << 10;
  return shape;
}

TEST(CrashTest, SegmentsSmallerThanSteps) {
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    RandomRun(seed, SmallSegments(seed));
    if (HasFatalFailure() && std::getenv("STEPWELL_SIM_GO_ON") == nullptr) return;
  }
  Report("segments smaller than steps", before);
}

TEST(CrashTest, WithTheIndexOnTheSameDisk) {
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = 100; CheckedImages().with_index - before.with_index < kIndexImages; ++seed) {
    StopEverywhere(seed, true, 5, 9, 1);
    if (HasFatalFailure()) return;
    RandomRun(seed, UsualShape(seed, true));
    if (HasFatalFailure()) return;
  }
  Report("with the index", before);
}

// Records that fill several frames ahead of the commit frame.
TEST(CrashTest, AStepWithThousandsOfLeaves) {
  const auto save = [](db::Store* store, uint64_t step) {
    db::SaveRequest request;
    request.step = step;
    db::ItemInput item{.name = "state", .leaves = {}};
    for (uint64_t i = 0; i < 9000; ++i) {
      db::LeafInput leaf;
      leaf.record.key = db::KeyOf("state", StrCat("leaf ", i, " of step ", step));
      leaf.record.kind = format::LeafKind::kValue;
      leaf.record.value_type = format::ValueType::kStr;
      leaf.value = StrCat(step);
      item.leaves.push_back(std::move(leaf));
    }
    request.items.push_back(std::move(item));
    return store->Save(std::move(request));
  };
  bool finished = false;
  for (uint64_t stop = 8; !finished; ++stop) {
    const auto world = SimWorld::Make({stop, kUnlimitedBytes});
    StoreMachine machine(world, stop);
    auto store = machine.Open({.segment_bytes = uint64_t{8} << 20});
    ASSERT_OK(store.status());
    ASSERT_OK(save(store->get(), 1)->Wait());
    world->FreezeAt(world->mutating_ops() + stop - 7);
    const auto handle = save(store->get(), 2);
    finished = handle.ok() && handle->Wait().ok() && !world->frozen();
    const bool acknowledged = handle.ok() && handle->Wait().ok();
    StoreMachine after(world->Crash({stop, {}, {}}), stop);
    const auto reopened = after.Open({});
    ASSERT_OK(reopened.status());
    EXPECT_TRUE((*reopened)->recovery().problems.empty());
    const auto report = (*reopened)->Verify({});
    ASSERT_OK(report.status());
    EXPECT_TRUE(report->problems.empty());
    EXPECT_EQ(report->leaves, 9000 * report->steps);
    EXPECT_GE(report->steps, acknowledged ? 2U : 1U);
  }
}

// Segments hardly larger than a step always look half empty: what was moved is not moved again.
TEST(CrashTest, MovesEndWhereSegmentsAreSmall) {
  constexpr uint64_t kOps = 20'000;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const auto world = SimWorld::Make({seed, kUnlimitedBytes});
    world->SetCanPunch(false);
    StoreMachine machine(world, seed);
    Prng prng(seed);
    auto store = machine.Open({.segment_bytes = (uint64_t{12} << 10) + 4096 * (seed % 8)});
    ASSERT_OK(store.status());
    for (uint64_t step = 0; step < 40; ++step) {
      const uint64_t kind = prng.OneIn(4) ? 0 : kTiny;
      ASSERT_OK(SaveStep(store->get(), step, kind | prng.Below(997))->Wait());
      if (prng.OneIn(3)) ASSERT_OK((*store)->Delete(std::vector<uint64_t>{step}));
    }
    world->FreezeAt(world->mutating_ops() + kOps);  // else it would go on for ever
    SCOPED_TRACE(seed);
    ASSERT_OK((*store)->Reclaim().status());
    ASSERT_OK((*store)->Close());
  }
}

void SoakRuns(bool small_segments) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = first; seed < first + rounds; ++seed) {
    if (small_segments) {
      RandomRun(seed, SmallSegments(seed));
    } else {
      RandomRun(seed, UsualShape(seed, seed % 8 == 0));
      if (!::testing::Test::HasFatalFailure() && seed % 16 == 1) {
        StopEverywhere(seed, false, 12, 3, 1);
      }
    }
    if (::testing::Test::HasFatalFailure()) {
      std::cout << "replay with STEPWELL_SIM_SEED=" << seed << " STEPWELL_SIM_ROUNDS=1\n";
      return;
    }
  }
  Report("soak", before);
}

// For hours, or to replay one seed: STEPWELL_SIM_SEED, STEPWELL_SIM_ROUNDS.
TEST(CrashTest, StopsSoak) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  const ImageCounts before = CheckedImages();
  for (uint64_t seed = first; seed < first + rounds && !HasFatalFailure(); ++seed) {
    StopEverywhere(seed, false, 30, 1, 13);
  }
  Report("a stop at every operation", before);
}
TEST(CrashTest, Soak) { SoakRuns(false); }
TEST(CrashTest, SmallSegmentsSoak) { SoakRuns(true); }

}  // namespace
}  // namespace stepwell::sim
