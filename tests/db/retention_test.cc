// SPDX-License-Identifier: Apache-2.0
// The rules of retention against a plain reading of what they say.
#include "db/commit/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>

#include "db/layout.h"
#include "io/bytes.h"
#include "tests/db/support/store_support.h"

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
                                  random() % 6 == 0, history.metrics.back(), false,
                                  random() % 2 == 0});
    history.candidates.back().tainted = random() % 4 == 0;
    history.candidates.back().verified = random() % 3 == 0;
  }
  history.added = random() % count;
  return history;
}

KeepRule MakeRule(std::mt19937_64& random) {
  KeepRule rule;
  rule.kind = static_cast<Kind>(random() % 7);
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

// A metric that no step has.
bool IsBlind(const KeepRule& rule, const History& history) {
  return rule.kind == Kind::kBest &&
         std::none_of(history.metrics.begin(), history.metrics.end(),
                      [&](const auto& text) { return Value(text, rule.metric).has_value(); });
}

// Decides as the documentation does whether `rule` keeps candidate `i`.
bool Keeps(const KeepRule& rule, const History& history, size_t i) {
  const auto& all = history.candidates;
  const auto better = [&](size_t other) {  // ranks before i
    const auto mine = Value(history.metrics[i], rule.metric);
    const auto theirs = Value(history.metrics[other], rule.metric);
    if (!theirs || all[other].tainted) return false;
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
      if (!Value(history.metrics[i], rule.metric) || all[i].tainted) return false;
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
    case Kind::kLastVerified: {
      bool newest = all[i].verified && !all[i].tainted;
      for (size_t k = i + 1; k < all.size(); ++k) {
        newest = newest && (!all[k].verified || all[k].tainted);
      }
      return newest;
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
    // No step but the one being committed, or a tainted one, is above a step that stays for that.
    const auto& all = history.candidates;
    for (size_t i = 0; i < history.candidates.size(); ++i) {
      bool keep = rules.empty() || i == history.added || history.candidates[i].pinned;
      bool only_tainted = !all[i].tainted;
      bool any_tainted = all[history.added].tainted;
      for (size_t k = i + 1; k < all.size(); ++k) {
        only_tainted = only_tainted && (all[k].tainted || k == history.added);
        any_tainted = any_tainted || all[k].tainted;
      }
      keep = keep || (only_tainted && any_tainted);
      const bool others = std::any_of(rules.begin(), rules.end(), [&](const KeepRule& rule) {
        return rule.kind != Kind::kPinned && !IsBlind(rule, history);
      });
      for (const KeepRule& rule : rules) {
        const bool blind = IsBlind(rule, history);
        keep = keep || (blind ? !others || history.candidates[i].is_old : Keeps(rule, history, i));
      }
      const bool dropped = std::find(drop.begin(), drop.end(), i) != drop.end();
      ASSERT_EQ(dropped, !keep) << "round " << round << ", candidate " << i;
    }
  }
}

// As long as tainted steps are the newest, the last one before them stays.
TEST(RetentionTest, AnUntaintedStepStays) {
  const std::vector<KeepRule> one = {KeepRule::Latest(1)};
  std::vector<KeepCandidate> steps(4);
  for (uint64_t i = 0; i < steps.size(); ++i) steps[i].step = i;
  const auto dropped = [&](size_t added) { return StepsToDrop(one, steps, added); };
  EXPECT_THAT(dropped(3), ElementsAre(0, 1, 2));
  steps[2].tainted = true;
  EXPECT_THAT(dropped(3), ElementsAre(0, 2));
  steps[1].tainted = true;
  EXPECT_THAT(dropped(3), ElementsAre(1, 2));
  EXPECT_THAT(dropped(0), ElementsAre(1, 2, 3));  // a lower one is saved; 3 is the newest, and good
  steps[0].tainted = true;
  EXPECT_THAT(dropped(3), ElementsAre(0, 1, 2)) << "there is nothing good to keep";
  steps[0].tainted = steps[1].tainted = steps[2].tainted = false;
  steps[3].tainted = true;  // a copy of a tainted step
  EXPECT_THAT(dropped(3), ElementsAre(0, 1));
  EXPECT_THAT(StepsToDrop({}, steps, 3), ElementsAre());
}

// Commit after commit, with what comes between, the same steps go as when all are looked at.
TEST(RetentionTest, StateOfManyCommitsIsThatOfEachAlone) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 600; ++round) {
    std::vector<KeepRule> rules;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      rules.push_back(MakeRule(random));
      if (round % 2 == 0) rules.back().kind = random() % 2 == 0 ? Kind::kLatest : Kind::kEvery;
    }
    RetentionState state(rules);
    std::map<uint64_t, KeepCandidate> live;
    const std::string metrics[] = {"", "{\"loss\": 1}", "{\"loss\": 2, \"acc\": 3}",
                                   "{\"acc\": 4}"};
    uint64_t newest = 0;
    for (int commit = 0; commit < 60; ++commit) {
      const bool tainted = random() % 16 == 0;
      if (tainted) state.Reset();
      if (!state.known()) {
        for (const auto& [step, candidate] : live) state.Add(candidate);
        state.SetKnown();
      }
      if (!live.empty() && random() % 8 == 0) {  // a delete, a pin, a verification
        const auto it = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
        const uint64_t change = random() % 4;
        if (change == 0) live.erase(it);
        if (change == 1) it->second.pinned = !it->second.pinned;
        if (change == 2) it->second.tainted = !it->second.tainted;
        if (change == 3) it->second.verified = !it->second.verified;
        state.Reset();
        continue;
      }
      newest += 1 + random() % 3;
      KeepCandidate added{random() % 5 == 0 ? random() % newest : newest,
                          10 * commit,
                          1 + random() % 90,
                          false,
                          metrics[random() % 4],
                          random() % 9 == 0,
                          random() % 4 == 0};
      added.tainted = tainted;
      const bool fails = random() % 6 == 0;
      auto before = live;
      before.insert_or_assign(added.step, added);
      std::vector<KeepCandidate> candidates;
      size_t at = 0;
      for (const auto& [step, candidate] : before) {
        if (step == added.step) at = candidates.size();
        candidates.push_back(candidate);
      }
      std::vector<uint64_t> wanted;
      for (const size_t i : StepsToDrop(rules, candidates, at))
        wanted.push_back(candidates[i].step);
      ASSERT_EQ(state.Drop(added), wanted) << "round " << round << ", commit " << commit;
      if (fails) continue;
      for (const uint64_t step : wanted) {
        live.erase(step);
        state.Remove(step);
      }
      live.insert_or_assign(added.step, added);
      state.Add(added);
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

// Steps of 100 bytes of which 90 are those of the step before: the oldest that is kept counts as a
// whole, and the others as what they own.
TEST(RetentionTest, ABudgetCountsTheBytesOfSeveralStepsOnce) {
  KeepRule budget;
  budget.kind = Kind::kBytes;
  std::vector<KeepCandidate> steps;
  for (uint64_t step = 1; step <= 6; ++step) {
    KeepCandidate& each = steps.emplace_back();
    each.step = step;
    each.stored_bytes = 100;
    each.referenced_bytes = step == 1 ? 0 : 90;
  }
  const auto dropped = [&](uint64_t bytes) {
    budget.count = bytes;
    return StepsToDrop({&budget, 1}, steps, steps.size() - 1);
  };
  EXPECT_THAT(dropped(150), ElementsAre());
  EXPECT_THAT(dropped(149), ElementsAre(0));
  EXPECT_THAT(dropped(120), ElementsAre(0, 1, 2));
  EXPECT_THAT(dropped(109), ElementsAre(0, 1, 2, 3, 4));
  steps[3].referenced_bytes = 0;  // written as a whole
  EXPECT_THAT(dropped(150), ElementsAre(0, 1, 2));
}

// A step with unreadable metrics may be the best. It stays, and takes no other's place.
TEST(RetentionTest, UnknownMetricsAreKept) {
  KeepRule best;
  best.kind = Kind::kBest;
  best.count = 2;
  best.metric = "loss";
  const std::vector<KeepCandidate> steps = {
      {1, 0, 1, false, "", true},        {2, 0, 1, false, "{\"loss\": 3}"},
      {3, 0, 1, false, "{\"loss\": 1}"}, {4, 0, 1, false, "", true},
      {5, 0, 1, false, "{\"loss\": 2}"}, {6, 0, 1, false, "{\"loss\": 9}"}};
  EXPECT_THAT(StepsToDrop({&best, 1}, steps, 5), ElementsAre(1));
}

// A tainted step is not resumed from, so it is none of the best, and takes no other's place.
TEST(RetentionTest, TaintedStepsAreNotAmongTheBest) {
  const std::vector<KeepRule> best = {KeepRule::Best(1, "loss")};
  std::vector<KeepCandidate> steps = {{1, 0, 1, false, "{\"loss\": 1}"},
                                      {2, 0, 1, false, "{\"loss\": 3}"},
                                      {3, 0, 1, false, "{\"loss\": 2}"},
                                      {4, 0, 1, false, "", true},
                                      {5, 0, 1, false, ""}};
  EXPECT_THAT(StepsToDrop(best, steps, 4), ElementsAre(1, 2));
  steps[0].tainted = true;
  EXPECT_THAT(StepsToDrop(best, steps, 4), ElementsAre(0, 1));
  steps[3].tainted = true;  // it might be the best, but cannot be
  EXPECT_THAT(StepsToDrop(best, steps, 4), ElementsAre(0, 1, 3));
  steps[1].tainted = steps[2].tainted = true;  // the metric is known, and no good step has it
  EXPECT_THAT(StepsToDrop(best, steps, 4), ElementsAre(0, 1, 2, 3));
}

// The step with the best loss has a damaged frame.
TEST(RetentionTest, TheBestStepIsNotDroppedBecauseItsMetricsAreDamaged) {
  const TempDir dir;
  StoreOptions options;
  options.codec = CodecPolicy::kRaw;
  options.keep = {KeepRule::Best(1, "loss")};
  std::string log;
  options.log = [&log](LogLevel, std::string_view text) { log += StrCat(text, "\n"); };
  const auto save = [](Store* store, uint64_t step) {
    std::vector<std::vector<float>> scratch;
    SaveRequest request = MakeRequest(step, step, SmallState(), &scratch);
    request.metrics_json = StrCat("{\"loss\": ", step, ", \"name\": \"needle-", step, "\"}");
    const auto handle = store->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  };
  {
    auto store = Store::Open(dir / "run", options);
    ASSERT_OK(store.status());
    save(store->get(), 1);
    ASSERT_OK((*store)->Close());
    store = Store::Open(dir / "run", options);  // its catalog has the step
    ASSERT_OK(store.status());
    ASSERT_OK((*store)->Close());
  }
  const std::string segment = dir / "run/segments/0000000001.seg";
  std::fstream file(segment, std::ios::binary | std::ios::in | std::ios::out);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t at = bytes.find("needle-1");
  ASSERT_NE(at, std::string::npos);
  for (size_t i = at; i != std::string::npos; i = bytes.find("needle-1", i + 1)) {
    file.seekp(static_cast<std::streamoff>(i));  // in every copy of the frame
    file.put('N');
  }
  file.close();
  std::filesystem::remove_all(IndexPath(dir / "run"));  // which has them, too
  auto store = Store::Open(dir / "run", options);
  ASSERT_OK(store.status());
  EXPECT_THAT(log, HasSubstr("the metrics of step 1 cannot be read"));
  for (uint64_t step = 5; step > 2; --step) save(store->get(), step);
  EXPECT_THAT(StepNumbers(store->get()), ElementsAre(1, 3));
  const auto read = (*store)->Read(1);
  EXPECT_EQ(read.status().code(), StatusCode::kDataLoss);
  for (const std::string& part : {std::string("step 1"), segment, std::string("offset")}) {
    EXPECT_THAT(read.status().message(), HasSubstr(part));
  }
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

TEST(RetentionTest, SavesThatTheRulesDoNotKeepAreNamed) {
  const std::vector<KeepRule> best = {
      {.kind = KeepRule::Kind::kBest, .count = 2, .metric = "loss"}};
  EXPECT_EQ(NotKeptWarning(best, 1, 0, R"({"loss": 1.5})"), "");
  EXPECT_THAT(NotKeptWarning(best, 1, 0, R"({"los": 1.5})"), HasSubstr("\"loss\""));
  EXPECT_THAT(NotKeptWarning(best, 1, 0, ""), HasSubstr("step 1"));
  const std::vector<KeepRule> latest = {{.count = 3}};
  EXPECT_EQ(NotKeptWarning(latest, 7, 6, ""), "");
  EXPECT_EQ(NotKeptWarning(latest, 7, std::nullopt, ""), "");
  EXPECT_EQ(NotKeptWarning(latest, 7, 7, ""), "");  // replaced
  EXPECT_THAT(NotKeptWarning(latest, 5, 7, ""), HasSubstr("below step 7"));
  const std::vector<KeepRule> every = {{.kind = KeepRule::Kind::kEvery, .count = 3}};
  EXPECT_EQ(NotKeptWarning(every, 5, 7, ""), "");
}

}  // namespace
}  // namespace stepwell::db
