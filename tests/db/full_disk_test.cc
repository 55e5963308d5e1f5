// SPDX-License-Identifier: Apache-2.0
// Full and read-only file systems: small ones of the test's own, mounted.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <thread>
#include <tuple>

#include "db/environment.h"
#include "db/layout.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/mount.h"
#include "tests/db/support/stopping_file_system.h"

namespace stepwell::db {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class FullDiskTest : public ::testing::TestWithParam<std::tuple<FsKind, io::DiskKind>> {
 protected:
  FullDiskTest()
      : mount_(std::get<0>(GetParam()), SmallestBytes(std::get<0>(GetParam()), 96 * kMiB)) {}
  void SetUp() override {
    ASSERT_MOUNTED(mount_);
    // A larger file system is filled in part at the start.
    constexpr uint64_t kFreeBytes = 88 * kMiB;
    if (mount_.FreeBytes() <= kFreeBytes) return;
    ASSERT_TRUE(mount_.Fill("rest", mount_.FreeBytes() - kFreeBytes));
  }

  StoreOptions Options() {
    StoreOptions options;
    options.steps_before_index = 0;  // an index at any size
    options.disk = std::get<1>(GetParam());
    options.codec = CodecPolicy::kRaw;
    options.log = [this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex_);
      said_ += StrCat(text, "\n");
    };
    return options;
  }
  std::string LogText() {
    const std::lock_guard lock(mutex_);
    return said_;
  }
  std::unique_ptr<Store> Open(bool read_only = false) {
    StoreOptions options = Options();
    options.read_only = read_only;
    auto environment = MakeEnvironment(options);
    if (files_ != nullptr && environment.ok()) environment->file_system = files_;
    auto store = environment.ok() ? OpenStore(path_, options, std::move(*environment))
                                  : Result<std::unique_ptr<Store>>(environment.status());
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }

  // Saves steps from `*next` on until the disk is full; they stay in saved_.
  void Fill(Store* store, uint64_t* next) {
    for (int i = 0; i < 200; ++i) {
      auto handle = store->Save(BigRequest(*next, kStepBytes));
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      const Status status = handle->Wait();
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
        return;
      }
      saved_.push_back((*next)++);
    }
    FAIL() << "the disk did not become full";
  }
  void ExpectAll(Store* store) {
    EXPECT_EQ(StepNumbers(store), saved_);
    for (const uint64_t step : saved_) EXPECT_OK(CheckBig(store, step, kStepBytes));
    const auto report = store->Verify({});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    for (const VerifyProblem& problem : report->problems) ADD_FAILURE() << problem.message;
  }
  Status DeleteOldest(Store* store, size_t count) {
    const std::vector<uint64_t> steps(saved_.begin(), saved_.begin() + static_cast<int64_t>(count));
    Status status = store->Delete(steps);
    if (status.ok()) saved_.erase(saved_.begin(), saved_.begin() + static_cast<int64_t>(count));
    return status;
  }

  static constexpr uint64_t kStepBytes = 3 * kMiB;
  Mount mount_;
  const std::string path_ = mount_ / "run";
  std::vector<uint64_t> saved_;
  io::FileSystem* files_ = nullptr;  // another than the machine's

 private:
  std::mutex mutex_;
  std::string said_;  // guarded by mutex_
};

TEST_P(FullDiskTest, FilledBySavesItGoesOnAfterADelete) {
  auto store = Open();
  ASSERT_NE(store, nullptr);
  uint64_t next = 0;
  Fill(store.get(), &next);
  const size_t capacity = saved_.size();
  ASSERT_GE(capacity, 12U);
  // Not frozen: the next saves are tried too, three at a time, and refused alike.
  for (int round = 0; round < 3; ++round) {
    std::vector<SaveHandle> handles;
    for (uint64_t i = 0; i < 3; ++i) {
      auto handle = store->Save(BigRequest(next + i, kStepBytes));
      ASSERT_TRUE(handle.ok()) << handle.status().ToString();
      handles.push_back(*handle);
    }
    for (const SaveHandle& handle : handles) {
      EXPECT_EQ(handle.Wait().code(), StatusCode::kResourceExhausted);
      EXPECT_FALSE(handle.stats().has_value());
    }
  }
  ExpectAll(store.get());
  // Full, deleted from, and full again, several times, without reopening.
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    ASSERT_OK(DeleteOldest(store.get(), capacity * 2 / 3));
    auto handle = store->Save(BigRequest(next, kStepBytes));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
    saved_.push_back(next++);
    Fill(store.get(), &next);
    if (HasFatalFailure()) return;
    EXPECT_GE(saved_.size(), capacity / 2) << "space of deleted steps does not come back";
    ExpectAll(store.get());
  }
  (void)store->Close();
  store = Open();
  ASSERT_NE(store, nullptr);
  ExpectAll(store.get());
  ASSERT_OK(DeleteOldest(store.get(), saved_.size() - 1));
  ASSERT_OK(store->Save(BigRequest(next, kStepBytes))->Wait());
  saved_.push_back(next);
  ExpectAll(store.get());
  EXPECT_OK(store->Close());
}

// A block without a reservation meets the full disk when it is written, and fails that save alone,
// too.
TEST_P(FullDiskTest, WhereNothingCanBeReservedAFullDiskFailsThatSaveAlone) {
  StoppingFileSystem files([] {}, /*reserves=*/false);
  files_ = &files;
  auto store = Open();
  ASSERT_NE(store, nullptr);
  uint64_t next = 0;
  Fill(store.get(), &next);
  for (int round = 0; round < 3; ++round) {
    auto handle = store->Save(BigRequest(next, kStepBytes));
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();  // else it is frozen
    EXPECT_EQ(handle->Wait().code(), StatusCode::kResourceExhausted);
  }
  ExpectAll(store.get());
  ASSERT_OK(DeleteOldest(store.get(), saved_.size() * 2 / 3));
  ASSERT_OK(store->Reclaim().status());  // without reserving, a save does not wait for the space
  auto handle = store->Save(BigRequest(next, kStepBytes));
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  ASSERT_OK(handle->Wait());
  saved_.push_back(next++);
  (void)store->Close();
  store = Open();
  ASSERT_NE(store, nullptr);
  ExpectAll(store.get());
}

TEST_P(FullDiskTest, FilledBySomebodyElseItCanBeOpenedReadAndDeletedFrom) {
  auto store = Open();
  ASSERT_NE(store, nullptr);
  uint64_t next = 0;
  for (; next < 6; ++next) {
    ASSERT_OK(store->Save(BigRequest(next, kStepBytes))->Wait());
    saved_.push_back(next);
  }
  // While it is open.
  mount_.FillUp("theirs");
  EXPECT_LT(mount_.FreeBytes(), kMiB);  // XFS gives some back from its log
  auto handle = store->Save(BigRequest(next, 12 * kMiB));
  ASSERT_TRUE(handle.ok()) << handle.status().ToString();
  EXPECT_EQ(handle->Wait().code(), StatusCode::kResourceExhausted);
  ExpectAll(store.get());
  (void)store->Close();
  // And opened on the full disk.
  mount_.FillUp("more of theirs");
  auto reader = Open(/*read_only=*/true);
  ASSERT_NE(reader, nullptr);
  ExpectAll(reader.get());
  reader.reset();
  store = Open();
  ASSERT_NE(store, nullptr);
  ExpectAll(store.get());
  ASSERT_OK(DeleteOldest(store.get(), 2));
  ExpectAll(store.get());
  mount_.FillUp("yet more of theirs");
  ASSERT_OK(DeleteOldest(store.get(), 1));
  fs::remove(mount_ / "theirs");
  ASSERT_OK(store->Save(BigRequest(next, kStepBytes))->Wait());
  saved_.push_back(next);
  ExpectAll(store.get());
  EXPECT_OK(store->Close());
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->recovery().clean);
  ExpectAll(store.get());
}

// An export of another process keeps its segment from growing, unless there is no room for another.
TEST_P(FullDiskTest, ALinkedSegmentGrowsWhereThereIsNoRoomForAnother) {
  auto store = Open();
  ASSERT_NE(store, nullptr);
  for (uint64_t next = 0; next < 6; ++next) {
    ASSERT_OK(store->Save(BigRequest(next, kStepBytes))->Wait());
    saved_.push_back(next);
  }
  std::string newest;
  for (const auto& entry : fs::directory_iterator(SegmentsPath(path_))) {
    if (entry.path().extension() == ".seg") newest = std::max(newest, entry.path().string());
  }
  fs::create_hard_link(newest, mount_ / "linked");
  // An index that meets the full disk while it opens gives its own files' space back.
  while (store->Stats().index_state.find("behind") != std::string::npos) std::this_thread::yield();
  mount_.FillUp("theirs");
  EXPECT_EQ(store->Save(BigRequest(6, kStepBytes))->Wait().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(LogText(), HasSubstr("has another name, but no new segment can be begun"));
  ExpectAll(store.get());
  fs::remove(mount_ / "theirs");
  ASSERT_OK(DeleteOldest(store.get(), 1));
  ExpectAll(store.get());
}

INSTANTIATE_TEST_SUITE_P(All, FullDiskTest,
                         ::testing::Combine(::testing::Values(FsKind::kExt4, FsKind::kTmpfs,
                                                              FsKind::kXfs, FsKind::kBtrfs),
                                            ::testing::Values(io::DiskKind::kUring,
                                                              io::DiskKind::kPosix)),
                         [](const auto& param) {
                           return FsName(std::get<0>(param.param)) +
                                  (std::get<1>(param.param) == io::DiskKind::kUring ? "Uring"
                                                                                    : "Posix");
                         });

std::vector<std::pair<std::string, uint64_t>> Listing(const std::string& path) {
  std::vector<std::pair<std::string, uint64_t>> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    files.emplace_back(entry.path().string(), entry.is_regular_file() ? entry.file_size() : 0);
  }
  std::sort(files.begin(), files.end());
  return files;
}

class ReadOnlyTest : public ::testing::TestWithParam<io::DiskKind> {
 protected:
  ReadOnlyTest() : mount_(FsKind::kExt4, 96 * kMiB) { options_.disk = GetParam(); }
  void SetUp() override { ASSERT_MOUNTED(mount_); }

  Mount mount_;
  const std::string path_ = mount_ / "run";
  StoreOptions options_;
};

TEST_P(ReadOnlyTest, AReadOnlyFileSystemIsReadAndNotWritten) {
  auto store = Store::Open(path_, options_);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  for (uint64_t step = 0; step < 3; ++step) {
    ASSERT_OK(SaveSeeded(store->get(), step, step, KillState(step))->Wait());
  }
  ASSERT_OK((*store)->Close());
  store->reset();
  const auto before = Listing(path_);
  ASSERT_TRUE(mount_.Remount(/*read_only=*/true)) << strerror(errno);
  const Status refused = Store::Open(path_, options_).status();
  EXPECT_EQ(refused.code(), StatusCode::kPermissionDenied) << refused.ToString();
  EXPECT_THAT(refused.message(), HasSubstr(path_));
  EXPECT_THAT(refused.message(), HasSubstr("Read-only file system"));
  EXPECT_EQ(Store::Open(mount_ / "new", options_).status().code(), StatusCode::kPermissionDenied);
  options_.read_only = true;
  auto reader = Store::Open(path_, options_);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  for (uint64_t step = 0; step < 3; ++step) {
    EXPECT_OK(CheckSeeded(reader->get(), step, step, KillState(step)));
  }
  reader->reset();
  EXPECT_EQ(Listing(path_), before);
}

TEST_P(ReadOnlyTest, AFileSystemThatTurnsReadOnlyFreezesTheStore) {
  auto store = Store::Open(path_, options_);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  ASSERT_OK(SaveSeeded(store->get(), 0, 0, KillState(0))->Wait());
  Status first;
  uint64_t acknowledged = 0;
  for (uint64_t step = 1; step < 40 && first.ok(); ++step) {
    auto handle = SaveSeeded(store->get(), step, step, KillState(step));
    if (step == 3) {
      ASSERT_TRUE(mount_.TurnReadOnly()) << strerror(errno);
    }
    first = handle.ok() ? handle->Wait() : handle.status();
    if (first.ok()) acknowledged = step;
  }
  EXPECT_FALSE(first.ok());
  EXPECT_LE(acknowledged, 3U);
  // Every later call says why; nothing aborts, nothing hangs.
  // (When the reservation is what failed, the store is not frozen: the next save says it again.)
  const auto last = SaveSeeded(store->get(), 50, 50, KillState(50));
  const Status later = last.ok() ? last->Wait() : last.status();
  EXPECT_THAT(later.code(), AnyOf(StatusCode::kFailedPrecondition, StatusCode::kPermissionDenied))
      << later.ToString();
  // A sync may meet the moment in which the file system turns.
  EXPECT_THAT(later.message(),
              AnyOf(HasSubstr("Read-only file system"), HasSubstr("Input/output error")));
  const std::vector<uint64_t> zero{0};
  EXPECT_FALSE((*store)->Delete(zero).ok());
  (*store)->Close().IgnoreError("it is frozen");
  store->reset();
  // The device is well again.
  ASSERT_TRUE(mount_.Again()) << strerror(errno);
  store = Store::Open(path_, options_);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  // Step 3's flush may have been under way when the file system failed, and ext4 has a moment in
  // which it then reports success for what it drops: only what was acknowledged before must be
  // there.
  for (uint64_t step = 0; step <= std::min<uint64_t>(acknowledged, 2); ++step) {
    EXPECT_OK(CheckSeeded(store->get(), step, step, KillState(step)));
  }
  ASSERT_OK(SaveSeeded(store->get(), 60, 60, KillState(60))->Wait());
  const auto report = (*store)->Verify({});
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_TRUE(report->problems.empty()) << report->problems.front().message;
  EXPECT_OK((*store)->Close());
}

INSTANTIATE_TEST_SUITE_P(Disks, ReadOnlyTest,
                         ::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix),
                         [](const auto& param) {
                           return param.param == io::DiskKind::kUring ? "Uring" : "Posix";
                         });

}  // namespace
}  // namespace stepwell::db
