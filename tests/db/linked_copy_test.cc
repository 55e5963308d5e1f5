// SPDX-License-Identifier: Apache-2.0
// Stores of which another one was made by links (`cp -al`, rsync --link-dest): their files have two
// names. Whatever is done to one of them, and whenever, the other stays as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "db/layout.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<LeafSpec> kState = {{"w", {200, 1000}, true, false}, {"b", {1000}, false, false}};

class LinkedCopyTest : public ::testing::Test {
 protected:
  Result<std::unique_ptr<Store>> TryOpen(const std::string& name) {
    StoreOptions options;
    options.segment_bytes = 4 << 20;
    options.codec = CodecPolicy::kRaw;
    options.lock_timeout = std::chrono::milliseconds(200);
    return Store::Open(dir_ / name, options);
  }
  std::unique_ptr<Store> Open(const std::string& name) {
    auto store = TryOpen(name);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    if (!store.ok()) return nullptr;
    EXPECT_THAT((*store)->recovery().problems, ::testing::IsEmpty());
    return std::move(*store);
  }
  // Links as `cp -al` does. A file that an open store removes meanwhile is left out.
  void Link(const std::string& to, const std::string& from = "run") {
    fs::create_directory(dir_ / to);
    for (const auto& entry : fs::recursive_directory_iterator(dir_ / from)) {
      const fs::path target = fs::path(dir_ / to) / fs::relative(entry.path(), dir_ / from);
      if (entry.is_directory()) {
        fs::create_directory(target);
        continue;
      }
      std::error_code error;
      fs::create_hard_link(entry.path(), target, error);
      EXPECT_TRUE(!error || error == std::errc::no_such_file_or_directory) << error.message();
    }
  }
  static void Save(Store* store, uint64_t step, uint64_t seed) {
    const auto handle = SaveSeeded(store, step, seed, kState, IfExists::kReplace);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  static void Delete(Store* store, uint64_t step) { ASSERT_OK(store->Delete({&step, 1})); }
  using Steps = std::map<uint64_t, uint64_t>;  // step to seed
  static void Check(Store* store, const Steps& steps) {
    std::vector<uint64_t> numbers;
    for (const auto& [step, seed] : steps) {
      numbers.push_back(step);
      EXPECT_OK(CheckSeeded(store, step, seed, kState));
    }
    EXPECT_EQ(StepNumbers(store), numbers);
    const auto report = store->Verify({});
    ASSERT_OK(report.status());
    EXPECT_THAT(report->problems, ::testing::IsEmpty());
  }
  // Opened again, and by a reader.
  void CheckClosed(const std::string& name, const Steps& steps) {
    StoreOptions reading;
    reading.read_only = true;
    auto reader = Store::Open(dir_ / name, reading);
    ASSERT_OK(reader.status());
    Check(reader->get(), steps);
    const auto store = Open(name);
    ASSERT_NE(store, nullptr);
    Check(store.get(), steps);
  }
  uint64_t LinksOf(const std::string& name) { return fs::hard_link_count(dir_ / name); }

  TempDir dir_{"/var/tmp"};
};

TEST_F(LinkedCopyTest, BothGoOnAsStoresOfTheirOwn) {
  auto store = Open("run");
  for (uint64_t step = 1; step <= 6; ++step) Save(store.get(), step, step);
  ASSERT_OK(store->Close());
  Link("copy");
  ASSERT_EQ(LinksOf("copy/STEPWELL"), 2U);
  store = Open("copy");
  EXPECT_EQ(LinksOf("copy/STEPWELL"), 1U);
  EXPECT_EQ(LinksOf("copy/LOCK"), 1U);
  Delete(store.get(), 2);
  Save(store.get(), 3, 33);
  Save(store.get(), 7, 77);
  ASSERT_OK(store->Reclaim().status());
  const auto original = Open("run");
  Check(original.get(), {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}});
  Save(original.get(), 7, 7);
  Delete(original.get(), 4);
  ASSERT_OK(original->Reclaim().status());
  Check(store.get(), {{1, 1}, {3, 33}, {4, 4}, {5, 5}, {6, 6}, {7, 77}});
  Check(original.get(), {{1, 1}, {2, 2}, {3, 3}, {5, 5}, {6, 6}, {7, 7}});
  ASSERT_OK(store->Close());
  ASSERT_OK(original->Close());
  CheckClosed("copy", {{1, 1}, {3, 33}, {4, 4}, {5, 5}, {6, 6}, {7, 77}});
  CheckClosed("run", {{1, 1}, {2, 2}, {3, 3}, {5, 5}, {6, 6}, {7, 7}});
}

// The writer notices, and leaves to the copy what the copy has.
TEST_F(LinkedCopyTest, ACopyOfAnOpenStoreIsAsItWasThen) {
  const auto store = Open("run");
  for (uint64_t step = 1; step <= 3; ++step) Save(store.get(), step, step);
  Link("copy");
  Delete(store.get(), 1);
  Save(store.get(), 2, 22);
  Save(store.get(), 4, 4);
  ASSERT_OK(store->Reclaim().status());
  EXPECT_EQ(LinksOf("run/STEPWELL"), 1U) << "made anew";
  // The reader of the original follows it there.
  StoreOptions reading;
  reading.read_only = true;
  CheckClosed("copy", {{1, 1}, {2, 2}, {3, 3}});
  Check(store.get(), {{2, 22}, {3, 3}, {4, 4}});
  auto copy = Open("copy");
  Save(copy.get(), 9, 9);
  Link("second", "copy");
  Save(copy.get(), 10, 10);
  Save(store.get(), 5, 5);
  ASSERT_OK(store->Close());
  ASSERT_OK(copy->Close());
  CheckClosed("run", {{2, 22}, {3, 3}, {4, 4}, {5, 5}});
  CheckClosed("copy", {{1, 1}, {2, 2}, {3, 3}, {9, 9}, {10, 10}});
  CheckClosed("second", {{1, 1}, {2, 2}, {3, 3}, {9, 9}});
}

TEST_F(LinkedCopyTest, AReaderFollowsTheStoreThatItOpened) {
  const auto store = Open("run");
  Save(store.get(), 1, 1);
  StoreOptions reading;
  reading.read_only = true;
  const auto reader = Store::Open(dir_ / "run", reading);
  ASSERT_OK(reader.status());
  EXPECT_THAT(StepNumbers(reader->get()), ElementsAre(1));
  Link("copy");
  for (uint64_t step = 2; step <= 5; ++step) Save(store.get(), step, step);
  EXPECT_THAT(StepNumbers(reader->get()), ElementsAre(1, 2, 3, 4, 5));
  const auto copy = Open("copy");
  Save(copy.get(), 8, 8);
  EXPECT_THAT(StepNumbers(reader->get()), ElementsAre(1, 2, 3, 4, 5));
}

// Each has one writer, however many names LOCK has.
TEST_F(LinkedCopyTest, EachHasOneWriter) {
  const auto store = Open("run");
  Save(store.get(), 1, 1);
  Link("copy");
  const auto refused = [&](const std::string& name) {
    const Status status = TryOpen(name).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << name << ": " << status.ToString();
  };
  refused("run");
  EXPECT_EQ(LinksOf("run/LOCK"), 2U) << "it is the writer's still";
  const auto copy = Open("copy");
  ASSERT_NE(copy, nullptr);
  refused("run");
  refused("copy");
  Link("another");
  refused("run");
  // Without LOCK the lock of STEPWELL counts, also where that has two names.
  fs::remove(dir_ / "run/LOCK");
  refused("run");
  Save(store.get(), 2, 2);
  Save(copy.get(), 3, 3);
  Check(store.get(), {{1, 1}, {2, 2}});
  Check(copy.get(), {{1, 1}, {3, 3}});
  // Many at once: one of them.
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<std::unique_ptr<Store>> opened;  // guarded by mutex
  Link("many", "copy");
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      auto one = TryOpen("many");
      const std::lock_guard lock(mutex);
      if (one.ok()) opened.push_back(std::move(*one));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(opened.size(), 1U);
}

// While saves are in flight, again and again: each copy is a prefix of what the store was.
TEST_F(LinkedCopyTest, CopiesOfABusyStoreAreWhole) {
  auto store = Open("run");
  Save(store.get(), 0, 0);
  for (uint64_t round = 0; round < 6; ++round) {
    std::atomic<bool> stop{false};
    std::thread copier([&] {
      Link(StrCat("copy", round));
      stop = true;
    });
    uint64_t step = 100 * round + 1;
    for (; !stop || step % 3 != 0; ++step) {
      ASSERT_OK(SaveSeeded(store.get(), step, step, kState).status());
    }
    copier.join();
    ASSERT_OK(store->Wait());
    const std::vector<uint64_t> all = StepNumbers(store.get());
    auto copy = Store::Open(dir_ / StrCat("copy", round), {});
    ASSERT_OK(copy.status());
    const std::vector<uint64_t> some = StepNumbers(copy->get());
    ASSERT_LE(some.size(), all.size());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
    for (const uint64_t each : some) EXPECT_OK(CheckSeeded(copy->get(), each, each, kState));
    Save(copy->get(), 7'000, 7);
    ASSERT_OK((*copy)->Close());
  }
  const std::vector<uint64_t> all = StepNumbers(store.get());
  for (const uint64_t each : all) EXPECT_OK(CheckSeeded(store.get(), each, each, kState));
  ASSERT_OK(store->Close());
  store = Open("run");
  EXPECT_EQ(StepNumbers(store.get()), all);
}

}  // namespace
}  // namespace stepwell::db
