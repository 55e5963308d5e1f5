// SPDX-License-Identifier: Apache-2.0
// What an index says of lost frames, against a log of which none is lost.
#include "db/index/witness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::FrameKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Payload {
  FrameKind kind = FrameKind::kEpoch;
  std::string bytes;
};

format::FramePlace PlaceOf(uint64_t number) {
  return {.segment = 1,
          .offset_bytes = 4096 * number,
          .length_bytes = 64,
          .crc = static_cast<uint32_t>(7 * number)};
}

void Apply(const Payload& payload, uint64_t number, LogState* state) {
  format::FrameHeader header;
  header.kind = payload.kind;
  header.commit = number;
  header.epoch = 1;
  ASSERT_OK(ApplyChainFrame(header, PlaceOf(number), payload.bytes, state));
}

// The rows of an index that has followed the log so far.
std::vector<IndexedStep> RowsOf(const LogState& state) {
  std::vector<IndexedStep> rows;
  for (const auto& [number, live] : state.live) {
    rows.push_back({number, live.record.commit, live.place.crc, live.record.pinned, false});
  }
  return rows;
}

using Pins = std::map<uint64_t, std::pair<uint64_t, bool>>;  // step: commit, pinned

Pins PinsOf(const LogState& state) {
  Pins pins;
  for (const auto& [number, live] : state.live) {
    pins[number] = {live.record.commit, live.record.pinned};
  }
  return pins;
}

// Frames of a store with few steps, so that they meet: saves, replacements, deletes, pins.
class RandomLog {
 public:
  explicit RandomLog(uint32_t seed) : random_(seed) {
    for (uint64_t number = 1; number <= 12; ++number) {
      Payload payload = Next(number);
      Apply(payload, number, &state_);
      frames_.push_back(std::move(payload));
      states_.push_back(state_);
    }
  }

  uint64_t Below(uint64_t end) { return random_() % end; }
  uint64_t size() const { return frames_.size(); }
  const LogState& After(uint64_t number) const { return states_[number - 1]; }

  // What recovery finds when those frames are gone.
  LogState Without(const std::set<uint64_t>& lost) const {
    LogState state;
    for (uint64_t number = 1; number <= frames_.size(); ++number) {
      if (!lost.contains(number)) {
        Apply(frames_[number - 1], number, &state);
        continue;
      }
      if (!lost.contains(number - 1)) state.losses.emplace_back().first_commit = number;
      state.losses.back().last_commit = number;
      state.tip_commit = number;
    }
    return state;
  }

 private:
  Payload Next(uint64_t number) {
    const uint64_t step = 10 + Below(4);
    const auto there = state_.live.find(step);
    const uint64_t what = Below(10);
    if (there == state_.live.end() || what < 4) {
      format::Commit commit;
      commit.step.step = step;
      commit.step.commit = number;
      if (there != state_.live.end()) {
        commit.kills.push_back(there->second.record.commit);
        commit.step.pinned = there->second.record.pinned;  // as when a step is written anew
      }
      return {FrameKind::kCommit, format::EncodeCommit(commit)};
    }
    const LiveStep& live = there->second;
    if (what < 6) {
      return {FrameKind::kDelete, format::EncodeDelete({{live.record.commit}, {step}})};
    }
    if (what == 6) return {FrameKind::kEpoch, format::EncodeEpoch({})};
    return {FrameKind::kMeta, format::EncodeMeta({{{live.record.commit, !live.record.pinned}}})};
  }

  std::mt19937 random_;
  LogState state_;
  std::vector<Payload> frames_;
  std::vector<LogState> states_;
};

TEST(IndexWitnessTest, WithWhatItSaysAllIsAsItWas) {
  uint64_t restored = 0;
  for (uint32_t seed = 1; seed <= 20'000; ++seed) {
    RandomLog log(seed);
    const uint64_t applied = 1 + log.Below(log.size());
    std::set<uint64_t> lost;
    for (uint64_t count = 1 + log.Below(3); count > 0; --count) lost.insert(1 + log.Below(applied));
    const LogState found = log.Without(lost);
    const auto witnessed =
        AskIndex(found, RowsOf(log.After(applied)), {applied, PlaceOf(applied).crc, true});
    ASSERT_TRUE(witnessed.ok()) << "seed " << seed << ": " << witnessed.status().ToString();
    Pins pins = PinsOf(found);
    for (const IndexedStep& step : witnessed->lost) pins[step.step] = {step.commit, step.pinned};
    for (const uint64_t step : witnessed->ended) pins.erase(step);
    for (const auto& [step, pinned] : witnessed->pins) pins[step].second = pinned;
    ASSERT_EQ(pins, PinsOf(log.After(log.size())))
        << "seed " << seed << ", the index as of " << applied;
    restored += pins == PinsOf(found) ? 0 : 1;
  }
  EXPECT_GT(restored, 5'000U);
}

class IndexWitnessRefuses : public ::testing::Test {
 protected:
  void ExpectRefused(const LogState& state, const std::vector<IndexedStep>& rows, uint64_t applied,
                     bool complete, const std::string& why) {
    const auto witnessed = AskIndex(state, rows, {applied, PlaceOf(applied).crc, complete});
    EXPECT_EQ(witnessed.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(witnessed.status().message(), HasSubstr(why));
  }

  RandomLog log_{1};
  LogState found_ = log_.Without({5, 6});
  std::vector<IndexedStep> rows_ = RowsOf(log_.After(12));
};

TEST_F(IndexWitnessRefuses, WhatIsOlderOrNewerThanTheLossOrNotComplete) {
  ASSERT_OK(AskIndex(found_, rows_, {12, PlaceOf(12).crc, true}).status());
  ExpectRefused(found_, rows_, 12, false, "does not have all steps");
  ExpectRefused(found_, RowsOf(log_.After(5)), 5, true, "as of commit 5");
  ExpectRefused(found_, rows_, 13, true, "as of commit 13, the log ends at 12");
  found_.catalog_commit = 8;  // frames up to there were not looked at
  ExpectRefused(found_, RowsOf(log_.After(7)), 7, true, "as of commit 7");
}

TEST_F(IndexWitnessRefuses, WhatIsOfAnotherHistory) {
  const LogState late = log_.Without({12});
  EXPECT_OK(AskIndex(late, rows_, {12, 5, true}).status());  // the lost frame is not known
  found_.frame_crcs[12] = 5;
  ExpectRefused(found_, rows_, 12, true, "another frame of commit 12");
}

TEST_F(IndexWitnessRefuses, WhatContradictsTheLog) {
  auto rows = rows_;
  rows.front().frame_crc ^= 1;
  ExpectRefused(found_, rows, 12, true, "contradict at step");
  rows = rows_;
  rows.push_back({99, 11, 5, false, false});  // of a frame that is there, and says otherwise
  ExpectRefused(found_, rows, 12, true, "contradict at step 99");
  // A step from behind the loss that the index does not have.
  LogState late = log_.Without({1});
  for (const auto& [number, live] : late.live) {
    if (live.record.commit < 2) continue;
    std::vector<IndexedStep> without = rows_;
    std::erase_if(without, [n = number](const auto& row) { return row.step == n; });
    ExpectRefused(late, without, 12, true, StrCat("contradict at step ", number));
  }
}

TEST_F(IndexWitnessRefuses, StepsOfSeveralProcesses) {
  rows_.front().of_group = true;
  ExpectRefused(found_, rows_, 12, true, "several processes");
  rows_.front().of_group = false;
  found_.live.begin()->second.record.group.emplace();
  ExpectRefused(found_, rows_, 12, true, "several processes");
  found_.live.begin()->second.record.group.reset();
  found_.undecided[3];
  ExpectRefused(found_, rows_, 12, true, "several processes");
}

// A step that a lost frame saved and a later one, behind the index, ended or saved again.
TEST(IndexWitnessTest, WhatALaterFrameEndedStaysEnded) {
  LogState state;
  state.losses.emplace_back().first_commit = 1;
  state.losses.back().last_commit = 1;
  state.tip_commit = 1;
  const std::vector<IndexedStep> rows = {{10, 1, 7, false, false}};
  ASSERT_THAT(AskIndex(state, rows, {1, PlaceOf(1).crc, true})->lost.size(), 1U);
  LogState deleted = state;
  Apply({FrameKind::kDelete, format::EncodeDelete({{1}, {10}})}, 2, &deleted);
  EXPECT_THAT(AskIndex(deleted, rows, {1, PlaceOf(1).crc, true})->lost, IsEmpty());
  // Saved again by a writer that did not know of it, and deleted.
  format::Commit commit;
  commit.step.step = 10;
  commit.step.commit = 2;
  LogState again = state;
  Apply({FrameKind::kCommit, format::EncodeCommit(commit)}, 2, &again);
  EXPECT_THAT(AskIndex(again, rows, {1, PlaceOf(1).crc, true})->lost, IsEmpty());
  Apply({FrameKind::kDelete, format::EncodeDelete({{2}, {10}})}, 3, &again);
  EXPECT_THAT(AskIndex(again, rows, {1, PlaceOf(1).crc, true})->lost, IsEmpty());
  // An older version of it, which the log still had, was deleted or pinned.
  LogState older = state;
  commit.step.commit = 1;
  older.losses.back().first_commit = older.losses.back().last_commit = 2;
  Apply({FrameKind::kCommit, format::EncodeCommit(commit)}, 1, &older);
  older.tip_commit = 2;
  const std::vector<IndexedStep> newer = {{10, 2, 14, false, false}};
  ASSERT_EQ(AskIndex(older, newer, {2, 14, true})->lost.size(), 1U);
  LogState gone = older;
  Apply({FrameKind::kDelete, format::EncodeDelete({{1}, {10}})}, 3, &gone);
  EXPECT_THAT(AskIndex(gone, newer, {2, 14, true})->lost, IsEmpty());
  Apply({FrameKind::kMeta, format::EncodeMeta({{{1, true}}})}, 3, &older);
  EXPECT_TRUE(AskIndex(older, newer, {2, 14, true})->lost.at(0).pinned);
  // Pinned by one, it comes back pinned.
  Apply({FrameKind::kMeta, format::EncodeMeta({{{1, true}}})}, 2, &state);
  const auto pinned = AskIndex(state, rows, {1, PlaceOf(1).crc, true});
  ASSERT_EQ(pinned->lost.size(), 1U);
  EXPECT_TRUE(pinned->lost[0].pinned);
}

// An index that follows the log may have steps of frames behind `applied` already, with the pins of
// others before them: what the log says of them counts.
TEST(IndexWitnessTest, StepsFromBehindItAreAsTheLogHasThem) {
  LogState state;
  state.losses.emplace_back().first_commit = 1;
  state.losses.back().last_commit = 1;
  state.tip_commit = 1;
  format::Commit commit;
  commit.step.step = 10;
  commit.step.commit = 3;
  Apply({FrameKind::kEpoch, format::EncodeEpoch({})}, 2, &state);
  Apply({FrameKind::kCommit, format::EncodeCommit(commit)}, 3, &state);
  const auto witnessed =
      AskIndex(state, {{10, 3, PlaceOf(3).crc, true, false}}, {2, PlaceOf(2).crc, true});
  ASSERT_OK(witnessed.status());
  EXPECT_THAT(witnessed->pins, IsEmpty());
}

}  // namespace
}  // namespace stepwell::db
