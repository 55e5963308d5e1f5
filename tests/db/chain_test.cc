// SPDX-License-Identifier: Apache-2.0
// Frames whose checksums are right and whose contents are not: applied to the state of a log, each
// is an error or changes nothing that it does not name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "db/log/recovery.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::FrameKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

format::Commit CommitOf(uint64_t number, uint64_t step, std::vector<uint64_t> kills = {}) {
  format::Commit commit;
  commit.step.step = step;
  commit.step.commit = number;
  commit.step.metadata_json = "{}";
  commit.kills = std::move(kills);
  return commit;
}

format::Commit PreparedOf(uint64_t number, uint64_t step, uint8_t save_id) {
  format::Commit commit = CommitOf(number, step);
  commit.step.group.emplace();
  commit.step.group->state = format::GroupState::kPrepared;
  commit.step.group->save_id[0] = save_id;
  commit.step.group->parts = {0, 1};
  return commit;
}

format::Decided DecidedOf(uint64_t prepared, uint8_t save_id, bool committed) {
  format::Decided decided;
  decided.group.state = format::GroupState::kDecided;
  decided.group.save_id[0] = save_id;
  decided.group.parts = {0, 1};
  decided.commit = prepared;
  decided.committed = committed;
  return decided;
}

class ChainTest : public ::testing::Test {
 protected:
  // With the number that follows the tip's, unless another is given.
  Status Apply(FrameKind kind, const std::string& payload, uint64_t number = 0) {
    format::FrameHeader header;
    header.kind = kind;
    header.commit = number == 0 ? state_.tip_commit + 1 : number;
    header.epoch = 1;
    return ApplyChainFrame(header, {.segment = 1, .offset_bytes = 4096 * header.commit}, payload,
                           &state_);
  }
  Status ApplyCommit(const format::Commit& commit, FrameKind kind = FrameKind::kCommit) {
    return Apply(kind, format::EncodeCommit(commit));
  }
  void ExpectRefused(const Status& status, const std::string& why) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr(why));
  }

  LogState state_;
};

TEST_F(ChainTest, FramesOfTwoNumbersAreRefused) {
  ExpectRefused(Apply(FrameKind::kCommit, format::EncodeCommit(CommitOf(7, 1)), 8),
                "a commit frame's two commit numbers differ");
  ExpectRefused(Apply(FrameKind::kPrepared, format::EncodeCommit(PreparedOf(7, 1, 1)), 8),
                "a prepared frame's two commit numbers differ");
  EXPECT_EQ(state_.tip_commit, 0U);
  EXPECT_THAT(state_.live, IsEmpty());
}

TEST_F(ChainTest, PayloadsThatDoNotDecodeAreRefused) {
  for (const FrameKind kind : {FrameKind::kCommit, FrameKind::kPrepared, FrameKind::kDecided,
                               FrameKind::kDelete, FrameKind::kMeta, FrameKind::kLoss}) {
    EXPECT_EQ(Apply(kind, "no message").code(), StatusCode::kDataLoss) << static_cast<int>(kind);
  }
  for (const FrameKind kind : {FrameKind::kRecords, FrameKind::kFooter, FrameKind::kCatalog}) {
    ExpectRefused(Apply(kind, ""), "of no chain kind");
  }
  EXPECT_EQ(state_.tip_commit, 0U);
}

TEST_F(ChainTest, WhatIsPreparedNeedsAGroupAndEndsNothing) {
  ExpectRefused(ApplyCommit(CommitOf(1, 5), FrameKind::kPrepared), "of no group");
  format::Commit decided = PreparedOf(1, 5, 1);
  decided.step.group->state = format::GroupState::kDecided;
  ExpectRefused(ApplyCommit(decided, FrameKind::kPrepared), "of no group");
  format::Commit killer = PreparedOf(1, 5, 1);
  killer.kills = {1};
  ExpectRefused(ApplyCommit(killer, FrameKind::kPrepared), "of no group");
  EXPECT_THAT(state_.undecided, IsEmpty());
}

TEST_F(ChainTest, ADecisionIsOfThatSave) {
  EXPECT_OK(ApplyCommit(PreparedOf(1, 5, 1), FrameKind::kPrepared));
  const auto decide = [&](uint64_t prepared, uint8_t save_id, bool committed) {
    return Apply(FrameKind::kDecided,
                 format::EncodeDecided(DecidedOf(prepared, save_id, committed)));
  };
  ExpectRefused(decide(2, 1, true), "a decision about commit 2, which is not prepared");
  ExpectRefused(decide(1, 2, true), "a decision about commit 1, which is not prepared");
  EXPECT_THAT(state_.live, IsEmpty());
  EXPECT_OK(decide(1, 1, true));
  EXPECT_THAT(state_.live, ElementsAre(Key(5)));
  ExpectRefused(decide(1, 1, false), "which is not prepared");  // the second time
  EXPECT_OK(ApplyCommit(PreparedOf(3, 6, 3), FrameKind::kPrepared));
  EXPECT_OK(decide(3, 3, false));
  EXPECT_THAT(state_.live, ElementsAre(Key(5)));
  EXPECT_THAT(state_.undecided, IsEmpty());
}

TEST_F(ChainTest, WhatIsNotLiveIsNeitherEndedNorPinned) {
  EXPECT_OK(ApplyCommit(CommitOf(1, 5)));
  format::Delete deletion;
  deletion.kills = {9, 0};
  EXPECT_OK(Apply(FrameKind::kDelete, format::EncodeDelete(deletion)));
  format::Meta meta;
  meta.changes = {{.commit = 9, .pinned = true}, {.commit = 1, .pinned = std::nullopt}};
  EXPECT_OK(Apply(FrameKind::kMeta, format::EncodeMeta(meta)));
  ASSERT_THAT(state_.live, ElementsAre(Key(5)));
  EXPECT_FALSE(state_.live.at(5).record.pinned);
  EXPECT_THAT(state_.dead, IsEmpty());
  meta.changes = {{.commit = 1, .pinned = true}};
  EXPECT_OK(Apply(FrameKind::kMeta, format::EncodeMeta(meta)));
  EXPECT_TRUE(state_.live.at(5).record.pinned);
  EXPECT_OK(ApplyCommit(CommitOf(5, 6, {1})));
  EXPECT_THAT(state_.live, ElementsAre(Key(6)));
  EXPECT_EQ(state_.tip_commit, 5U);
}

TEST_F(ChainTest, ALossIsReplacedByAWiderOneAndEndsWhenItIsAccepted) {
  const auto loss = [&](uint64_t first, uint64_t last, bool accepted) {
    format::LossRecord record;
    record.first_commit = first;
    record.last_commit = last;
    record.accepted = accepted;
    return Apply(FrameKind::kLoss, format::EncodeLoss(record), 10);
  };
  EXPECT_OK(loss(3, 4, false));
  EXPECT_OK(loss(6, 6, false));
  EXPECT_EQ(state_.losses.size(), 2U);
  EXPECT_OK(loss(2, 4, false));
  ASSERT_EQ(state_.losses.size(), 2U);
  EXPECT_EQ(LossAfter(state_.losses, 1), &state_.losses[0]);
  EXPECT_EQ(LossAfter(state_.losses, 6), nullptr);
  EXPECT_OK(loss(4, 4, true));  // a part of one: it stays
  EXPECT_EQ(state_.losses.size(), 2U);
  EXPECT_OK(loss(2, 6, true));
  EXPECT_THAT(state_.losses, IsEmpty());
}

}  // namespace
}  // namespace stepwell::db
