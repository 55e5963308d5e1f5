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

// As a backup that is put back: of the same store, with other steps, in another directory or in
// other files of the same.
TEST(ReplacedStoreTest, IsNotReadAsTheOneThatWasOpened) {
  for (const std::string how : {"Renamed", "MadeAnew", "Synced", "AnotherStore"}) {
    SCOPED_TRACE(how);
    const TempDir dir;
    const std::string path = dir / "run";
    const std::string backup = dir / "backup";
    const auto copy = std::filesystem::copy_options::recursive |
                      std::filesystem::copy_options::overwrite_existing;
    const auto save = [](const std::string& to, uint64_t first, uint64_t last, uint64_t seed) {
      auto store = Store::Open(to, {});
      ASSERT_OK(store.status());
      for (uint64_t step = first; step <= last; ++step) {
        ASSERT_OK(SaveSeeded(store->get(), step, seed + step, SmallState())->Wait());
      }
      ASSERT_OK((*store)->Close());
    };
    save(path, 0, 1, 0);
    if (how != "AnotherStore") std::filesystem::copy(path, backup, copy);
    save(backup, 2, 9, 100);
    save(path, 2, 3, 0);
    StoreOptions reading;
    reading.read_only = true;
    auto store = Store::Open(path, reading);
    ASSERT_OK(store.status());
    ASSERT_OK((*store)->Read(3).status());
    if (how == "Renamed") {
      std::filesystem::rename(path, dir / "old");
      std::filesystem::rename(backup, path);
    } else if (how == "Synced") {  // as rsync: each file anew, then renamed
      for (const auto& file : std::filesystem::recursive_directory_iterator(backup)) {
        if (!file.is_regular_file()) continue;
        std::filesystem::copy(file.path(), dir / "new");
        std::filesystem::rename(dir / "new", path / file.path().lexically_relative(backup));
      }
    } else {
      std::filesystem::remove_all(path);
      std::filesystem::copy(backup, path, copy);
    }
    const Status status = (*store)->Read(3).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("has taken its place"));
    ASSERT_OK((*store)->Close());
    auto opened = Store::Open(path, reading);
    ASSERT_OK(opened.status());
    EXPECT_OK((*opened)->Read(9).status());
  }
}

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
