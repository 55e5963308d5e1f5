// SPDX-License-Identifier: Apache-2.0
// A store reports its rules before they delete anything, in its own process and in others.
#include "db/commit/retention_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "db/layout.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RetentionReportTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open(std::vector<KeepRule> keep, bool read_only = false) {
    StoreOptions options;
    options.keep = std::move(keep);
    options.read_only = read_only;
    options.log = [this](LogLevel level, std::string_view text) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(text);
    };
    warnings_.clear();
    auto store = Store::Open(dir_ / "run", options);
    EXPECT_OK(store.status());
    return store.ok() ? std::move(*store) : nullptr;
  }

  void Save(Store* store, uint64_t step, const std::string& metrics = "") {
    std::vector<std::vector<float>> scratch;
    SaveRequest request = MakeRequest(step, step, SmallState(), &scratch);
    request.metrics_json = metrics;
    const auto handle = store->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }

  void SaveTen() {
    auto store = Open({});
    for (uint64_t step = 0; step < 10; ++step) {
      Save(store.get(), step, StrCat("{\"loss\": ", 10 - step, "}"));
    }
    ASSERT_OK(store->Close());
  }

  static std::vector<uint64_t> DroppedNext(const RetentionReport& report) {
    std::vector<uint64_t> steps;
    for (const auto& step : report.steps) {
      if (step.goes_next) steps.push_back(step.step);
    }
    return steps;
  }

  const TempDir dir_;
  std::vector<std::string> warnings_;
};

TEST_F(RetentionReportTest, ATypoInAMetricDeletesNothingThatWasThere) {
  SaveTen();
  for (const std::vector<KeepRule>& keep :
       {std::vector<KeepRule>{KeepRule::Best(1, "losss")},
        {KeepRule::Best(1, "losss"), KeepRule::Pinned()},
        {KeepRule::Latest(1), KeepRule::Best(1, "losss")},
        {KeepRule::Every(100), KeepRule::Best(1, "losss"), KeepRule::Best(2, "acc")}}) {
    auto store = Open(keep);
    ASSERT_THAT(warnings_, SizeIs(keep.size() == 3 ? 2 : 1));
    EXPECT_THAT(warnings_[0], HasSubstr("no step has the metric \"losss\" (they have \"loss\")"));
    Save(store.get(), 50, "{\"loss\": 7}");
    EXPECT_THAT(StepNumbers(store.get()), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50));
    ASSERT_OK(store->Delete(std::vector<uint64_t>{50}));
    ASSERT_OK(store->Close());
  }
}

// Other rules bound the steps that a session saves before its first metric.
TEST_F(RetentionReportTest, BesideAMetricThatIsStillToComeOtherRulesGoOn) {
  auto store = Open({KeepRule::Latest(2), KeepRule::Best(1, "eval")});
  for (uint64_t step = 0; step < 6; ++step) Save(store.get(), step, "{\"loss\": 1}");
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(4, 5));
  Save(store.get(), 6, "{\"eval\": 3}");
  for (uint64_t step = 7; step < 10; ++step) Save(store.get(), step);
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(6, 8, 9));
}

TEST_F(RetentionReportTest, OpenNamesWhatATighterRuleDeletesAndOnlyThat) {
  SaveTen();
  {
    auto store = Open({KeepRule::Latest(10)});
    EXPECT_THAT(warnings_, IsEmpty());  // the next save takes one place, as every save
    const auto report = store->Retention();
    ASSERT_OK(report.status());
    EXPECT_THAT(DroppedNext(*report), ElementsAre(0));
    EXPECT_THAT(report->steps[9].kept_by, ElementsAre(0));
    ASSERT_OK(store->Close());
  }
  auto store = Open({KeepRule::Latest(2), KeepRule::Every(4)});
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("the next save deletes 6 of 10 steps (1, 2, 3, 5, 6, 7)"));
  EXPECT_THAT(warnings_[0], HasSubstr("the latest 2 steps, multiples of 4"));
  const auto report = store->Retention();
  ASSERT_OK(report.status());
  EXPECT_THAT(DroppedNext(*report), ElementsAre(1, 2, 3, 5, 6, 7));
  EXPECT_THAT(report->steps[9].kept_by, ElementsAre(0));
  EXPECT_THAT(report->steps[8].kept_by, ElementsAre(1));
  ASSERT_OK(store->SetPinned(std::vector<uint64_t>{3}, true));
  Save(store.get(), 11);
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(0, 3, 4, 8, 9, 11));
}

TEST_F(RetentionReportTest, OtherProcessesSeeTheRulesOfTheLastThatSaved) {
  SaveTen();
  const auto seen = [this](std::vector<KeepRule> keep) {
    const auto reader = Open(std::move(keep), /*read_only=*/true);
    const auto report = reader->Retention();
    EXPECT_OK(report.status());
    return *report;
  };
  EXPECT_THAT(seen({}).rules, IsEmpty());
  EXPECT_THAT(DroppedNext(seen({KeepRule::Latest(9)})), ElementsAre(0, 1));  // what it would do
  EXPECT_THAT(DroppedNext(seen({KeepRule::Best(2, "loss")})), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  const std::vector<KeepRule> all = {
      KeepRule::Latest(3),         KeepRule::Best(1, "l\n\"\xc3\xa9", true),
      KeepRule::Every(5),          KeepRule::Within(std::chrono::hours(1)),
      KeepRule::Bytes(1ULL << 40), KeepRule::Pinned(),
      KeepRule::LastVerified()};
  auto store = Open(all);
  EXPECT_THAT(seen({}).rules, IsEmpty());  // nothing was saved by them yet
  Save(store.get(), 10);
  const RetentionReport report = seen({});
  ASSERT_THAT(report.rules, SizeIs(all.size()));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(report.rules[i].kind, all[i].kind);
    EXPECT_EQ(report.rules[i].count, all[i].count);
    EXPECT_EQ(report.rules[i].duration, all[i].duration);
    EXPECT_EQ(report.rules[i].metric, all[i].metric);
    EXPECT_EQ(report.rules[i].larger_is_better, all[i].larger_is_better);
  }
  EXPECT_THAT(report.rule_texts,
              ElementsAre("the latest 3 steps", "the step with the highest \"l\n\"\xc3\xa9\"",
                          "multiples of 5", "steps of the last 3600 s",
                          "the latest steps within 1099511627776 bytes", "pinned steps",
                          "the newest verified step"));
  ASSERT_OK(store->Close());
  store = Open({});
  Save(store.get(), 11);
  EXPECT_THAT(seen({}).rules, IsEmpty());
}

TEST_F(RetentionReportTest, AFileOfRulesThatMakesNoSenseIsNamed) {
  SaveTen();
  for (const char* text :
       {"", "[]", "{\"since\": 1}", "{\"since\": -1, \"rules\": []}",
        "{\"since\": 1, \"rules\": [{\"kind\": \"latest\", \"count\": 0, \"duration_ns\": 0, "
        "\"metric\": \"\", \"larger_is_better\": false}]}",
        "{\"since\": 1, \"rules\": [{\"kind\": \"newer\"}]}"}) {
    std::ofstream(RetentionFilePath(dir_ / "run")) << text;
    const auto reader = Open({}, /*read_only=*/true);
    EXPECT_THAT(reader->Retention().status().message(), HasSubstr("RETENTION")) << text;
  }
}

}  // namespace
}  // namespace stepwell::db
