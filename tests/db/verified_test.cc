// SPDX-License-Identifier: Apache-2.0
// What verification records: which commits it found whole, for KeepRule::LastVerified.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <utility>

#include "db/layout.h"
#include "tests/db/support/damage_support.h"
#include "tests/db/support/group_support.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class VerifiedTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open(StoreOptions options = {}) {
    options.staging_bytes = uint64_t{64} << 20;
    auto store = Store::Open(path_, options);
    EXPECT_OK(store.status());
    return store.ok() ? std::move(*store) : nullptr;
  }
  static void Save(Store* store, uint64_t step, IfExists if_exists = IfExists::kError) {
    ASSERT_OK(SaveSeeded(store, step, step, SmallState(), if_exists)->Wait());
  }
  // The numbers of the problems' steps.
  static std::vector<uint64_t> Verify(Store* store, VerifyOptions options = {}) {
    const auto report = store->Verify(options);
    EXPECT_OK(report.status());
    std::vector<uint64_t> steps;
    if (!report.ok()) return steps;
    for (const VerifyProblem& problem : report->problems) steps.push_back(problem.step.value_or(0));
    return steps;
  }
  static std::vector<uint64_t> VerifyOne(Store* store, uint64_t step) {
    VerifyOptions options;
    options.step = step;
    return Verify(store, options);
  }
  // The chunk that a step wrote first.
  static format::StoredPayload FirstChunk(Store* store, uint64_t step) {
    const auto reader = store->Read(step);
    EXPECT_OK(reader.status());
    const auto leaves = (*reader)->Leaves("");
    EXPECT_OK(leaves.status());
    for (const auto& leaf : *leaves) {
      if (!leaf.chunks.empty()) return leaf.chunks.front();
    }
    ADD_FAILURE() << "no chunk";
    return {};
  }

  TempDir dir_;
  const std::string path_ = dir_ / "run";
};

TEST_F(VerifiedTest, DamageEndsIt) {
  auto store = Open();
  for (uint64_t step = 1; step <= 3; ++step) Save(store.get(), step);
  EXPECT_THAT(Verify(store.get()), IsEmpty());
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 2, 3));
  const format::StoredPayload chunk = FirstChunk(store.get(), 2);
  const std::string segment = SegmentPath(path_, chunk.segment);
  FlipByte(segment, chunk.offset_bytes, 1);
  EXPECT_THAT(VerifyOne(store.get(), 1), IsEmpty());
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 2, 3)) << "nobody looked at 2";
  EXPECT_THAT(Verify(store.get()), ElementsAre(2));
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 3));
  store = nullptr;
  store = Open();
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 3));
  FlipByte(segment, chunk.offset_bytes, 1);  // such as a disk that was replaced
  EXPECT_THAT(VerifyOne(store.get(), 2), IsEmpty());
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 2, 3));
}

// Only the commits that were read: what comes in between was not.
TEST_F(VerifiedTest, WhatIsReplacedMeanwhileIsNotVerified) {
  auto store = Open();
  for (uint64_t step = 1; step <= 4; ++step) Save(store.get(), step);
  bool changed = false;
  VerifyOptions options;
  options.progress = [&](uint64_t, uint64_t) {
    if (std::exchange(changed, true)) return true;
    Save(store.get(), 2, IfExists::kReplace);
    const uint64_t three = 3;
    EXPECT_OK(store->Delete({&three, 1}));
    return true;
  };
  EXPECT_THAT(Verify(store.get(), options), IsEmpty());
  EXPECT_TRUE(changed);
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 4));
  options.progress = [](uint64_t, uint64_t) { return false; };
  EXPECT_EQ(store->Verify(options).status().code(), StatusCode::kCancelled);
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1, 4));
}

TEST_F(VerifiedTest, AVerificationIsOneFrame) {
  auto store = Open();
  for (uint64_t step = 1; step <= 50; ++step) Save(store.get(), step);
  const auto commit = [&store](uint64_t step) { return (*store->Read(step))->step().commit; };
  EXPECT_THAT(Verify(store.get()), IsEmpty());
  EXPECT_EQ(VerifiedSteps(store.get()).size(), 50U);
  Save(store.get(), 51);
  EXPECT_EQ(commit(51), commit(50) + 2);
  EXPECT_THAT(VerifyOne(store.get(), 7), IsEmpty());  // says nothing new
  Save(store.get(), 52);
  EXPECT_EQ(commit(52), commit(51) + 1);
}

// A callback of such a save may have asked for it.
TEST_F(VerifiedTest, AVerificationDoesNotWaitForSavesUnderWay) {
  auto store = Open();
  Save(store.get(), 1);
  std::vector<std::vector<float>> scratch;
  SaveRequest stuck = MakeRequest(2, 2, {{"w", {10}, true}}, &scratch);
  std::promise<void> go_on;
  LeafInput& leaf = stuck.items[0].leaves[0];
  leaf.hold = std::shared_ptr<const void>(
      leaf.data,
      [hold = leaf.hold, until = go_on.get_future().share()](const void*) { until.wait(); });
  ASSERT_OK(store->Save(std::move(stuck)).status());
  EXPECT_THAT(Verify(store.get()), IsEmpty());
  EXPECT_THAT(VerifiedSteps(store.get()), IsEmpty());
  go_on.set_value();
  ASSERT_OK(store->Wait());
  EXPECT_THAT(VerifiedSteps(store.get()), ElementsAre(1));
}

TEST_F(VerifiedTest, RetentionKeepsTheNewestVerifiedStep) {
  StoreOptions options;
  options.keep = {KeepRule::Latest(1), KeepRule::LastVerified()};
  auto store = Open(options);
  const auto steps = [&store] { return StepNumbers(store.get()); };
  const uint64_t six = 6;
  for (uint64_t step = 1; step <= 3; ++step) Save(store.get(), step);
  EXPECT_THAT(steps(), ElementsAre(3)) << "none is verified";
  const auto before = store->Retention();
  ASSERT_OK(before.status());
  EXPECT_THAT(before->warnings, ElementsAre(HasSubstr("no step is verified")));
  Verify(store.get());
  for (uint64_t step = 4; step <= 6; ++step) Save(store.get(), step);
  EXPECT_THAT(steps(), ElementsAre(3, 6));
  Verify(store.get());
  const auto report = store->Retention();
  ASSERT_OK(report.status());
  EXPECT_THAT(report->rule_texts, ElementsAre("the latest step", "the newest verified step"));
  EXPECT_THAT(report->warnings, Not(Contains(HasSubstr("no step is verified"))));
  ASSERT_EQ(report->steps.size(), 2U);
  EXPECT_THAT(report->steps[0].kept_by, IsEmpty());
  EXPECT_THAT(report->steps[1].kept_by, ElementsAre(1));
  ASSERT_OK(store->SetTaint({&six, 1}, "loss spike"));
  Save(store.get(), 7);
  EXPECT_THAT(steps(), ElementsAre(3, 7)) << "a tainted step does not count";
  options = {};
  options.read_only = true;
  const auto reader = Open(options);
  const auto seen = reader->Retention();  // by what RETENTION says
  ASSERT_OK(seen.status());
  EXPECT_THAT(seen->rule_texts, ElementsAre("the latest step", "the newest verified step"));
  ASSERT_EQ(seen->steps.size(), 2U);
  EXPECT_THAT(seen->steps[0].kept_by, ElementsAre(1));
}

// Part 0 decides what is kept, and has read all parts.
TEST_F(VerifiedTest, OfAGroupPartZeroRecordsIt) {
  const auto group = GroupStores::Open(path_, 2);
  ASSERT_OK(group.status());
  ASSERT_OK(group->SaveAll(5, 1));
  ASSERT_OK(group->part(0)->VerifyShare({}).status());
  EXPECT_THAT(VerifiedSteps(group->part(0)), IsEmpty()) << "the other part was not read";
  EXPECT_THAT(Verify(group->part(1)), IsEmpty());
  EXPECT_THAT(VerifiedSteps(group->part(1)), IsEmpty());
  EXPECT_THAT(Verify(group->part(0)), IsEmpty());
  EXPECT_THAT(VerifiedSteps(group->part(0)), ElementsAre(5));
  const format::StoredPayload chunk = FirstChunk(group->part(1), 5);
  FlipByte(SegmentPath(PartPath(path_, 1), chunk.segment), chunk.offset_bytes, 1);
  EXPECT_THAT(Verify(group->part(0)), ElementsAre(5));
  EXPECT_THAT(VerifiedSteps(group->part(0)), IsEmpty());
}

}  // namespace
}  // namespace stepwell::db
