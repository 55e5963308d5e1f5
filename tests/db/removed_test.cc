// SPDX-License-Identifier: Apache-2.0
// Stores that are not there any more, and stores that are not there yet.
#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "db/layout.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::HasSubstr;

class RemovedStoreTest : public ::testing::TestWithParam<std::string> {};

TEST_P(RemovedStoreTest, SavesNothingMoreAndSaysSo) {
  const TempDir dir;
  const std::string path = dir / "run";
  auto store = Store::Open(path, {});
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_OK(SaveSeeded(store->get(), 0, 0, SmallState())->Wait());
  // Again where the store made a file behind it.
  for (std::error_code error; std::filesystem::exists(path + GetParam());) {
    std::filesystem::remove_all(path + GetParam(), error);
  }
  auto handle = SaveSeeded(store->get(), 1, 1, SmallState());
  const Status status = handle.ok() ? handle->Wait() : handle.status();
  EXPECT_FALSE(status.ok()) << "acknowledged in a store that was removed";
  EXPECT_THAT(status.message(), HasSubstr("was removed"));
  // And it stays so: the log goes on in files that nobody can open.
  auto next = SaveSeeded(store->get(), 2, 2, SmallState());
  EXPECT_FALSE(next.ok() ? next->Wait().ok() : false);
  (*store)->Close().IgnoreError("it is not there");
}

INSTANTIATE_TEST_SUITE_P(What, RemovedStoreTest, ::testing::Values("", "/STEPWELL", "/segments"),
                         [](const auto& param) {
                           return param.param.empty()          ? "Everything"
                                  : param.param == "/STEPWELL" ? "Slot"
                                                               : "Segments";
                         });

TEST(UnfinishedStoreTest, IsNoStoreYet) {
  const TempDir dir;
  StoreOptions reading;
  reading.read_only = true;
  StoreOptions existing;
  existing.create = false;
  const std::string path = dir / "run";
  // An unfinished creation looks like no store.
  const auto expect_none = [&](const std::string& what) {
    for (const StoreOptions& options : {reading, existing}) {
      const Status status = Store::Open(path, options).status();
      EXPECT_EQ(status.code(), StatusCode::kNotFound) << what << ": " << status.ToString();
    }
  };
  expect_none("nothing");
  for (const char* name : {"", "/segments", "/readers", "/index"}) {
    std::filesystem::create_directory(path + name);
    expect_none(name);
  }
  for (const char* name : {"/LOCK", "/STEPWELL.new"}) {
    std::ofstream(path + name).put('x');
    expect_none(name);
  }
  std::ofstream(path + "/something else").put('x');
  EXPECT_EQ(Store::Open(path, reading).status().code(), StatusCode::kUnimplemented);
}

TEST(UnfinishedStoreTest, AReaderMeetsNothingOrAStoreWhileItIsCreated) {
  const TempDir dir;
  StoreOptions reading;
  reading.read_only = true;
  std::atomic<int> creating{0};
  std::atomic<bool> stop{false};
  std::thread poller([&] {
    while (!stop) {
      const auto store = Store::Open(dir / StrCat("run", creating.load()), reading);
      if (!store.ok()) {
        EXPECT_EQ(store.status().code(), StatusCode::kNotFound) << store.status().ToString();
      }
    }
  });
  for (int i = 0; i < 15; ++i) {
    creating = i;
    auto store = Store::Open(dir / StrCat("run", i), {});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    ASSERT_OK(SaveSeeded(store->get(), 0, 0, SmallState())->Wait());
  }
  stop = true;
  poller.join();
}

}  // namespace
}  // namespace stepwell::db
