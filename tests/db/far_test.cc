// SPDX-License-Identifier: Apache-2.0
// Arrays whose bytes are far away: what is in memory of them, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "db/environment.h"
#include "db/save/plan.h"
#include "tests/db/support/fake_far.h"
#include "tests/db/support/fault_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Writes of chunks wait while `stalled`.
struct Stall {
  std::atomic<bool> stalled{false};
  DiskFault Wait(const io::Op& op) {
    if (!IsFrameWrite(op)) stalled.wait(true);
    return DiskFault::kNone;
  }
  void End() {
    stalled = false;
    stalled.notify_all();
  }
};

class FarTest : public ::testing::Test {
 protected:
  static std::vector<LeafSpec> Arrays(size_t count, uint64_t bytes) {
    std::vector<LeafSpec> specs;
    for (size_t i = 0; i < count; ++i) {
      specs.push_back({std::string(1, static_cast<char>('a' + i)), {bytes / sizeof(float)}});
    }
    return specs;
  }
  std::unique_ptr<Store> Open(uint64_t window_bytes, uint64_t staging_bytes = 0) {
    StoreOptions options;
    options.disk = io::DiskKind::kPosix;
    options.far_window_bytes = window_bytes;
    options.staging_bytes = staging_bytes;
    auto environment =
        FaultEnvironment(options, [this](const auto& op) { return stall_.Wait(op); });
    EXPECT_OK(environment.status());
    auto store = OpenStore(dir_ / "run", options, std::move(*environment));
    EXPECT_OK(store.status());
    return std::move(store).value();
  }
  // The state of `seed`, with every array far away, in one box each. Boxes are numbered in the
  // order of `specs`, backwards in the tree.
  SaveRequest Request(uint64_t seed, const std::vector<LeafSpec>& specs) {
    scratch_.emplace_back();
    scratch_.back().reserve(specs.size());
    SaveRequest request = MakeRequest(seed, seed, specs, &scratch_.back());
    far_ = std::make_shared<FakeFar>();
    request.far = far_;
    auto& leaves = request.items[0].leaves;
    for (LeafInput& leaf : leaves) {
      if (leaf.record.kind != format::LeafKind::kArray) continue;
      ShardInput box{format::Shape(leaf.record.shape.size(), 0),
                     leaf.record.shape,
                     std::exchange(leaf.data, nullptr),
                     {}};
      box.strides_bytes = format::CStrides(leaf.record.shape, sizeof(float));
      far_->Take(&box, std::accumulate(box.shape.begin(), box.shape.end(), uint64_t{sizeof(float)},
                                       std::multiplies<>()));
      leaf.shards.push_back(std::move(box));
    }
    std::reverse(leaves.begin(), leaves.end());
    return request;
  }

  TempDir dir_;
  Stall stall_;
  std::vector<std::vector<std::vector<float>>> scratch_;  // what the boxes hold
  std::shared_ptr<FakeFar> far_;                          // of the last request
};

TEST_F(FarTest, CopiesAreMadeInTheOrderOfLeavesWithinTheWindow) {
  auto store = Open(4 * kMiB);
  const auto specs = Arrays(20, kMiB);
  auto saved = store->Save(Request(1, specs));
  ASSERT_OK(saved.status());
  EXPECT_EQ(far_->there_bytes(), 0U);  // Save has all, whether or not the disk has
  ASSERT_OK(saved->Wait());
  std::vector<uint32_t> ascending(specs.size());
  std::iota(ascending.begin(), ascending.end(), 0U);
  EXPECT_EQ(far_->order(), ascending);
  EXPECT_EQ(far_->peak_bytes(), 4 * kMiB);
  EXPECT_OK(CheckSeeded(store.get(), 1, 1, specs));
}

TEST_F(FarTest, ABoxLargerThanTheWindowIsThereAlone) {
  auto store = Open(2 * kMiB);
  auto specs = Arrays(9, kMiB / 2);
  specs[4].shape = {7 * kMiB / sizeof(float)};
  auto saved = store->Save(Request(1, specs));
  ASSERT_OK(saved.status());
  ASSERT_OK(saved->Wait());
  EXPECT_EQ(far_->peak_bytes(), 7 * kMiB);
  EXPECT_OK(CheckSeeded(store.get(), 1, 1, specs));
}

TEST_F(FarTest, NoFurtherCopiesAreBegunWhileTheStagingMemoryIsFull) {
  constexpr uint64_t kBlocks = 6;
  auto store = Open(4 * kMiB, kBlocks * kBlockBytes);
  const auto specs = Arrays(20, 4 * kMiB);
  SaveRequest request = Request(1, specs);
  request.far_behind = true;
  stall_.stalled = true;
  auto saved = store->Save(std::move(request));
  ASSERT_OK(saved.status());
  // What the staging memory has no room for stays where it is, for as long as it has none.
  const auto far = far_;
  size_t before = 0;
  for (int still = 0; still < 20; ++still) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const size_t now = far->order().size();
    if (now != std::exchange(before, now)) still = 0;
  }
  EXPECT_GE(before, kBlocks - 2);
  EXPECT_LE(before, kBlocks + 1);
  EXPECT_LE(far->there_bytes(), 4 * kMiB);
  stall_.End();
  ASSERT_OK(saved->Wait());
  EXPECT_EQ(far->order().size(), specs.size());
  EXPECT_LE(far->peak_bytes(), 4 * kMiB);
  EXPECT_OK(CheckSeeded(store.get(), 1, 1, specs));
}

TEST_F(FarTest, ACopyThatFailsFailsItsSaveAlone) {
  auto store = Open(4 * kMiB);
  const auto specs = Arrays(12, kMiB);
  ASSERT_OK(store->Save(Request(1, specs))->Wait());
  SaveRequest request = Request(2, specs);
  far_->Break(7);
  const auto refused = store->Save(std::move(request));
  EXPECT_EQ(refused.status().code(), StatusCode::kInternal);
  EXPECT_THAT(refused.status().message(), HasSubstr("leaf 'h': the device is gone"));
  EXPECT_EQ(far_->there_bytes(), 0U);
  EXPECT_LE(far_->order().size(), 12U);

  SaveRequest behind = Request(3, specs);
  behind.far_behind = true;
  far_->Break(0);
  const auto saved = store->Save(std::move(behind));
  ASSERT_OK(saved.status());
  EXPECT_THAT(saved->Wait().message(), HasSubstr("leaf 'a': the device is gone"));
  EXPECT_EQ(far_->there_bytes(), 0U);

  ASSERT_OK(store->Save(Request(4, specs))->Wait());
  EXPECT_EQ(store->StepNumbers(9, true).value(), (std::vector<uint64_t>{1, 4}));
  for (const uint64_t step : {1U, 4U}) EXPECT_OK(CheckSeeded(store.get(), step, step, specs));
  EXPECT_OK(store->Close());
}

TEST_F(FarTest, SaveReturnsBeforeTheCopiesThatAreMadeBehindIt) {
  auto store = Open(4 * kMiB);
  const auto specs = Arrays(12, kMiB);
  std::vector<std::pair<std::shared_ptr<FakeFar>, SaveHandle>> saves;
  for (uint64_t step = 1; step <= 2; ++step) {
    SaveRequest request = Request(step, specs);
    request.far_behind = true;
    far_->Hold(true);
    auto saved = store->Save(std::move(request));
    ASSERT_OK(saved.status());
    EXPECT_FALSE(saved->done());
    saves.emplace_back(far_, *saved);
  }
  for (auto& [far, saved] : saves) {
    far->Hold(false);
    ASSERT_OK(saved.Wait());
    EXPECT_LE(far->peak_bytes(), 4 * kMiB);
  }
  for (const uint64_t step : {1U, 2U}) EXPECT_OK(CheckSeeded(store.get(), step, step, specs));
}

TEST_F(FarTest, CloseWaitsForTheCopies) {
  auto store = Open(4 * kMiB);
  const auto specs = Arrays(12, kMiB);
  SaveRequest request = Request(1, specs);
  request.far_behind = true;
  far_->Hold(true);
  ASSERT_OK(store->Save(std::move(request)).status());
  std::thread releases([far = far_] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    far->Hold(false);
  });
  EXPECT_OK(store->Close());
  releases.join();
  store.reset();
  EXPECT_EQ(far_.use_count(), 1);
  store = Open(4 * kMiB);
  EXPECT_OK(CheckSeeded(store.get(), 1, 1, specs));
}

TEST_F(FarTest, WhatIsKnownForUnchangedIsNotCopied) {
  auto store = Open(4 * kMiB);
  auto specs = Arrays(6, kMiB);
  for (LeafSpec& spec : specs) spec.changes_every = 100;
  SaveRequest request = Request(1, specs);
  request.ticket = 1;
  ASSERT_OK(store->Save(std::move(request))->Wait());
  request = Request(2, specs);
  request.ticket = 2;
  for (LeafInput& leaf : request.items[0].leaves) {
    if (leaf.record.key != KeyOf("state", "c")) leaf.unchanged_since = 1;
  }
  ASSERT_OK(store->Save(std::move(request))->Wait());
  EXPECT_EQ(far_->order(), (std::vector<uint32_t>{2}));
  EXPECT_OK(CheckSeeded(store.get(), 2, 2, specs));
}

TEST_F(FarTest, ShardsWithoutASourceAreRefused) {
  auto store = Open(4 * kMiB);
  const auto specs = Arrays(1, kMiB);
  SaveRequest request = Request(1, specs);
  request.far = nullptr;
  EXPECT_THAT(store->Save(std::move(request)).status().message(),
              HasSubstr("nothing has the bytes"));
}

}  // namespace
}  // namespace stepwell::db
