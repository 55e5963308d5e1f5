// SPDX-License-Identifier: Apache-2.0
// Statistics of arrays: taken while they are saved, stored with the step, and what a session says
// of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "db/commit/content_checks.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Scalars, empty arrays, one and many chunks, edges with padding; on the caller's thread and on a
// worker; raw and compressed.
const std::vector<LeafSpec> kShapes = {{"scalar", {}, false, false},
                                       {"one", {1}, true, false},
                                       {"empty", {0, 3}, false, false},
                                       {"small", {7}, false, false},
                                       {"held", {300, 41}, true, false},
                                       {"staged", {300, 41}, false, false},
                                       {"chunks", {1000, 501}, true, false, 1, 0, 300'000},
                                       {"padded", {1009, 503}, false, false, 1, 0, 70'000},
                                       {"compressed", {40'000}, true, true},
                                       {"frozen", {5000}, true, false, 1000}};

class StatisticsTest : public ReclaimTest {
 protected:
  StoreOptions Options() {
    StoreOptions options = ReclaimTest::Options();
    options.statistics = true;
    return options;
  }
  static void SaveAll(Store* store, uint64_t step, uint64_t seed,
                      const std::vector<LeafSpec>& specs = kShapes,
                      IfExists if_exists = IfExists::kError) {
    const auto handle = SaveSeeded(store, step, seed, specs, if_exists);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  static format::LeafRecord LeafOf(Store* store, uint64_t step, const std::string& name,
                                   const std::string& item = "state") {
    const auto reader = store->Read(step);
    EXPECT_OK(reader.status());
    const auto leaf = (*reader)->Find(KeyOf(item, name));
    EXPECT_OK(leaf.status());
    return **leaf;
  }
  static void ExpectStatistics(Store* store, uint64_t step, uint64_t seed,
                               const std::vector<LeafSpec>& specs = kShapes) {
    for (const LeafSpec& spec : specs) {
      EXPECT_OK(CheckStatistics(LeafOf(store, step, spec.name), LeafData(spec, seed)));
    }
  }
  static format::LeafStatistics Of(Store* store, uint64_t step, const std::string& name) {
    const auto leaf = LeafOf(store, step, name);
    EXPECT_TRUE(leaf.statistics.has_value()) << name;
    return leaf.statistics.value_or(format::LeafStatistics());
  }

  // An item with arrays of float32.
  using Arrays = std::vector<std::pair<std::string, std::vector<float>>>;
  static SaveRequest RequestOf(uint64_t step, const Arrays& arrays,
                               const std::string& item_name = "state") {
    SaveRequest request;
    request.step = step;
    request.items.push_back({.name = item_name, .leaves = {}});
    for (const auto& [name, data] : arrays) {
      LeafInput leaf;
      leaf.record.key = KeyOf(item_name, name);
      leaf.record.dtype = format::DType::kFloat32;
      leaf.record.shape = {data.size()};
      auto held = std::make_shared<std::vector<float>>(data);
      leaf.data = reinterpret_cast<const std::byte*>(held->data());
      leaf.hold = std::move(held);
      request.items.back().leaves.push_back(std::move(leaf));
    }
    return request;
  }
  static Status SaveArrays(Store* store, SaveRequest request) {
    STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle, store->Save(std::move(request)));
    return handle.Wait();
  }
  std::string TakeLog() {
    const std::lock_guard lock(log_mutex_);
    return std::exchange(log_, {});
  }
};

TEST_F(StatisticsTest, AreThoseOfTheElements) {
  for (const CodecPolicy codec : {CodecPolicy::kRaw, CodecPolicy::kAuto, CodecPolicy::kBlosc}) {
    for (const bool delta : {false, true}) {
      SCOPED_TRACE(StrCat(static_cast<int>(codec), delta));
      fs::remove_all(path_);
      StoreOptions options = Options();
      options.codec = codec;
      options.delta = delta;
      auto store = Open(options);
      for (const uint64_t step : {1U, 2U, 3U}) SaveAll(store.get(), step, step);
      for (const uint64_t step : {1U, 2U, 3U}) ExpectStatistics(store.get(), step, step);
      ASSERT_OK(store->Close());
      store = Open(ReclaimTest::Options());
      for (const uint64_t step : {1U, 2U, 3U}) ExpectStatistics(store.get(), step, step);
      EXPECT_FALSE(LeafOf(store.get(), 1, "text").statistics.has_value()) << "a value";
    }
  }
}

TEST_F(StatisticsTest, AreNotTakenUnlessAskedFor) {
  const auto store = Open(ReclaimTest::Options());
  SaveAll(store.get(), 1, 1);
  for (const LeafSpec& spec : kShapes) {
    EXPECT_FALSE(LeafOf(store.get(), 1, spec.name).statistics.has_value());
  }
}

TEST_F(StatisticsTest, OfAnArrayInShards) {
  std::vector<float> data(60 * 70);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 997) - 400;
  const auto store = Open(Options());
  SaveRequest request = RequestOf(1, {});
  LeafInput leaf;
  leaf.record.key = KeyOf("state", "w");
  leaf.record.dtype = format::DType::kFloat32;
  leaf.record.shape = {60, 70};
  leaf.chunk_bytes_max = 4096;
  for (const uint64_t column : {0U, 33U}) {  // columns of a row-major array
    leaf.shards.push_back({.origin = {0, column},
                           .shape = {60, column == 0 ? 33U : 37U},
                           .data = reinterpret_cast<const std::byte*>(&data[column]),
                           .strides_bytes = {70 * 4, 4}});
  }
  request.items[0].leaves.push_back(std::move(leaf));
  ASSERT_OK(SaveArrays(store.get(), std::move(request)));
  EXPECT_OK(CheckStatistics(LeafOf(store.get(), 1, "w"), data));
}

TEST_F(StatisticsTest, SurviveMovesAndRewrites) {
  auto store = Open(Options());
  for (uint64_t step = 0; step < 24; ++step) SaveAll(store.get(), step, step, kState);
  // Segments with a second name are left, by moves.
  fs::create_directory(dir_ / "linked");
  for (const auto& entry : fs::directory_iterator(path_ + "/segments")) {
    if (entry.path().extension() != ".seg") continue;
    fs::create_hard_link(entry.path(), fs::path(dir_ / "linked") / entry.path().filename());
  }
  std::vector<uint64_t> dead;
  for (uint64_t step = 0; step < 24; ++step) {
    if (step % 5 != 1) dead.push_back(step);
  }
  ASSERT_OK(store->Delete(dead));
  const auto report = store->Reclaim();
  ASSERT_OK(report.status());
  EXPECT_GT(report->bytes_moved, uint64_t{1} << 20);
  for (const uint64_t step : {1U, 6U, 11U, 16U, 21U})
    ExpectStatistics(store.get(), step, step, kState);

  const float nan = std::numeric_limits<float>::quiet_NaN();
  SaveRequest request = RequestOf(100, {{"w", {1, nan, 3}}});
  request.items.push_back(std::move(RequestOf(100, {{"w", {nan, nan}}}, "other").items[0]));
  ASSERT_OK(SaveArrays(store.get(), std::move(request)));
  const std::string other = "other";
  ASSERT_OK(store->DeleteItems(100, {&other, 1}));
  ASSERT_OK(store->Close());
  store = Open(Options());
  EXPECT_EQ(Of(store.get(), 100, "w").nonfinite, 1U);
  const auto reader = store->Read(100);
  ASSERT_OK(reader.status());
  ASSERT_EQ((*reader)->step().items.size(), 1U);
  EXPECT_EQ((*reader)->step().items[0].nonfinite, 1U);
}

// ---- what changed ----------------------------------------------------------------------------

TEST_F(StatisticsTest, ChangedElementsAreCountedByChunks) {
  const auto store = Open(Options());
  const std::vector<LeafSpec> specs = {// Two thirds of the array, in whole chunks, never change.
                                       {"w", {300'000}, true, false, 1000, 800'000, 100'000},
                                       {"frozen", {500}, false, false, 1000}};
  SaveAll(store.get(), 1, 1, specs);
  EXPECT_EQ(Of(store.get(), 1, "w").changed_count, format::ChangedCount::kUnknown);
  SaveAll(store.get(), 2, 2, specs);
  EXPECT_EQ(Of(store.get(), 2, "w").changed_count, format::ChangedCount::kAtMost);
  EXPECT_EQ(Of(store.get(), 2, "w").changed, 100'000U);
  SaveAll(store.get(), 3, 2, specs);
  EXPECT_EQ(Of(store.get(), 3, "w").changed_count, format::ChangedCount::kExact);
  EXPECT_EQ(Of(store.get(), 3, "w").changed, 0U);
  EXPECT_EQ(Of(store.get(), 3, "frozen").changed, 0U);
}

TEST_F(StatisticsTest, ChangedElementsAreExactBesideDifferences) {
  StoreOptions options = Options();
  options.delta = true;
  auto store = Open(options);
  const LeafSpec spec{"w", {200'000}, true, false, 1, 0, 160'000, 50};
  for (const uint64_t step : {1U, 2U, 3U}) {
    if (step == 3) {  // the base's bytes are read from the disk
      ASSERT_OK(store->Close());
      store = Open(options);
    }
    SaveAll(store.get(), step, step, {spec});
    if (step == 1) continue;
    const std::vector<float> before = LeafData(spec, step - 1);
    const std::vector<float> after = LeafData(spec, step);
    uint64_t changed = 0;
    for (size_t i = 0; i < after.size(); ++i) changed += before[i] != after[i] ? 1 : 0;
    EXPECT_GT(changed, 0U);
    EXPECT_EQ(Of(store.get(), step, "w").changed, changed);
    EXPECT_EQ(Of(store.get(), step, "w").changed_count, format::ChangedCount::kExact);
  }
}

TEST_F(StatisticsTest, WhatIsNotReadHasThoseOfItsBase) {
  const std::vector<float> data = LeafData(kShapes[4], 1);
  const auto save = [&](Store* store, uint64_t step, uint64_t ticket, uint64_t since) {
    SaveRequest request = RequestOf(step, {{"w", data}});
    request.ticket = ticket;
    request.items[0].leaves[0].unchanged_since = since;
    ASSERT_OK(SaveArrays(store, std::move(request)));
  };
  {
    const auto store = Open(Options());
    save(store.get(), 1, 1, 0);
    save(store.get(), 2, 2, 1);
    EXPECT_OK(CheckStatistics(LeafOf(store.get(), 2, "w"), data));
    EXPECT_EQ(Of(store.get(), 2, "w").changed, 0U);
    EXPECT_EQ(Of(store.get(), 2, "w").changed_count, format::ChangedCount::kExact);
  }
  {
    const auto store = Open(ReclaimTest::Options());
    save(store.get(), 3, 1, 0);
    EXPECT_FALSE(LeafOf(store.get(), 3, "w").statistics.has_value());
  }
  // The base, of an earlier session, has none: the leaf is read.
  const auto store = Open(Options());
  save(store.get(), 4, 1, 0);
  EXPECT_OK(CheckStatistics(LeafOf(store.get(), 4, "w"), data));
  EXPECT_TRUE(LeafOf(store.get(), 4, "w").chunks[0].referenced);
}

// ---- elements that are not finite ------------------------------------------------------------

class NonfiniteTest : public StatisticsTest {
 protected:
  std::unique_ptr<Store> OpenWith(OnNonfinite on_nonfinite) {
    StoreOptions options = ReclaimTest::Options();
    options.on_nonfinite = on_nonfinite;
    return Open(options);
  }
  const float nan_ = std::numeric_limits<float>::quiet_NaN();
  const float infinity_ = std::numeric_limits<float>::infinity();
};

TEST_F(NonfiniteTest, IgnoredUnlessAskedFor) {
  const auto store = OpenWith(OnNonfinite::kIgnore);
  ASSERT_OK(SaveArrays(store.get(), RequestOf(1, {{"w", {1, nan_}}})));
  EXPECT_FALSE(LeafOf(store.get(), 1, "w").statistics.has_value());
  EXPECT_THAT(TakeLog(), Not(HasSubstr("NaN")));
}

TEST_F(NonfiniteTest, AWarningNamesStepAndLeaves) {
  const auto store = OpenWith(OnNonfinite::kWarn);
  ASSERT_OK(SaveArrays(store.get(), RequestOf(6, {{"a", {1, 2}}})));
  EXPECT_THAT(TakeLog(), Not(HasSubstr("NaN")));
  const std::vector<float> bad = {1, nan_, -infinity_};
  ASSERT_OK(SaveArrays(
      store.get(),
      RequestOf(7, {{"a", {1, 2}}, {"b", bad}, {"c", bad}, {"d", bad}, {"e", bad}, {"f", bad}})));
  EXPECT_THAT(TakeLog(),
              HasSubstr("step 7 has elements that are NaN or infinite: state/b (2 of 3), state/c "
                        "(2 of 3), state/d (2 of 3) and 2 more leaves"));
  EXPECT_EQ(Of(store.get(), 7, "b").nonfinite, 2U) << "statistics are implied";
  EXPECT_EQ((*store->Read(7))->step().items[0].nonfinite, 10U);
}

TEST_F(NonfiniteTest, AnErrorCommitsNothing) {
  const auto store = OpenWith(OnNonfinite::kError);
  ASSERT_OK(SaveArrays(store.get(), RequestOf(1, {{"w", {1, 2}}})));
  SaveRequest replacing = RequestOf(1, {{"w", {infinity_, 2}}});
  replacing.if_exists = IfExists::kReplace;
  replacing.retire = {1};
  for (SaveRequest request : {RequestOf(2, {{"w", {1, nan_}}}), replacing}) {
    const Status status = SaveArrays(store.get(), std::move(request));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("state/w (1 of 2)"));
  }
  EXPECT_EQ(StepNumbers(store.get()), std::vector<uint64_t>{1});
  EXPECT_EQ(Of(store.get(), 1, "w").nonfinite, 0U);
  // The store goes on, and copies of steps that were saved elsewhere are taken as they are.
  ASSERT_OK(SaveArrays(store.get(), RequestOf(3, {{"w", {1, 2}}})));
  SaveRequest copy = RequestOf(4, {{"w", {1, nan_}}});
  copy.is_copy = true;
  ASSERT_OK(SaveArrays(store.get(), std::move(copy)));
  EXPECT_EQ(Of(store.get(), 4, "w").nonfinite, 1U);
}

// No commit makes room for what they wrote, and none may come for long.
TEST_F(NonfiniteTest, SavesThatAreRefusedDoNotFillTheDisk) {
  const auto store = OpenWith(OnNonfinite::kError);
  std::vector<float> values(60'000);
  for (uint64_t step = 1; step <= 200; ++step) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(static_cast<float>(step * values.size() + i));
    }
    values[7] = nan_;
    EXPECT_EQ(SaveArrays(store.get(), RequestOf(step, {{"w", values}})).code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_LT(DiskUse(path_), 24U << 20) << "of 46 MiB that were written";
  values[7] = 0;
  ASSERT_OK(SaveArrays(store.get(), RequestOf(300, {{"w", values}})));
}

// The count is the base's where the array is not read.
TEST_F(NonfiniteTest, AnArrayThatIsNotReadCountsToo) {
  const auto store = OpenWith(OnNonfinite::kError);
  SaveRequest copy = RequestOf(1, {{"w", {1, nan_}}});
  copy.is_copy = true;
  copy.ticket = 1;
  ASSERT_OK(SaveArrays(store.get(), std::move(copy)));
  const std::vector<float> any = {5, 5};  // not looked at
  SaveRequest request = RequestOf(2, {{"w", any}});
  request.ticket = 2;
  request.items[0].leaves[0].unchanged_since = 1;
  EXPECT_EQ(SaveArrays(store.get(), std::move(request)).code(), StatusCode::kInvalidArgument);
}

// ---- a state that has stopped changing -------------------------------------------------------

class StaleTest : public StatisticsTest {
 protected:
  static constexpr const char* kWarning = "was an old state saved?";
  // `state` and `other` are the versions of two items' arrays.
  void SaveVersions(uint64_t step, uint64_t state, uint64_t other,
                    IfExists if_exists = IfExists::kError) {
    const std::vector<LeafSpec> trained = {{"w", {500}, false, false},
                                           {"m", {3}, false, false},
                                           {"frozen", {40}, false, false, 1 << 30}};
    std::vector<std::vector<float>> scratch;
    scratch.reserve(9);
    SaveRequest request = MakeRequest(step, state, trained, &scratch);
    SaveRequest second = RequestOf(step, {{"v", LeafData(trained[0], other)}}, "other");
    request.items.push_back(std::move(second.items[0]));
    request.if_exists = if_exists;
    ASSERT_OK(SaveArrays(store_.get(), std::move(request)));
  }
  // So many saves, each of which changes both items.
  void Train(uint64_t first, uint64_t count) {
    for (uint64_t step = first; step < first + count; ++step) SaveVersions(step, step, step);
  }
  std::unique_ptr<Store> store_ = Open(ReclaimTest::Options());
};

TEST_F(StaleTest, IsSaidOnceUntilItChangesAgain) {
  Train(1, kStaleAfterSaves + 1);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
  SaveVersions(10, kStaleAfterSaves + 1, 10);
  const std::string log = TakeLog();
  EXPECT_THAT(log, HasSubstr(StrCat("step 10: no array of item 'state' has changed since step ",
                                    kStaleAfterSaves + 1, ", although 2 have")));
  EXPECT_THAT(log, Not(HasSubstr("'other'")));
  SaveVersions(11, kStaleAfterSaves + 1, 11);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning))) << "said already";
  Train(20, kStaleAfterSaves);
  SaveVersions(40, 20 + kStaleAfterSaves - 1, 40);
  EXPECT_THAT(TakeLog(), HasSubstr("step 40: no array of item 'state'")) << "again";
}

TEST_F(StaleTest, NotAfterAFewSaves) {
  Train(1, kStaleAfterSaves);
  SaveVersions(10, kStaleAfterSaves, 10);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

TEST_F(StaleTest, NotOfWhatNeverChanged) {
  for (uint64_t step = 1; step < 20; ++step) SaveVersions(step, 7, step);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

TEST_F(StaleTest, NotOfAStepThatIsReplaced) {
  Train(1, kStaleAfterSaves + 1);
  SaveVersions(kStaleAfterSaves + 1, kStaleAfterSaves + 1, 10, IfExists::kReplace);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

// Each of the leaves alone may stand still.
TEST_F(StaleTest, NotWhereALeafStillChanges) {
  const auto save = [&](uint64_t step, float w, float count) {
    ASSERT_OK(SaveArrays(store_.get(), RequestOf(step, {{"w", {w, 2}}, {"count", {count}}})));
  };
  for (uint64_t step = 1; step < 12; ++step) {
    save(step, static_cast<float>(std::min<uint64_t>(step, 9)), static_cast<float>(step));
  }
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

// A training that freezes what it has trained so far, and goes on with the rest.
TEST_F(StaleTest, NotWhereAnotherLeafBeginsToChange) {
  for (uint64_t step = 1; step < 20; ++step) {
    const float trunk = static_cast<float>(std::min<uint64_t>(step, 9));
    const float head = static_cast<float>(std::max<uint64_t>(step, 9));
    ASSERT_OK(SaveArrays(store_.get(), RequestOf(step, {{"w", {trunk, 2}}, {"head", {head}}})));
  }
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

// Trainings that add up gradients change some leaves with every fourth save.
TEST_F(StaleTest, NotOfWhatChangesNowAndThen) {
  for (uint64_t step = 1; step < 40; ++step) SaveVersions(step, step / 4, step);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

TEST_F(StaleTest, AnotherSessionBeginsAnew) {
  Train(1, kStaleAfterSaves + 1);
  ASSERT_OK(store_->Close());
  store_ = Open(ReclaimTest::Options());
  SaveVersions(10, kStaleAfterSaves + 1, 10);
  EXPECT_THAT(TakeLog(), Not(HasSubstr(kWarning)));
}

}  // namespace
}  // namespace stepwell::db
