// SPDX-License-Identifier: Apache-2.0
// The whole store on the real machine, both disks.
#include "db/store.h"

#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <thread>

#include "db/save/plan.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreTest : public ::testing::TestWithParam<io::DiskKind> {
 protected:
  StoreOptions Options() {
    StoreOptions options;
    options.disk = GetParam();
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex_);
      log_ += std::string(text) + "\n";
    };
    return options;
  }
  std::unique_ptr<Store> Open(const StoreOptions& options) {
    auto store = Store::Open(dir_ / "run", options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  std::unique_ptr<Store> Open() { return Open(Options()); }
  std::unique_ptr<Store> OpenReader() {
    StoreOptions options = Options();
    options.read_only = true;
    return Open(options);
  }

  TempDir dir_;
  std::mutex mutex_;
  std::string log_;
};

TEST_P(StoreTest, WhatWasSavedIsLoadedAlsoAfterReopening) {
  auto store = Open();
  for (uint64_t step = 0; step < 12; ++step) {
    auto handle = SaveSeeded(store.get(), step, step + 100, SmallState());
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    if (step % 4 == 0) ASSERT_OK(handle->Wait());
  }
  ASSERT_OK(store->Wait());
  for (uint64_t step = 0; step < 12; ++step) {
    EXPECT_OK(CheckSeeded(store.get(), step, step + 100, SmallState()));
  }
  ASSERT_OK(store->Close());
  store = Open();
  EXPECT_TRUE(store->recovery().clean);
  EXPECT_EQ(StepNumbers(store.get()).size(), 12U);
  for (uint64_t step = 0; step < 12; ++step) {
    EXPECT_OK(CheckSeeded(store.get(), step, step + 100, SmallState()));
  }
  const auto report = store->Verify({});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->problems.empty()) << report->problems.front().message;
  EXPECT_EQ(report->steps, 12U);
}

TEST_P(StoreTest, ReadersFollowALiveWriter) {
  auto store = Open();
  ASSERT_OK(SaveSeeded(store.get(), 1, 1, SmallState())->Wait());
  auto reader = OpenReader();
  EXPECT_OK(CheckSeeded(reader.get(), 1, 1, SmallState()));
  ASSERT_OK(SaveSeeded(store.get(), 2, 2, SmallState())->Wait());
  EXPECT_THAT(StepNumbers(reader.get()), ElementsAre(1, 2));
  EXPECT_OK(CheckSeeded(reader.get(), 2, 2, SmallState()));
  const std::vector<uint64_t> one{1};
  ASSERT_OK(store->Delete(one));
  EXPECT_THAT(StepNumbers(reader.get()), ElementsAre(2));
  store.reset();
  EXPECT_OK(CheckSeeded(reader.get(), 2, 2, SmallState()));
}

TEST_P(StoreTest, ExistingStepsAreRefusedReplacedOrSkipped) {
  auto store = Open();
  ASSERT_OK(SaveSeeded(store.get(), 5, 1, SmallState())->Wait());
  const auto refused = SaveSeeded(store.get(), 5, 2, SmallState());
  EXPECT_EQ(refused.status().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(refused.status().message(), HasSubstr("has step 5 already"));
  const auto skipped = SaveSeeded(store.get(), 5, 2, SmallState(), IfExists::kSkip);
  ASSERT_TRUE(skipped.ok());
  EXPECT_TRUE(skipped->skipped());
  EXPECT_OK(CheckSeeded(store.get(), 5, 1, SmallState()));
  ASSERT_OK(SaveSeeded(store.get(), 5, 3, SmallState(), IfExists::kReplace)->Wait());
  EXPECT_OK(CheckSeeded(store.get(), 5, 3, SmallState()));
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(5));
}

// Each was once committed, and no later open could read the log.
TEST_P(StoreTest, SavesThatNoReaderCouldDecodeAreRefused) {
  auto store = Open();
  const auto refuses = [&](const std::function<void(SaveRequest*)>& spoil) {
    std::vector<std::vector<float>> scratch;
    SaveRequest request = MakeRequest(1, 1, {{"a", {7}, false, false}}, &scratch);
    spoil(&request);
    const auto saved = store->Save(std::move(request));
    EXPECT_EQ(saved.status().code(), StatusCode::kInvalidArgument) << saved.status().ToString();
  };
  refuses([](SaveRequest* request) { request->items[0].kind = format::ItemKind{}; });
  refuses([](SaveRequest* request) { request->items[0].kind = format::ItemKind{4}; });
  refuses([](SaveRequest* request) { request->items[0].leaves[0].record.key += '\x09'; });
  refuses([](SaveRequest* request) {
    request->items[0].leaves[0].record.value_type = format::ValueType{11};
  });
  refuses([](SaveRequest* request) {
    request->items[0].leaves[0].record.container = format::ContainerKind{6};
  });
  refuses([](SaveRequest* request) { request->metadata_json.assign(size_t{17} << 20, ' '); });
  refuses([](SaveRequest* request) {
    request->items[0].leaves[0].record.sharding_json.assign(size_t{17} << 20, ' ');
  });
  ASSERT_OK(SaveSeeded(store.get(), 1, 1, SmallState())->Wait());
  ASSERT_OK(store->Close());
  store = Open();
  EXPECT_OK(CheckSeeded(store.get(), 1, 1, SmallState()));
}

TEST_P(StoreTest, MissingStepsNameTheNearest) {
  auto store = Open();
  EXPECT_THAT(store->Read(3).status().message(), HasSubstr("it has no steps"));
  for (const uint64_t step : std::vector<uint64_t>{4, 8}) {
    ASSERT_OK(SaveSeeded(store.get(), step, step, SmallState())->Wait());
  }
  EXPECT_EQ(store->Read(5).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(store->Read(5).status().message(), HasSubstr("the nearest steps are 4 and 8"));
  const std::vector<uint64_t> nine{9};
  EXPECT_THAT(store->Delete(nine).message(), HasSubstr("the nearest step is the newest, 8"));
}

// A leaf whose memory is let go only when `until` is there: the engine's thread waits for that.
SaveRequest StuckRequest(uint64_t step, std::shared_future<void> until) {
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(step, step, {{"a", {100}, true, false}}, &scratch);
  LeafInput& leaf = request.items.front().leaves.front();
  leaf.hold = std::shared_ptr<const void>(leaf.hold.get(),
                                          [hold = leaf.hold, until](const void*) { until.wait(); });
  return request;
}

TEST_P(StoreTest, ACallerMayGiveUpWaitingForMemory) {
  StoreOptions options = Options();
  options.staging_bytes = 8 * kBlockBytes;
  auto store = Open(options);
  std::promise<void> go_on;
  ASSERT_OK(store->Save(StuckRequest(1, go_on.get_future().share())).status());
  const std::vector<LeafSpec> large = {{"w", {20, 1000, 1000}, false, false}};
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(2, 2, large, &scratch);
  int asked = 0;
  request.keep_waiting = [&asked] { return ++asked < 2; };
  const auto given_up = store->Save(std::move(request));
  EXPECT_EQ(given_up.status().code(), StatusCode::kCancelled) << given_up.status().ToString();
  EXPECT_EQ(asked, 2);
  go_on.set_value();
  // The step's number is free, the memory comes back, and nobody hears of it again.
  const auto again = SaveSeeded(store.get(), 2, 7, large);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_OK(store->Wait());
  EXPECT_OK(CheckSeeded(store.get(), 2, 7, large));
  EXPECT_EQ(store->Stats().saves_failed, 0U);
  EXPECT_OK(store->Close());
}

TEST_P(StoreTest, ACallerMayGiveUpWaitingForItsTurn) {
  auto store = Open();
  std::promise<void> go_on;
  ASSERT_OK(store->Save(StuckRequest(1, go_on.get_future().share())).status());
  const std::vector<LeafSpec> small = {{"w", {10}, false, false}};
  ASSERT_OK(SaveSeeded(store.get(), 2, 2, small).status());
  ASSERT_OK(SaveSeeded(store.get(), 3, 3, small).status());
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(4, 4, small, &scratch);
  request.keep_waiting = [] { return false; };
  EXPECT_EQ(store->Save(std::move(request)).status().code(), StatusCode::kCancelled);
  go_on.set_value();
  EXPECT_OK(store->Wait());
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(1, 2, 3));
}

TEST_P(StoreTest, RetentionKeepsTheLatestAndGivesSpaceBack) {
  StoreOptions options = Options();
  options.keep = {{.count = 3}};
  options.segment_bytes = uint64_t{1} << 20;
  auto store = Open(options);
  const std::vector<LeafSpec> state = {{"w", {1000, 64}, true, false}};
  for (uint64_t step = 0; step < 60; ++step) {
    ASSERT_OK(SaveSeeded(store.get(), step, step, state)->Wait());
  }
  EXPECT_THAT(StepNumbers(store.get()), ElementsAre(57, 58, 59));
  // Three live steps of 256 KB, and the two catalogs that are never taken: a handful. Reclaim runs
  // in the background, so it may still be at it.
  uint64_t segments = store->Stats().segments;
  for (int look = 0; look < 2000 && segments > 8; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    segments = store->Stats().segments;
  }
  EXPECT_LE(segments, 8U);
  for (uint64_t step = 57; step < 60; ++step) {
    EXPECT_OK(CheckSeeded(store.get(), step, step, state));
  }
  // Rolling back: the new step stays whatever its number.
  ASSERT_OK(SaveSeeded(store.get(), 10, 10, state)->Wait());
  EXPECT_OK(CheckSeeded(store.get(), 10, 10, state));
}

TEST_P(StoreTest, StepsOfEarlierSessionsAreNotReclaimed) {
  StoreOptions options = Options();
  options.segment_bytes = uint64_t{1} << 20;
  const std::vector<LeafSpec> state = {{"w", {1000, 64}, true, false}};
  for (uint64_t session = 0; session < 6; ++session) {
    auto store = Open(options);
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_OK(SaveSeeded(store.get(), session * 8 + i, session * 8 + i, state)->Wait());
    }
    const std::vector<uint64_t> one{session * 8 + 3};
    ASSERT_OK(store->Delete(one));
  }
  auto store = Open(options);
  EXPECT_EQ(StepNumbers(store.get()).size(), 42U);
  for (const uint64_t step : StepNumbers(store.get())) {
    EXPECT_OK(CheckSeeded(store.get(), step, step, state));
  }
}

TEST_P(StoreTest, AStateLargerThanStagingStreamsWithinItsBound) {
  StoreOptions options = Options();
  options.staging_bytes = 6 * kBlockBytes;
  auto store = Open(options);
  const std::vector<LeafSpec> state = {{"w", {3 * 6 * kBlockBytes / 4}, false, false},
                                       {"v", {2000, 1000}, true, false}};
  ASSERT_OK(SaveSeeded(store.get(), 1, 1, state)->Wait());
  EXPECT_OK(CheckSeeded(store.get(), 1, 1, state));
  const StoreStats stats = store->Stats();
  EXPECT_LE(stats.staging_bytes, 6 * kBlockBytes);
  EXPECT_THAT(log_, HasSubstr("more than the staging memory"));
}

TEST_P(StoreTest, ASecondWriterIsRefusedByPid) {
  auto store = Open();
  const auto second = Store::Open(dir_ / "run", Options());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(getpid())));
}

TEST_P(StoreTest, ForeignDirectoriesAreNotTouched) {
  std::filesystem::create_directory(dir_ / "run");
  std::filesystem::create_directory(dir_ / "run/photos");
  const auto store = Store::Open(dir_ / "run", Options());
  EXPECT_EQ(store.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(store.status().message(), HasSubstr("is not a Stepwell store"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_ / "run"), {}), 1);
  StoreOptions options = Options();
  options.read_only = true;
  EXPECT_EQ(Store::Open(dir_ / "nothing", options).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "nothing"));
}

TEST_P(StoreTest, CallbacksMayCallTheStore) {
  auto store = Open();
  std::mutex mutex;
  std::condition_variable done;
  size_t seen = 0;
  auto handle = SaveSeeded(store.get(), 1, 1, SmallState());
  handle->OnComplete([&](const Status& status) {
    EXPECT_OK(status);
    const size_t count = StepNumbers(store.get()).size();
    const std::lock_guard lock(mutex);
    seen = count;
    done.notify_all();
  });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return seen > 0; });
  EXPECT_EQ(seen, 1U);
}

TEST_P(StoreTest, ReadersOutliveTheStore) {
  auto store = Open();
  ASSERT_OK(SaveSeeded(store.get(), 1, 1, SmallState())->Wait());
  const auto reader = store->Read(1);
  ASSERT_TRUE(reader.ok());
  store.reset();
  const auto leaves = (*reader)->Leaves("");
  ASSERT_TRUE(leaves.ok()) << leaves.status().ToString();
  EXPECT_EQ(leaves->size(), SmallState().size() + 1);
}

INSTANTIATE_TEST_SUITE_P(Disks, StoreTest,
                         ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix),
                         [](const auto& param) {
                           return param.param == io::DiskKind::kUring ? "Uring" : "Posix";
                         });

// The newest step comes and goes, so that a look and a read of two instants would miss it.
TEST(ReadNewestTest, IsOfOneInstant) {
  const TempDir dir;
  auto store = Store::Open(dir / "run", {});
  ASSERT_OK(store.status());
  const std::vector<LeafSpec> specs = {{"a", {7}, false, false}};
  ASSERT_OK((*store)->ReadNewest().status());
  EXPECT_EQ(*(*store)->ReadNewest(), nullptr);
  ASSERT_OK(SaveSeeded(store->get(), 3, 3, specs)->Wait());
  StoreOptions reading;
  reading.read_only = true;
  const auto reader = Store::Open(dir / "run", reading);
  ASSERT_OK(reader.status());
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) {
      EXPECT_OK(SaveSeeded(store->get(), 9, 9, specs)->Wait());
      EXPECT_OK((*store)->Delete(std::vector<uint64_t>{9}));
    }
  });
  for (int i = 0; i < 1500; ++i) {
    for (Store* one : {store->get(), reader->get()}) {
      const auto newest = one->ReadNewest();
      EXPECT_OK(newest.status());
      const uint64_t step = newest.ok() && *newest != nullptr ? (*newest)->step().step : 0;
      EXPECT_TRUE(step == 3 || step == 9) << step;
    }
  }
  done = true;
  other.join();
}

}  // namespace
}  // namespace stepwell::db
