// SPDX-License-Identifier: Apache-2.0
// Prepared and decided steps of a group of stores (DESIGN.md, "Many processes").
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "db/layout.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class GroupTest : public ::testing::Test {
 protected:
  GroupStores Open(uint32_t count, StoreOptions options = {}) {
    auto stores = GroupStores::Open(root_, count, std::move(options));
    EXPECT_TRUE(stores.ok()) << stores.status().ToString();
    return stores.ok() ? std::move(*stores) : GroupStores();
  }
  Result<std::unique_ptr<Store>> OpenToRead(uint32_t part) {
    StoreOptions options;
    options.read_only = true;
    return Store::Open(PartPath(root_, part), options);
  }

  TempDir dir_;
  const std::string root_ = dir_ / "run";
};

TEST_F(GroupTest, APreparedStepIsSeenByNobodyUntilItIsDecided) {
  const GroupStores group = Open(2);
  ASSERT_OK(group.PrepareAll(10, 1));
  for (const auto& store : group.stores) {
    EXPECT_THAT(StepNumbers(store.get()), IsEmpty());
    EXPECT_EQ(store->Read(10).status().code(), StatusCode::kNotFound);
    EXPECT_THAT(PreparedSteps(store.get()), ElementsAre(10));
    const uint64_t ten = 10;
    EXPECT_EQ(store->Delete({&ten, 1}).code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(store->SetPinned({&ten, 1}, true).code(), StatusCode::kFailedPrecondition);
  }
  const auto reader = OpenToRead(1);
  ASSERT_OK(reader.status());
  EXPECT_THAT(StepNumbers(reader->get()), IsEmpty());
  EXPECT_THAT(PreparedSteps(reader->get()), ElementsAre(10));

  const auto decided = group.part(0)->Decide(Commit(10, 1));
  ASSERT_OK(decided.status());
  EXPECT_THAT(decided->dead, IsEmpty());
  EXPECT_THAT(StepNumbers(group.part(0)), ElementsAre(10));
  EXPECT_THAT(StepNumbers(group.part(1)), IsEmpty());
  ASSERT_OK(group.part(1)->Decide(PassOn(Commit(10, 1), *decided)).status());
  EXPECT_THAT(StepNumbers(group.part(1)), ElementsAre(10));
  EXPECT_THAT(PreparedSteps(group.part(1)), IsEmpty());
  EXPECT_THAT(StepNumbers(reader->get()), ElementsAre(10));
  EXPECT_THAT(PreparedSteps(reader->get()), IsEmpty());
  ASSERT_OK(group.Close());
}

TEST_F(GroupTest, AStepThatIsBeingPreparedIsNeitherDeletedNorPinned) {
  const GroupStores group = Open(2);
  const uint64_t ten = 10;
  for (const auto& store : group.stores) {
    const auto handle = Prepare(store.get(), ten, 1, {0, 1});
    ASSERT_OK(handle.status());
    EXPECT_EQ(store->Delete({&ten, 1}).code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(store->SetPinned({&ten, 1}, true).code(), StatusCode::kFailedPrecondition);
    ASSERT_OK(handle->Wait());
  }
  const auto decided = group.part(0)->Decide(Commit(ten, 1));
  ASSERT_OK(decided.status());
  EXPECT_THAT(StepNumbers(group.part(0)), ElementsAre(10));
}

TEST_F(GroupTest, AnAbortedStepLeavesNothing) {
  const GroupStores group = Open(2);
  ASSERT_OK(group.SaveAll(5, 1));
  ASSERT_OK(group.PrepareAll(6, 2));
  ASSERT_OK(group.DecideAll(Abort(6, 2)).status());
  for (const auto& store : group.stores) {
    EXPECT_THAT(StepNumbers(store.get()), ElementsAre(5));
    EXPECT_THAT(PreparedSteps(store.get()), IsEmpty());
  }
  // The number is free again.
  ASSERT_OK(group.SaveAll(6, 3));
  EXPECT_THAT(StepNumbers(group.part(1)), ElementsAre(5, 6));
  ASSERT_OK(group.Close());
  const GroupStores again = Open(2);
  EXPECT_TRUE(again.part(0)->recovery().clean);
  EXPECT_THAT(StepNumbers(again.part(1)), ElementsAre(5, 6));
}

// What a prepared step refers to is not freed with the step that wrote it.
TEST_F(GroupTest, APreparedStepKeepsWhatItRefersTo) {
  const GroupStores group = Open(2);
  ASSERT_OK(group.SaveAll(5, 1));
  ASSERT_OK(group.PrepareAll(6, 1));
  for (const bool prepared : {true, false}) {
    if (!prepared) ASSERT_OK(group.DecideAll(Abort(6, 1)).status());
    for (const auto& store : group.stores) {
      const auto frees = store->FreesBytes({});
      ASSERT_OK(frees.status());
      const uint64_t own = store->Steps()->front().stored_bytes;
      EXPECT_GT(own, 0U);
      EXPECT_THAT(*frees, ElementsAre(Pair(5, prepared ? 0 : own)));
    }
  }
}

TEST_F(GroupTest, WhatIsUndecidedAtACloseIsUndecidedAtTheNextOpen) {
  {
    const GroupStores group = Open(2);
    ASSERT_OK(group.SaveAll(5, 1));
    ASSERT_OK(group.PrepareAll(6, 2));
    ASSERT_OK(group.PrepareAll(7, 3));
    ASSERT_OK(group.Close());
  }
  for (int round = 0; round < 3; ++round) {
    const GroupStores group = Open(2);
    EXPECT_TRUE(group.part(0)->recovery().clean);
    EXPECT_THAT(StepNumbers(group.part(0)), ElementsAre(5));
    EXPECT_THAT(PreparedSteps(group.part(0)), ElementsAre(6, 7));
    ASSERT_OK(group.part(0)->Reclaim().status());  // new segments with new catalogs
    if (round < 2) {
      ASSERT_OK(group.Close());
      continue;
    }
    // Decided in another order than they were prepared.
    ASSERT_OK(group.DecideAll(Commit(7, 3)).status());
    ASSERT_OK(group.DecideAll(Abort(6, 2)).status());
    for (const auto& store : group.stores) {
      EXPECT_THAT(StepNumbers(store.get()), ElementsAre(5, 7));
      const auto report = store->Verify({});
      ASSERT_OK(report.status());
      EXPECT_THAT(report->problems, IsEmpty());
    }
    ASSERT_OK(group.Close());
  }
  const GroupStores group = Open(2);
  EXPECT_THAT(StepNumbers(group.part(0)), ElementsAre(5, 7));
  EXPECT_THAT(PreparedSteps(group.part(1)), IsEmpty());
}

// Catalogs have it, however many segments begin meanwhile.
TEST_F(GroupTest, AStepStaysUndecidedWhileSegmentsComeAndGo) {
  StoreOptions options;
  options.segment_bytes = 1U << 20;
  auto group = GroupStores::Open(root_, 2, options);
  ASSERT_OK(group.status());
  ASSERT_OK(group->PrepareAll(1, 1));
  for (uint64_t step = 2; step < 400; ++step) ASSERT_OK(group->SaveAll(step, step));
  ASSERT_OK(group->part(0)->Reclaim().status());
  std::vector<uint64_t> all(398);
  std::iota(all.begin(), all.end(), 2);
  EXPECT_EQ(StepNumbers(group->part(0)), all);
  EXPECT_THAT(PreparedSteps(group->part(0)), ElementsAre(1));
  ASSERT_OK(group->Close());
  group = GroupStores::Open(root_, 2, options);
  ASSERT_OK(group.status());
  EXPECT_THAT(PreparedSteps(group->part(1)), ElementsAre(1));
  ASSERT_OK(group->DecideAll(Commit(1, 1)).status());
  EXPECT_EQ(StepNumbers(group->part(1)).size(), 399U);
}

TEST_F(GroupTest, RetentionEndsStepsWhereTheyAreDecided) {
  StoreOptions options;
  options.keep = {KeepRule::Latest(2)};
  const GroupStores group = Open(2, options);
  ASSERT_OK(group.SaveAll(1, 1));
  ASSERT_OK(group.SaveAll(2, 2));
  ASSERT_OK(group.PrepareAll(3, 3));
  ASSERT_OK(group.PrepareAll(4, 4));
  // Two undecided ones count for nothing.
  EXPECT_THAT(StepNumbers(group.part(0)), ElementsAre(1, 2));
  const auto decided = group.part(0)->Decide(Commit(3, 3));
  ASSERT_OK(decided.status());
  EXPECT_THAT(decided->dead, ElementsAre(1));
  EXPECT_THAT(StepNumbers(group.part(0)), ElementsAre(2, 3));
  EXPECT_THAT(StepNumbers(group.part(1)), ElementsAre(1, 2));
  ASSERT_OK(group.part(1)->Decide(PassOn(Commit(3, 3), *decided)).status());
  EXPECT_THAT(StepNumbers(group.part(1)), ElementsAre(2, 3));
  const auto last = group.DecideAll(Commit(4, 4));
  ASSERT_OK(last.status());
  EXPECT_THAT(last->dead, ElementsAre(2));
  EXPECT_THAT(StepNumbers(group.part(1)), ElementsAre(3, 4));
}

// The steps that end with a step are those that part 0 is asked to end; the others hear which went.
TEST_F(GroupTest, ADecisionRetiresWhatPartZeroIsAsked) {
  const GroupStores group = Open(2);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_OK(group.SaveAll(step, step));
  const std::vector<uint64_t> two{2};
  ASSERT_OK(group.part(0)->SetPinned(two, true));
  ASSERT_OK(group.part(1)->SetPinned(two, true));
  ASSERT_OK(group.PrepareAll(4, 4));
  Decision commit = Commit(4, 4);
  commit.dead = {1, 2, 4, 9};
  const auto decided = group.DecideAll(commit);
  ASSERT_OK(decided.status());
  EXPECT_THAT(decided->dead, ElementsAre(1));
  for (const uint32_t part : {0U, 1U}) {
    EXPECT_THAT(StepNumbers(group.part(part)), ElementsAre(2, 3, 4));
  }
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(5, 5, SmallState(), &scratch);
  request.group = GroupSave{.save_id = {1}, .parts = {0, 1}};
  request.retire = {3};
  EXPECT_EQ(group.part(0)->Save(std::move(request)).status().code(), StatusCode::kInvalidArgument);
}

// Aborting what is still being written ends it; deciding does not wait for later steps.
TEST_F(GroupTest, DecisionsComeBehindTheirOwnStepOnly) {
  const GroupStores group = Open(1);
  Store* store = group.part(0);
  for (uint64_t step = 1; step <= 20; ++step) {
    const auto handle = Prepare(store, step, step, {0});
    ASSERT_OK(handle.status());
    const auto next = Prepare(store, step + 100, step + 100, {0});
    ASSERT_OK(next.status());
    const bool commits = step % 2 == 0;
    ASSERT_OK(store->Decide(commits ? Commit(step, step) : Abort(step, step)).status());
    ASSERT_OK(handle->Wait());
    ASSERT_OK(store->Decide(Abort(step + 100, step + 100)).status());
    ASSERT_OK(next->Wait());
  }
  EXPECT_THAT(PreparedSteps(store), IsEmpty());
  EXPECT_EQ(StepNumbers(store).size(), 10U);
}

TEST_F(GroupTest, AStepIsReplacedWhenTheOtherIsDecided) {
  const GroupStores group = Open(2);
  ASSERT_OK(group.SaveAll(8, 1));
  EXPECT_EQ(Prepare(group.part(0), 8, 2, group.parts).status().code(), StatusCode::kAlreadyExists);
  ASSERT_OK(group.PrepareAll(8, 2, IfExists::kReplace));
  ASSERT_OK(group.PrepareAll(8, 3, IfExists::kReplace));
  EXPECT_EQ(Prepare(group.part(0), 9, 1, {0, 2}).status().code(), StatusCode::kOk);
  ASSERT_OK(group.part(0)->Wait());
  ASSERT_OK(group.part(0)->Decide(Abort(9, 1)).status());
  EXPECT_OK(CheckSeeded(group.part(0), 8, 1, {PartState(0)[0], PartState(1)[0]}));
  const auto decided = group.DecideAll(Commit(8, 3));
  ASSERT_OK(decided.status());
  EXPECT_THAT(decided->dead, ElementsAre(8));
  EXPECT_THAT(PreparedSteps(group.part(0)), ElementsAre(8));
  ASSERT_OK(group.DecideAll(Abort(8, 2)).status());
  for (const auto& store : group.stores) {
    EXPECT_THAT(StepNumbers(store.get()), ElementsAre(8));
    const auto steps = store->Steps();
    ASSERT_OK(steps.status());
    EXPECT_EQ(steps->front().group->save_id, SaveId(3));
  }
  // Pinned steps are not replaced.
  const uint64_t eight = 8;
  ASSERT_OK(group.PrepareAll(8, 4, IfExists::kReplace));
  ASSERT_OK(group.part(0)->SetPinned({&eight, 1}, true));
  EXPECT_EQ(group.part(0)->Decide(Commit(8, 4)).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(PreparedSteps(group.part(0)), ElementsAre(8));
}

TEST_F(GroupTest, DecidingTwiceIsDecidingOnce) {
  const GroupStores group = Open(2);
  ASSERT_OK(group.PrepareAll(3, 1));
  EXPECT_EQ(Prepare(group.part(0), 3, 2, group.parts).status().code(), StatusCode::kAlreadyExists);
  const auto first = group.DecideAll(Commit(3, 1));
  ASSERT_OK(first.status());
  const auto second = group.DecideAll(Commit(3, 1));
  ASSERT_OK(second.status());
  EXPECT_EQ(second->decision_number, first->decision_number);
  EXPECT_EQ(group.part(0)->Decide(Abort(3, 1)).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_OK(group.part(0)->Decide(Abort(4, 9)).status());
  EXPECT_EQ(group.part(0)->Decide(Commit(4, 9)).status().code(), StatusCode::kNotFound);
  const auto status = group.part(1)->Group();
  ASSERT_OK(status.status());
  EXPECT_EQ(status->decision_number, first->decision_number);
  EXPECT_EQ(status->group_id, group.part(0)->id());
  EXPECT_LE(status->decision_number, group.part(0)->Group()->decision_number);
}

TEST_F(GroupTest, APartIsWrittenToAsAPartOnly) {
  const format::Id128 id = [&] {
    const GroupStores group = Open(2);
    EXPECT_OK(group.SaveAll(1, 1));
    EXPECT_EQ(SaveSeeded(group.part(1), 2, 2, SmallState()).status().code(),
              StatusCode::kFailedPrecondition);
    EXPECT_EQ(Prepare(group.part(1), 2, 2, {0, 2}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_OK(group.Close());
    return group.part(0)->id();
  }();
  const std::string part = PartPath(root_, 1);
  const Status plain = Store::Open(part, {}).status();
  EXPECT_EQ(plain.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(plain.message(), HasSubstr("is part 1 of the store " + root_));
  StoreOptions options;
  options.group = StoreGroup{id, 2};
  EXPECT_THAT(Store::Open(part, options).status().message(), HasSubstr("not part 2"));
  options.group = StoreGroup{SaveId(99), 1};
  EXPECT_THAT(Store::Open(part, options).status().message(), HasSubstr("another store"));
  options.group = StoreGroup{id, 1};
  EXPECT_EQ(Store::Open(root_, options).status().code(), StatusCode::kFailedPrecondition);
  options.group = StoreGroup{{}, 3};
  EXPECT_EQ(Store::Open(PartPath(root_, 3), options).status().code(), StatusCode::kInvalidArgument);
  // It opens for reading, and says what it is.
  StoreOptions reading;
  reading.read_only = true;
  std::string output;
  reading.log = [&](LogLevel, std::string_view text) { output += text; };
  const auto reader = Store::Open(part, reading);
  ASSERT_OK(reader.status());
  EXPECT_THAT(output, HasSubstr("is part 1 of the store " + root_));
  EXPECT_EQ((*reader)->part().part, 1U);
  EXPECT_THAT(StepNumbers(reader->get()), ElementsAre(1));
  const auto step = (*reader)->Read(1);
  ASSERT_OK(step.status());
  const auto leaves = (*step)->Leaves("");
  ASSERT_OK(leaves.status());
  ASSERT_EQ(leaves->size(), 1U);
  EXPECT_EQ(leaves->front().key, KeyOf("state", PartLeaf(1)));
}

TEST_F(GroupTest, SpaceOfUndecidedStepsIsNeeded) {
  StoreOptions options;
  options.segment_bytes = uint64_t{1} << 20;
  const GroupStores group = Open(1, options);
  Store* store = group.part(0);
  const auto prepare = [&](uint64_t step) {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(1);
    SaveRequest request = MakeRequest(step, step, {{"w", {300000}, false, false}}, &scratch);
    request.group = GroupSave{SaveId(step), {0}};
    const auto handle = store->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  };
  for (uint64_t step = 1; step <= 12; ++step) prepare(step);
  for (uint64_t step = 1; step <= 12; ++step) {
    if (step % 3 != 0) ASSERT_OK(store->Decide(Abort(step, step)).status());
  }
  const auto report = store->Reclaim();
  ASSERT_OK(report.status());
  EXPECT_LT(store->Stats().space.dead_bytes, 2 * 1200000U);
  for (uint64_t step = 3; step <= 12; step += 3) {
    ASSERT_OK(store->Decide(Commit(step, step)).status());
    EXPECT_OK(CheckSeeded(store, step, step, {{"w", {300000}, false, false}}));
  }
  const auto verified = store->Verify({});
  ASSERT_OK(verified.status());
  EXPECT_THAT(verified->problems, IsEmpty());
  const SpaceStats space = store->Stats().space;
  EXPECT_EQ(space.live_bytes + space.padding_bytes + space.overhead_bytes + space.dead_bytes +
                space.reserved_bytes + space.index_bytes + space.other_bytes,
            space.total_bytes);
}

}  // namespace
}  // namespace stepwell::db
