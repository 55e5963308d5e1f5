// SPDX-License-Identifier: Apache-2.0
// The rules of retention against a plain reading of what they say.
#include "db/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "io/bytes.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = KeepRule::Kind;

struct History {
  std::vector<KeepCandidate> candidates;
  std::vector<std::string> metrics;
  size_t added = 0;
};

History MakeHistory(std::mt19937_64& random) {
  History history;
  std::set<uint64_t> steps;
  const size_t count = 1 + random() % 12;
  while (steps.size() < count) steps.insert(random() % 40);
  history.metrics.reserve(count);
  for (const uint64_t step : steps) {
    const char* texts[] = {"", "{\"loss\": %}", "{\"acc\": %, \"loss\": \"n/a\"}", "{\"loss\": %}"};
    std::string text = texts[random() % 4];
    if (const size_t at = text.find('%'); at != std::string::npos) {
      text.replace(at, 1, std::to_string(random() % 5));
    }
    history.metrics.push_back(text);
    history.candidates.push_back({step, static_cast<int64_t>(random() % 1000), 1 + random() % 100,
                                  random() % 6 == 0, history.metrics.back()});
  }
  history.added = random() % count;
  return history;
}

KeepRule MakeRule(std::mt19937_64& random) {
  KeepRule rule;
  rule.kind = static_cast<Kind>(random() % 6);
  rule.count = 1 + random() % (rule.kind == Kind::kBytes ? 400 : 6);
  rule.duration = std::chrono::nanoseconds(random() % 800);
  rule.metric = random() % 2 == 0 ? "loss" : "acc";
  rule.larger_is_better = random() % 2 == 0;
  return rule;
}

// The loss or accuracy that MakeHistory wrote; none where there is no number.
std::optional<int> Value(const std::string& text, const std::string& metric) {
  const size_t at = text.find("\"" + metric + "\": ");
  if (at == std::string::npos) return std::nullopt;
  const char digit = text[at + metric.size() + 4];
  return digit == '"' ? std::nullopt : std::optional(digit - '0');
}

// Whether `rule` keeps candidate `i`, said as its documentation says it.
bool Keeps(const KeepRule& rule, const History& history, size_t i) {
  const auto& all = history.candidates;
  const auto better = [&](size_t other) {  // ranks before i
    const auto mine = Value(history.metrics[i], rule.metric);
    const auto theirs = Value(history.metrics[other], rule.metric);
    if (!theirs) return false;
    if (*theirs == *mine) return other > i;
    return rule.larger_is_better ? *theirs > *mine : *theirs < *mine;
  };
  switch (rule.kind) {
    case Kind::kLatest: {
      uint64_t before = 1;  // the one being committed
      for (size_t k = i + 1; k < all.size(); ++k) before += k != history.added ? 1 : 0;
      return before < rule.count;
    }
    case Kind::kEvery:
      return all[i].step % rule.count == 0;
    case Kind::kBest: {
      if (!Value(history.metrics[i], rule.metric)) return false;
      uint64_t before = 0;
      for (size_t k = 0; k < all.size(); ++k) before += k != i && better(k) ? 1 : 0;
      return before < rule.count;
    }
    case Kind::kDuration:
      return all[history.added].time_ns - all[i].time_ns <= rule.duration.count();
    case Kind::kBytes: {
      uint64_t used = all[history.added].stored_bytes;
      for (size_t k = i; k < all.size(); ++k) {
        used += k != history.added ? all[k].stored_bytes : 0;
      }
      return used <= rule.count;
    }
    case Kind::kPinned:
      return false;
  }
  return false;
}

TEST(RetentionTest, RandomHistoriesAgainstTheWordsOfTheRules) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    const History history = MakeHistory(random);
    std::vector<KeepRule> rules;
    for (uint64_t n = random() % 4; n > 0; --n) rules.push_back(MakeRule(random));
    const auto drop = StepsToDrop(rules, history.candidates, history.added);
    for (size_t i = 0; i < history.candidates.size(); ++i) {
      bool keep = rules.empty() || i == history.added || history.candidates[i].pinned;
      for (const KeepRule& rule : rules) keep = keep || Keeps(rule, history, i);
      const bool dropped = std::find(drop.begin(), drop.end(), i) != drop.end();
      ASSERT_EQ(dropped, !keep) << "round " << round << ", candidate " << i;
    }
  }
}

TEST(RetentionTest, BrokenMetricsAreNoMetrics) {
  KeepRule best;
  best.kind = Kind::kBest;
  best.count = 1;
  best.metric = "loss";
  const std::vector<KeepCandidate> steps = {{1, 0, 1, false, "{\"loss\": 1e999}"},
                                            {2, 0, 1, false, "{\"loss\": null}"},
                                            {3, 0, 1, false, "not json"},
                                            {4, 0, 1, false, "[1]"},
                                            {5, 0, 1, false, "{\"loss\": -3.5}"},
                                            {6, 0, 1, false, "{\"loss\": {\"loss\": -9}}"},
                                            {7, 0, 1, false, ""}};
  EXPECT_THAT(StepsToDrop({&best, 1}, steps, 6), ElementsAre(0, 1, 2, 3, 5));
}

TEST(RetentionTest, RulesThatMakeNoSenseAreRefused) {
  for (const Kind kind : {Kind::kLatest, Kind::kEvery, Kind::kBest, Kind::kBytes}) {
    KeepRule rule;
    rule.kind = kind;
    rule.metric = "loss";
    EXPECT_EQ(CheckRules({&rule, 1}).code(), StatusCode::kInvalidArgument);
    rule.count = 1;
    EXPECT_TRUE(CheckRules({&rule, 1}).ok());
  }
  KeepRule best;
  best.kind = Kind::kBest;
  best.count = 1;
  EXPECT_THAT(CheckRules({&best, 1}).message(), HasSubstr("metric"));
  KeepRule duration;
  duration.kind = Kind::kDuration;
  duration.duration = std::chrono::nanoseconds(-1);
  EXPECT_THAT(CheckRules({&duration, 1}).message(), HasSubstr("negative"));
}

}  // namespace
}  // namespace stepwell::db
