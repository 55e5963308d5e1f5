// SPDX-License-Identifier: Apache-2.0
// Pins, taints, what verification found, deleted items, retention by rules: in the session that
// made them, for readers beside it, after a clean close, and recovered from the log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The ways to look at a store after a change.
enum class Again { kSameSession, kReader, kClosed, kScanned };

class ChangesTest : public ::testing::TestWithParam<Again> {
 protected:
  std::unique_ptr<Store> Open(StoreOptions options = {}) {
    options.staging_bytes = uint64_t{64} << 20;
    auto store = Store::Open(dir_ / "run", options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }

  // The same store, as the parameter says.
  Store* Meet(std::unique_ptr<Store>* store) {
    StoreOptions options;
    switch (GetParam()) {
      case Again::kSameSession:
        return store->get();
      case Again::kReader:
        options.read_only = true;
        reader_ = Open(options);
        return reader_.get();
      case Again::kClosed:
        *store = nullptr;
        *store = Open();
        return store->get();
      case Again::kScanned: {
        // A copy of the files under the live writer: what a kill would leave.
        CopyLiveStore(dir_ / "run", dir_ / "copy");
        auto copy = Store::Open(dir_ / "copy", options);
        EXPECT_TRUE(copy.ok()) << copy.status().ToString();
        if (!copy.ok()) return nullptr;
        EXPECT_FALSE((*copy)->recovery().clean);
        EXPECT_TRUE((*copy)->recovery().problems.empty());
        reader_ = std::move(*copy);
        return reader_.get();
      }
    }
    return nullptr;
  }

  static Status SaveItems(Store* store, uint64_t step, const std::vector<std::string>& items,
                          const std::string& metrics = "") {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(SmallState().size() + items.size());
    SaveRequest request = MakeRequest(step, step, SmallState(), &scratch);
    request.metrics_json = metrics;
    for (const std::string& name : items) {
      ItemInput item;
      item.name = name;
      LeafInput leaf;
      leaf.record.key = KeyOf(name, "w");
      leaf.record.dtype = format::DType::kFloat32;
      leaf.record.shape = {500, 100};
      scratch.push_back(LeafData({name, {500, 100}}, step));
      leaf.data = reinterpret_cast<const std::byte*>(scratch.back().data());
      item.leaves.push_back(std::move(leaf));
      request.items.push_back(std::move(item));
    }
    auto handle = store->Save(std::move(request));
    return handle.ok() ? handle->Wait() : handle.status();
  }

  static std::vector<std::string> ItemNames(Store* store, uint64_t step) {
    const auto reader = store->Read(step);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    std::vector<std::string> names;
    if (!reader.ok()) return names;
    for (const auto& item : (*reader)->step().items) names.push_back(item.name);
    return names;
  }

  static std::vector<uint64_t> Pinned(Store* store) {
    std::vector<uint64_t> steps;
    const auto all = store->Steps();
    EXPECT_TRUE(all.ok());
    for (const auto& step : *all) {
      if (step.pinned) steps.push_back(step.step);
      EXPECT_EQ((*store->Read(step.step))->step().pinned, step.pinned);
    }
    return steps;
  }

  static std::map<uint64_t, std::string> Tainted(Store* store) {
    std::map<uint64_t, std::string> steps;
    const auto all = store->Steps();
    EXPECT_TRUE(all.ok());
    for (const auto& step : *all) {
      if (!step.taint.empty()) steps[step.step] = step.taint;
      EXPECT_EQ((*store->Read(step.step))->step().taint, step.taint);
    }
    return steps;
  }

  // Of Newest() and ReadNewest(); 0: none.
  static uint64_t Newest(Store* store) {
    const auto newest = store->Newest();
    const auto reader = store->ReadNewest();
    EXPECT_OK(newest.status());
    EXPECT_OK(reader.status());
    EXPECT_EQ(*reader == nullptr ? 0 : (*reader)->step().step, newest->value_or(0));
    return newest->value_or(0);
  }

  TempDir dir_;
  std::unique_ptr<Store> reader_;
};

const std::vector<uint64_t> kTwoAndFour{2, 4};
const std::vector<uint64_t> kTwo{2};
const std::vector<uint64_t> kThree{3};

TEST_P(ChangesTest, PinsAreKept) {
  StoreOptions options;
  options.keep = {{.count = 2}};
  auto store = Open(options);
  for (uint64_t step = 1; step <= 2; ++step) ASSERT_OK(SaveItems(store.get(), step, {}));
  ASSERT_OK(store->SetPinned(kTwo, true));
  ASSERT_OK(store->SetPinned(kTwo, true));
  for (uint64_t step = 3; step <= 4; ++step) ASSERT_OK(SaveItems(store.get(), step, {}));
  ASSERT_OK(store->SetPinned(kTwoAndFour, true));
  for (uint64_t step = 5; step <= 8; ++step) ASSERT_OK(SaveItems(store.get(), step, {}));
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(StepNumbers(again), ElementsAre(2, 4, 7, 8));
  EXPECT_THAT(Pinned(again), ElementsAre(2, 4));
  for (const uint64_t step : StepNumbers(again)) {
    EXPECT_OK(CheckSeeded(again, step, step, SmallState()));
  }
  if (again->read_only()) return;
  ASSERT_OK(again->SetPinned(kTwo, false));
  EXPECT_THAT(Pinned(again), ElementsAre(4));
}

// A step on a list that the caller keeps ends in the same commit as the save that pushes it out.
TEST_P(ChangesTest, ASaveRetiresWhatItsCallerNames) {
  StoreOptions options;
  options.keep = {KeepRule::Latest(3)};
  auto store = Open(options);
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_OK(SaveItems(store.get(), step, {}));
  ASSERT_OK(store->SetPinned(kTwo, true));
  const auto save = [&store](uint64_t step, std::vector<uint64_t> retire) {
    std::vector<std::vector<float>> scratch;
    SaveRequest request = MakeRequest(step, step, SmallState(), &scratch);
    request.if_exists = IfExists::kReplace;
    request.retire = std::move(retire);
    return store->Save(std::move(request));
  };
  // Pinned, itself, not there, twice; 1 goes by the rule, too, and 3 by name alone.
  const auto first = save(4, {3, 2, 4, 99, 3, 1});
  ASSERT_OK(first.status());
  ASSERT_OK(first->Wait());
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(2, 4));
  // Those in flight before it, too; a save that keeps what is there retires nothing.
  const auto second = save(5, {});
  ASSERT_OK(second.status());
  const auto third = save(4, {5});
  ASSERT_OK(third.status());
  ASSERT_OK(store->Wait());
  std::vector<std::vector<float>> scratch;
  SaveRequest skipped = MakeRequest(4, 4, SmallState(), &scratch);
  skipped.if_exists = IfExists::kSkip;
  skipped.retire = {4, 2};
  const auto kept = store->Save(std::move(skipped));
  ASSERT_OK(kept.status());
  EXPECT_TRUE(kept->skipped());
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(StepNumbers(again), ElementsAre(2, 4));
  EXPECT_OK(CheckSeeded(again, 4, 4, SmallState()));
}

TEST_P(ChangesTest, PinsSurviveManySegments) {
  StoreOptions options;
  options.segment_bytes = uint64_t{1} << 20;
  options.keep = {{.count = 3}};
  auto store = Open(options);
  ASSERT_OK(SaveItems(store.get(), 2, {"extra"}));
  ASSERT_OK(store->SetPinned(kTwo, true));
  for (uint64_t step = 10; step < 40; ++step) ASSERT_OK(SaveItems(store.get(), step, {"extra"}));
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(Pinned(again), ElementsAre(2));
  EXPECT_OK(CheckSeeded(again, 2, 2, SmallState()));
}

// It stays with what was done to the step since, over many segments, until another takes its place.
TEST_P(ChangesTest, TaintedStepsArePassedOver) {
  StoreOptions options;
  options.segment_bytes = uint64_t{1} << 20;
  auto store = Open(options);
  for (uint64_t step = 1; step <= 7; ++step) ASSERT_OK(SaveItems(store.get(), step, {"extra"}));
  ASSERT_OK(store->SetTaint(std::vector<uint64_t>{3, 4, 5, 6, 7}, "loss spike"));
  ASSERT_OK(store->SetTaint(std::vector<uint64_t>{4}, "worse"));
  ASSERT_OK(store->SetTaint(kThree, ""));
  ASSERT_OK(store->SetPinned(std::vector<uint64_t>{5}, true));
  ASSERT_OK(store->DeleteItems(6, std::vector<std::string>{"extra"}));
  ASSERT_OK(SaveSeeded(store.get(), 7, 9, SmallState(), IfExists::kReplace)->Wait());
  ASSERT_OK(store->SetTaint(std::vector<uint64_t>{7}, std::string(kTaintBytesMax, 'x')));
  EXPECT_EQ(store->SetTaint(kThree, std::string(kTaintBytesMax + 1, 'x')).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(store->SetTaint(std::vector<uint64_t>{1, 99}, "no").code(), StatusCode::kNotFound);
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ASSERT_OK(SaveSeeded(store.get(), 1, seed, SmallState(), IfExists::kReplace)->Wait());
  }
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(Tainted(again),
              ElementsAre(std::pair(4, "worse"), std::pair(5, "loss spike"),
                          std::pair(6, "loss spike"), std::pair(7, std::string(1024, 'x'))));
  EXPECT_EQ(Newest(again), 3U);
  EXPECT_THAT(StepNumbers(again), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_OK(CheckSeeded(again, 7, 9, SmallState()));
  if (again->read_only()) return;
  ASSERT_OK(SaveSeeded(again, 7, 10, SmallState(), IfExists::kReplace)->Wait());
  EXPECT_EQ(Newest(again), 7U) << "another step of that number";
  ASSERT_OK(again->SetTaint(std::vector<uint64_t>{1, 2, 3, 7}, "all"));
  EXPECT_EQ(Newest(again), 0U);
}

// A commit stays verified with what is done to its step since, until another takes its place.
TEST_P(ChangesTest, VerifiedStepsAreKnown) {
  StoreOptions options;
  options.segment_bytes = uint64_t{1} << 20;
  auto store = Open(options);
  for (uint64_t step = 1; step <= 6; ++step) ASSERT_OK(SaveItems(store.get(), step, {"extra"}));
  const auto report = store->Verify({});
  ASSERT_OK(report.status());
  EXPECT_TRUE(report->problems.empty());
  ASSERT_OK(SaveItems(store.get(), 7, {"extra"}));
  ASSERT_OK(store->SetTaint(kThree, "loss spike"));
  ASSERT_OK(store->SetPinned(std::vector<uint64_t>{4}, true));
  ASSERT_OK(store->DeleteItems(5, std::vector<std::string>{"extra"}));
  ASSERT_OK(SaveSeeded(store.get(), 6, 9, SmallState(), IfExists::kReplace)->Wait());
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ASSERT_OK(SaveSeeded(store.get(), 1, seed, SmallState(), IfExists::kReplace)->Wait());
  }
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(VerifiedSteps(again), ElementsAre(2, 3, 4, 5));
  VerifyOptions one;
  one.step = 7;
  ASSERT_OK(again->Verify(one).status());
  if (again->read_only()) {
    EXPECT_THAT(VerifiedSteps(again), ElementsAre(2, 3, 4, 5)) << "only the writer records it";
  } else {
    EXPECT_THAT(VerifiedSteps(again), ElementsAre(2, 3, 4, 5, 7));
  }
}

// The rules count tainted steps as any, but do not leave them alone.
TEST_P(ChangesTest, RetentionKeepsAStepToGoBackTo) {
  StoreOptions options;
  options.keep = {KeepRule::Latest(2)};
  auto store = Open(options);
  const auto save = [&store](uint64_t step) { ASSERT_OK(SaveItems(store.get(), step, {})); };
  const auto taint = [&store](uint64_t step) { ASSERT_OK(store->SetTaint({&step, 1}, "spike")); };
  save(1);
  save(2);
  taint(2);
  save(3);
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(1, 2, 3));
  const auto report = store->Retention();
  ASSERT_OK(report.status());
  EXPECT_TRUE(std::none_of(report->steps.begin(), report->steps.end(),
                           [](const auto& step) { return step.newest_untainted; }));
  taint(3);
  const auto tainted = store->Retention();
  ASSERT_OK(tainted.status());
  EXPECT_TRUE(tainted->steps[0].newest_untainted);
  EXPECT_FALSE(tainted->steps[0].goes_next);
  save(4);
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(StepNumbers(again), ElementsAre(1, 3, 4));
  EXPECT_EQ(Newest(again), 4U);
  if (GetParam() != Again::kSameSession) return;  // it was opened without rules
  save(5);
  EXPECT_THAT(StepNumbers(again), ElementsAre(4, 5));
}

TEST_P(ChangesTest, PinnedStepsAreNeitherDeletedNorReplaced) {
  auto store = Open();
  for (uint64_t step = 1; step <= 3; ++step) ASSERT_OK(SaveItems(store.get(), step, {}));
  ASSERT_OK(store->SetPinned(kTwo, true));
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  const std::vector<uint64_t> with_others{1, 2};
  const Status deleted = again->Delete(with_others);
  EXPECT_EQ(deleted.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(StepNumbers(again), ElementsAre(1, 2, 3));
  if (again->read_only()) return;
  EXPECT_THAT(deleted.message(), HasSubstr("step 2 is pinned"));
  const auto replaced = SaveSeeded(again, 2, 9, SmallState(), IfExists::kReplace);
  EXPECT_EQ(replaced.status().code(), StatusCode::kFailedPrecondition);
  ASSERT_OK(again->SetPinned(kTwo, false));
  ASSERT_OK(SaveSeeded(again, 2, 9, SmallState(), IfExists::kReplace)->Wait());
  ASSERT_OK(again->Delete(with_others));
  EXPECT_THAT(StepNumbers(again), ElementsAre(3));
  EXPECT_EQ(again->SetPinned(kTwo, true).code(), StatusCode::kNotFound);
}

TEST_P(ChangesTest, ItemsAreDeletedAndTheRestStays) {
  auto store = Open();
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_OK(SaveItems(store.get(), step, {"extra", "more", "stat"}, "{\"loss\": 1}"));
  }
  ASSERT_OK(store->SetPinned(kThree, true));
  const auto before = (*store->Read(3))->step();
  const std::vector<std::string> items{"extra", "stat"};
  ASSERT_OK(store->DeleteItems(3, items));
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(ItemNames(again, 3), ElementsAre("state", "more"));
  EXPECT_THAT(ItemNames(again, 2), ElementsAre("state", "extra", "more", "stat"));
  const auto reader = again->Read(3);
  ASSERT_OK(reader.status());
  EXPECT_TRUE((*reader)->step().pinned);
  EXPECT_EQ((*reader)->step().time_ns, before.time_ns);
  EXPECT_EQ((*reader)->step().metrics_json, "{\"loss\": 1}");
  EXPECT_LT((*reader)->step().stored_bytes, before.stored_bytes);
  const auto leaves = (*reader)->Leaves("");
  ASSERT_OK(leaves.status());
  for (const auto& leaf : *leaves) {
    EXPECT_FALSE(leaf.key.starts_with(format::EncodeItem("extra")));
    EXPECT_FALSE(leaf.key.starts_with(format::EncodeItem("stat")));
  }
  EXPECT_EQ(leaves->size(), (*reader)->step().leaf_count);
  EXPECT_OK(CheckSeeded(again, 3, 3, SmallState()));
  EXPECT_OK(CheckSeeded(again, 2, 2, SmallState()));
  const auto report = again->Verify({});
  ASSERT_OK(report.status());
  EXPECT_TRUE(report->problems.empty());
}

TEST_P(ChangesTest, ItemsThatCannotBeDeleted) {
  auto store = Open();
  ASSERT_OK(SaveItems(store.get(), 1, {"extra"}));
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  if (again->read_only()) {
    const std::vector<std::string> extra{"extra"};
    EXPECT_EQ(again->DeleteItems(1, extra).code(), StatusCode::kFailedPrecondition);
    return;
  }
  const std::vector<std::string> missing{"extra", "exta"};
  EXPECT_EQ(again->DeleteItems(1, missing).code(), StatusCode::kNotFound);
  EXPECT_THAT(again->DeleteItems(1, missing).message(), HasSubstr("no item 'exta'"));
  const std::vector<std::string> all{"extra", "state", "extra"};
  EXPECT_EQ(again->DeleteItems(1, all).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(again->DeleteItems(7, all).code(), StatusCode::kNotFound);
  EXPECT_THAT(ItemNames(again, 1), ElementsAre("state", "extra"));
  EXPECT_OK(CheckSeeded(again, 1, 1, SmallState()));
}

TEST_P(ChangesTest, RulesInUnion) {
  StoreOptions options;
  KeepRule latest{.count = 2};
  KeepRule every{.kind = KeepRule::Kind::kEvery, .count = 5};
  KeepRule best{.kind = KeepRule::Kind::kBest, .count = 1, .metric = "loss"};
  options.keep = {latest, every, best};
  auto store = Open(options);
  for (uint64_t step = 0; step < 6; ++step) {
    ASSERT_OK(SaveItems(store.get(), step, {}, StrCat("{\"loss\": ", step == 3 ? 1 : 10, "}")));
  }
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(0, 3, 4, 5));
  // The metrics of earlier sessions count, too.
  store = nullptr;
  store = Open(options);
  for (uint64_t step = 6; step < 13; ++step) {
    ASSERT_OK(SaveItems(store.get(), step, {}, StrCat("{\"loss\": ", step == 8 ? 0.5 : 10, "}")));
    if (step == 7) {
      EXPECT_THAT(StepNumbers(store.get()), ElementsAre(0, 3, 5, 6, 7));
    }
  }
  Store* again = Meet(&store);
  ASSERT_NE(again, nullptr);
  EXPECT_THAT(StepNumbers(again), ElementsAre(0, 5, 8, 10, 11, 12));
}

std::string NameOf(const ::testing::TestParamInfo<Again>& info) {
  const std::string names[] = {"SameSession", "Reader", "Closed", "Scanned"};
  return names[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Met, ChangesTest,
                         ::testing::Values(Again::kSameSession, Again::kReader, Again::kClosed,
                                           Again::kScanned),
                         NameOf);

// A pin, a replacement and the saves that drop all but the newest step share batches: a pin that
// was acknowledged holds.
TEST(PinsBesideSavesTest, NoneIsLostToRetentionOrReplaced) {
  constexpr uint64_t kSteps = 400;
  const TempDir dir;
  StoreOptions options;
  options.keep = {KeepRule::Latest(1)};
  auto store = Store::Open(dir / "run", options);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  std::atomic<uint64_t> newest = 0;
  ASSERT_OK(SaveSeeded(store->get(), 0, 0, {{"a", {7}}})->Wait());
  std::set<uint64_t> pinned;
  std::thread pinner([&] {
    while (newest < kSteps) {
      const uint64_t step = newest;
      const Status status = (*store)->SetPinned({&step, 1}, true);
      if (status.ok()) pinned.insert(step);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound) << status.ToString();
    }
  });
  for (uint64_t step = 1; step < kSteps; step += 2) {
    const auto saved = SaveSeeded(store->get(), step, step, {{"a", {7}}});
    const auto replaced =
        SaveSeeded(store->get(), step - 1, step - 1, {{"a", {7}}}, IfExists::kReplace);
    const auto next = SaveSeeded(store->get(), step + 1, step + 1, {{"a", {7}}});
    EXPECT_OK(saved->Wait());
    const Status status = replaced.ok() ? replaced->Wait() : replaced.status();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kFailedPrecondition)
        << status.ToString();
    EXPECT_OK(next->Wait());
    newest = step + 1;
  }
  pinner.join();
  EXPECT_FALSE(pinned.empty());
  for (const uint64_t step : pinned) {
    const auto reader = (*store)->Read(step);
    ASSERT_TRUE(reader.ok()) << "step " << step << " was pinned: " << reader.status().ToString();
    EXPECT_TRUE((*reader)->step().pinned);
    EXPECT_OK(CheckSeeded(reader->get(), step, {{"a", {7}}}));
  }
}

}  // namespace
}  // namespace stepwell::db
