// SPDX-License-Identifier: Apache-2.0
// Compares what reclaim must leave alone with a plain reading of every commit's life.
#include "db/log/live_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kNever = ~uint64_t{0};
const std::set<uint64_t> kSegments = {1, 2, 3, 4, 5, 6};

std::shared_ptr<const LiveStep> Step(uint64_t step, uint64_t commit,
                                     const std::vector<uint64_t>& segments) {
  auto live = std::make_shared<LiveStep>();
  live->record.step = step;
  live->record.commit = commit;
  for (const uint64_t id : segments) {
    format::SegmentExtent& extent = live->record.extents.emplace_back();
    extent.segment = id;
    extent.end_bytes = 4096;
    extent.stored_bytes = 100 + commit;
  }
  live->place = {.segment = segments.back(), .offset_bytes = 4096 * commit};
  return live;
}

// A commit's life as the log tells it.
struct Life {
  std::shared_ptr<const LiveStep> step;
  uint64_t killer = kNever;
};

class LiveStepsTest : public ::testing::Test {
 protected:
  void Commit(LiveSteps::Change change) {
    change.commit = ++tip_;
    for (const auto& killed : change.killed) lives_[killed->record.commit].killer = tip_;
    if (change.decided != nullptr && change.added == nullptr) {
      lives_[change.decided->record.commit].killer = tip_;
    }
    for (const auto& born : {change.added, change.prepared}) {
      if (born != nullptr) lives_.try_emplace(born->record.commit, Life{born});
    }
    live_.Commit(change);
  }
  void Save(uint64_t step, const std::vector<uint64_t>& segments) {
    LiveSteps::Change change;
    if (auto old = live_.Find(step)) change.killed.push_back(std::move(old));
    change.added = Step(step, tip_ + 1, segments);
    Commit(std::move(change));
  }
  void Delete(uint64_t step) {
    LiveSteps::Change change;
    change.killed.push_back(live_.Find(step));
    Commit(std::move(change));
  }
  static std::vector<uint64_t> PinnedIn(const LiveSteps::Use& use, uint64_t segment) {
    std::vector<uint64_t> commits;
    const auto it = use.segments.find(segment);
    if (it == use.segments.end()) return commits;
    for (const DeadCommit& dead : it->second.pinned) commits.push_back(dead.commit);
    return commits;
  }

  LiveSteps live_;
  std::map<uint64_t, Life> lives_;  // by commit
  uint64_t tip_ = 0;
};

TEST_F(LiveStepsTest, APinKeepsWhatWasLiveAndNothingThatCameLater) {
  Save(1, {1});
  Save(2, {1, 2});
  auto pin = live_.FindAndPin(2).pin;  // at commit 2
  Save(3, {2});
  for (const uint64_t step : {1U, 2U, 3U}) Delete(step);
  auto use = live_.UseOf(kSegments, {}, tip_);
  EXPECT_THAT(PinnedIn(use, 1), ElementsAre(1, 2));
  EXPECT_THAT(PinnedIn(use, 2), ElementsAre(2));
  EXPECT_EQ(use.pinned_bytes, 101U + 2 * 102U);
  EXPECT_THAT(use.forgotten, ElementsAre(3));
  pin.reset();
  use = live_.UseOf(kSegments, {}, tip_);
  EXPECT_THAT(use.segments, IsEmpty());
  EXPECT_EQ(use.pinned_bytes, 0U);
  EXPECT_THAT(use.forgotten, ElementsAre(1, 2));
}

TEST_F(LiveStepsTest, WhatOthersMayNotKnowAsDeadBlocksItsSegments) {
  Save(1, {1});
  Save(2, {2});
  Delete(1);
  Delete(2);
  const auto use = live_.UseOf(kSegments, {}, /*published=*/3);
  EXPECT_FALSE(use.segments.contains(1));
  EXPECT_TRUE(use.segments.at(2).blocked);
  // A reader that is just looking may see anything.
  Save(3, {1});
  Delete(3);
  EXPECT_TRUE(live_.UseOf(kSegments, {{}, /*unknown=*/true}, tip_).segments.at(1).blocked);
  EXPECT_THAT(live_.UseOf(kSegments, {}, tip_).segments, IsEmpty());
}

// A part's share is seen from the frame that prepares it on.
TEST_F(LiveStepsTest, APreparedStepIsBornWhenItIsPrepared) {
  LiveSteps::Change prepare;
  prepare.prepared = Step(1, 1, {1});
  Commit(prepare);
  EXPECT_EQ(live_.UseOf(kSegments, {}, tip_).segments.at(1).live.size(), 1U);
  EXPECT_EQ(live_.StoredBytesFrom(1), 101U);
  LiveSteps::Change decide;
  decide.decided = decide.added = prepare.prepared;
  Commit(decide);
  EXPECT_EQ(live_.UseOf(kSegments, {}, tip_).segments.at(1).live.size(), 1U);
  EXPECT_EQ(live_.StoredBytesFrom(1), 101U);
  Delete(1);
  EXPECT_THAT(PinnedIn(live_.UseOf(kSegments, {{1}, false}, tip_), 1), ElementsAre(1));
  EXPECT_EQ(live_.StoredBytesFrom(1), 0U);
}

TEST_F(LiveStepsTest, RandomHistories) {
  std::mt19937_64 random(11);
  std::set<std::pair<uint64_t, std::shared_ptr<LiveSteps::Pin>>> pins;  // at this commit
  std::multiset<uint64_t> others;
  std::map<uint64_t, std::shared_ptr<const LiveStep>> prepared;
  std::set<uint64_t> gone;
  uint64_t published = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint64_t step = random() % 12;
    std::vector<uint64_t> segments{1 + random() % 6};
    if (random() % 3 == 0 && segments[0] < 6) segments.push_back(segments[0] + 1);
    const auto live = live_.Find(step);
    switch (random() % 9) {
      case 0:
      case 1:
      case 2:
        Save(step, segments);
        break;
      case 3:
        if (live != nullptr) Delete(step);
        break;
      case 4: {
        LiveSteps::Change change;
        change.prepared = Step(step, tip_ + 1, segments);
        prepared[tip_ + 1] = change.prepared;
        Commit(std::move(change));
        break;
      }
      case 5:
        if (!prepared.empty()) {
          LiveSteps::Change change;
          change.decided = prepared.begin()->second;
          if (random() % 3 != 0) {
            change.added = change.decided;
            if (auto old = live_.Find(change.added->record.step)) change.killed.push_back(old);
          }
          prepared.erase(prepared.begin());
          Commit(std::move(change));
        }
        break;
      case 6:
        if (live != nullptr) pins.emplace(tip_, live_.FindAndPin(step).pin);
        if (pins.size() > 5) pins.erase(std::next(pins.begin(), random() % 6));
        break;
      case 7:
        others.insert(published + random() % (tip_ - published + 1));
        if (others.size() > 5) others.erase(std::next(others.begin(), random() % 6));
        break;
      default: {
        published += random() % (tip_ - published + 1);
        ReaderPins read;
        for (const uint64_t pin : std::set<uint64_t>(others.begin(), others.end())) {
          read.commits.push_back(pin);
        }
        const auto use = live_.UseOf(kSegments, read, published);
        std::map<uint64_t, std::pair<std::set<uint64_t>, std::set<uint64_t>>> wanted;
        std::set<uint64_t> blocked;
        uint64_t stored = 0;
        uint64_t pinned_bytes = 0;
        for (const auto& [commit, life] : lives_) {
          const auto is_in = [&, born = commit, &life = life](uint64_t pin) {
            return born <= pin && pin < life.killer;
          };
          const bool is_read = std::any_of(others.begin(), others.end(), is_in) ||
                               std::any_of(pins.begin(), pins.end(),
                                           [&](const auto& pin) { return is_in(pin.first); });
          for (const auto& extent : life.step->record.extents) {
            if (life.killer == kNever) {
              wanted[extent.segment].first.insert(commit);
              stored += extent.stored_bytes;
            } else if (life.killer > published) {
              blocked.insert(extent.segment);
            } else if (is_read) {
              wanted[extent.segment].second.insert(commit);
              pinned_bytes += extent.stored_bytes;
            }
          }
          if (life.killer <= published && !is_read) gone.insert(commit);
        }
        for (const uint64_t id : kSegments) {
          std::set<uint64_t> commits;
          const auto it = use.segments.find(id);
          const LiveSteps::SegmentUse used =
              it == use.segments.end() ? LiveSteps::SegmentUse{} : it->second;
          for (const auto& each : used.live) commits.insert(each->record.commit);
          ASSERT_EQ(commits, wanted[id].first) << "round " << round;
          const auto dead = PinnedIn(use, id);
          ASSERT_EQ(std::set<uint64_t>(dead.begin(), dead.end()), wanted[id].second)
              << "round " << round;
          ASSERT_EQ(used.blocked, blocked.contains(id)) << "round " << round;
        }
        ASSERT_EQ(use.pinned_bytes, pinned_bytes);
        ASSERT_EQ(live_.StoredBytesFrom(0), stored);
        for (const uint64_t commit : use.forgotten) ASSERT_TRUE(gone.contains(commit));
        for (const uint64_t commit : gone) lives_.erase(commit);
        gone.clear();
      }
    }
  }
}

TEST(AgeTimeTest, TimesMayBeAnything) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto age = [](int64_t step_ns, int64_t newest_ns) {
    format::StepRecord step;
    format::StepRecord newest;
    step.time_ns = step_ns;
    newest.time_ns = newest_ns;
    return AgeTimeOf(step, newest);
  };
  EXPECT_EQ(age(1'000, 3'000), -2'000);
  EXPECT_EQ(age(3'000, 1'000), 0);
  for (const int64_t time : {kLeast, int64_t{-1}, int64_t{0}, kMost}) {
    for (const int64_t newest : {kLeast, int64_t{-1}, int64_t{0}, kMost}) {
      const int64_t ns = age(time, newest);
      EXPECT_LE(ns, 0);
      EXPECT_GE(ns, kLeast / 2) << "a session's own ages are added to it";
    }
  }
  EXPECT_EQ(age(kLeast, kMost), age(0, kMost));
}

}  // namespace
}  // namespace stepwell::db
