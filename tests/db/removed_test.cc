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

void SaveSteps(const std::string& path, uint64_t first, uint64_t last, uint64_t seed) {
  auto store = Store::Open(path, {});
  ASSERT_OK(store.status());
  for (uint64_t step = first; step <= last; ++step) {
    ASSERT_OK(SaveSeeded(store->get(), step, seed + step, SmallState())->Wait());
  }
  ASSERT_OK((*store)->Close());
}

// As a backup that is put back: of the same store, with other steps, in another directory.
TEST(ReplacedStoreTest, IsNotReadAsTheOneThatWasOpened) {
  for (const std::string how : {"Renamed", "MadeAnew", "AnotherStore"}) {
    SCOPED_TRACE(how);
    const TempDir dir;
    const std::string path = dir / "run";
    const std::string backup = dir / "backup";
    const auto copy = std::filesystem::copy_options::recursive |
                      std::filesystem::copy_options::overwrite_existing;
    SaveSteps(path, 0, 1, 0);
    if (how != "AnotherStore") std::filesystem::copy(path, backup, copy);
    SaveSteps(backup, 2, 9, 100);
    SaveSteps(path, 2, 3, 0);
    StoreOptions reading;
    reading.read_only = true;
    auto store = Store::Open(path, reading);
    ASSERT_OK(store.status());
    ASSERT_OK((*store)->Read(3).status());
    if (how == "Renamed") {
      std::filesystem::rename(path, dir / "old");
      std::filesystem::rename(backup, path);
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

// The backup's files take the names of the store's, in the same directory. The reader then reads
// the backup's, also where the old files have other names and stay.
TEST(ReplacedStoreTest, OtherFilesInItsDirectoryAreRead) {
  for (const uint64_t behind : {1U, 3U, 20U}) {  // steps that the other history has more
    for (const bool linked : {false, true}) {
      for (const bool is_slot_first : {false, true}) {
        SCOPED_TRACE(StrCat(behind, linked ? " linked" : "", is_slot_first ? " slot first" : ""));
        const TempDir dir;
        const std::string path = dir / "run";
        const std::string backup = dir / "backup";
        SaveSteps(path, 0, 3, 0);
        std::filesystem::copy(path, backup, std::filesystem::copy_options::recursive);
        SaveSteps(path, 4, 5, 0);
        StoreOptions reading;
        reading.read_only = true;
        auto store = Store::Open(path, reading);
        ASSERT_OK(store.status());
        ASSERT_OK(CheckSeeded(store->get(), 5, 5, SmallState()));
        SaveSteps(backup, 4, 4 + behind, 100);
        if (linked) {
          std::filesystem::create_directory(dir / "links");
          for (const auto& file :
               std::filesystem::directory_iterator(std::filesystem::path(path) / "segments")) {
            std::filesystem::create_hard_link(
                file.path(), std::filesystem::path(dir / "links") / file.path().filename());
          }
        }
        std::vector<std::filesystem::path> files;
        for (const auto& file : std::filesystem::recursive_directory_iterator(backup)) {
          if (file.is_regular_file()) files.push_back(file.path());
        }
        std::ranges::sort(files, [&](const auto& a, const auto& b) {
          return (a.filename() == "STEPWELL") > (b.filename() == "STEPWELL");
        });
        if (!is_slot_first) std::ranges::reverse(files);
        for (const std::filesystem::path& file : files) {  // each anew, then renamed, as rsync does
          std::filesystem::copy(file, dir / "new");
          std::filesystem::rename(dir / "new",
                                  std::filesystem::path(path) / file.lexically_relative(backup));
          (void)(*store)->Read(5).status().ok();  // an error or a step
        }
        auto opened = Store::Open(path, reading);
        ASSERT_OK(opened.status());
        const auto numbers = StepNumbers(opened->get());
        if (const auto steps = (*store)->Steps(); steps.ok()) {
          EXPECT_EQ(StepNumbers(store->get()), numbers);
          for (const uint64_t step : numbers) {
            EXPECT_OK(CheckSeeded(store->get(), step, step > 3 ? 100 + step : step, SmallState()));
          }
        } else {  // where it is older than what was seen
          EXPECT_EQ(steps.status().code(), StatusCode::kFailedPrecondition)
              << steps.status().ToString();
        }
      }
    }
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
