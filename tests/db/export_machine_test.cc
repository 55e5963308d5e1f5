// SPDX-License-Identifier: Apache-2.0
// Exports where only a real machine can say no: other file systems, full, read-only, out of links;
// other users; other processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "db/export/orbax/folder.h"
#include "db/layout.h"
#include "tests/db/support/export_support.h"
#include "tests/db/support/forked.h"
#include "tests/db/support/mount.h"

namespace stepwell::db {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kCopiedStep = 3;
constexpr uid_t kOther = 1000;

std::vector<LeafSpec> MachineState() {
  return {{"a", {7}}, {"b", {300, 1000}}, {"e", {40000}, true}};
}

class ExportMachineTest : public ::testing::Test {
 protected:
  void Make(const std::string& path) {
    path_ = path;
    store_ = Open(false);
    ASSERT_NE(store_, nullptr);
    auto handle = SaveSeeded(store_.get(), kCopiedStep, kCopiedStep, MachineState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  std::unique_ptr<Store> Open(bool read_only) const {
    StoreOptions options;
    options.segment_bytes = 1 << 20;
    options.read_only = read_only;
    options.private_files = false;  // one test reads it as another user
    auto store = Store::Open(path_, options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  Result<ExportReport> Run(const std::string& destination, ExportMode mode) const {
    ExportOptions options;
    options.mode = mode;
    return Export(*store_, kCopiedStep, destination, options);
  }
  void ExpectStore() const {
    EXPECT_OK(CheckSeeded(store_.get(), kCopiedStep, kCopiedStep, MachineState()));
    const auto report = store_->Verify({});
    ASSERT_OK(report.status());
    EXPECT_TRUE(report->problems.empty());
  }
  static Status Check(const std::string& path) {
    return CheckExported(io::LocalFileSystem(), path, kCopiedStep, MachineState());
  }

  TempDir dir_{"/var/tmp"};
  std::string path_;
  std::unique_ptr<Store> store_;
};

TEST_F(ExportMachineTest, LinksDoNotGoToAnotherFileSystem) {
  Mount mount(FsKind::kTmpfs, 16 * kMiB);
  ASSERT_MOUNTED(mount);
  ASSERT_NO_FATAL_FAILURE(Make(dir_ / "store"));
  const Status link = Run(mount / "x", ExportMode::kLink).status();
  EXPECT_EQ(link.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(link.message(), HasSubstr("is on another file system than"));
  EXPECT_THAT(link.message(), HasSubstr("use mode copy"));
  const Status clone = Run(mount / "x", ExportMode::kReflink).status();
  EXPECT_EQ(clone.code(), StatusCode::kFailedPrecondition) << clone.ToString();
  EXPECT_THAT(clone.message(), HasSubstr("use mode copy"));
  EXPECT_THAT(NamesIn(mount / ""), IsEmpty());
  const auto report = Run(mount / "x", ExportMode::kAuto);
  ASSERT_OK(report.status());
  EXPECT_EQ(report->mode, ExportMode::kCopy);
  EXPECT_OK(Check(mount / "x"));
  ExpectStore();
}

// At every size that is too small something else finds no room.
TEST_F(ExportMachineTest, AFullDisk) {
  ASSERT_NO_FATAL_FAILURE(Make(dir_ / "store"));
  int failed = 0;
  for (uint64_t kib = 4; kib < 4096; kib += kib / 2) {
    SCOPED_TRACE(kib);
    Mount mount(FsKind::kTmpfs, kib << 10);
    ASSERT_MOUNTED(mount);
    const auto report = Run(mount / "x", ExportMode::kCopy);
    if (report.ok()) {
      EXPECT_OK(Check(mount / "x"));
      break;
    }
    ++failed;
    EXPECT_EQ(report.status().code(), StatusCode::kResourceExhausted) << report.status().ToString();
    EXPECT_THAT(report.status().message(), HasSubstr(mount / "x"));
    EXPECT_THAT(NamesIn(mount / ""), IsEmpty());
  }
  EXPECT_GT(failed, 5);
  // On the store's own disk there may be room for links and their metadata only.
  Mount small(FsKind::kExt4, 48 * kMiB);
  ASSERT_MOUNTED(small);
  const uint64_t mib = small.FreeBytes() / kMiB;
  ASSERT_GT(mib, 20U);
  store_.reset();
  ASSERT_NO_FATAL_FAILURE(Make(small / "store"));
  const auto linked = Run(small / "linked", ExportMode::kLink);
  ASSERT_OK(linked.status());
  small.FillUp("full");
  const auto before = NamesIn(small / "");
  for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy, ExportMode::kAuto}) {
    const Status status = Run(small / "x", mode).status();
    // Links take hardly any room: the file system may find that yet.
    if (status.ok() && mode != ExportMode::kCopy) {
      EXPECT_OK(Check(small / "x"));
      fs::remove_all(small / "x");
      continue;
    }
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    EXPECT_EQ(NamesIn(small / ""), before);
  }
  ExpectStore();
  fs::remove(small / "full");
  EXPECT_OK(Run(small / "x", ExportMode::kCopy).status());
  EXPECT_OK(Check(small / "x"));
  ASSERT_OK(SaveSeeded(store_.get(), 9, 9, MachineState())->Wait());
  store_.reset();
}

// Exports from a store whose writer is gone, and whose files no one has synced.
TEST_F(ExportMachineTest, ALinkSurvivesAPowerCut) {
  ASSERT_NO_FATAL_FAILURE(Make(dir_ / "made"));
  ASSERT_OK(store_->Close());
  store_.reset();
  Mount disk(FsKind::kExt4, 64 * kMiB);
  ASSERT_MOUNTED(disk);
  CopyLiveStore(dir_ / "made", disk / "store");
  path_ = disk / "store";
  store_ = Open(/*read_only=*/true);
  ASSERT_NE(store_, nullptr);
  for (const std::string& name : NamesIn(disk / "store/segments")) {
    // Direct reads have brought the reader's copies to the disk.
    ASSERT_TRUE(fs::remove(disk / ("store/segments/" + name)));
    fs::copy_file(dir_ / ("made/segments/" + name), disk / ("store/segments/" + name));
  }
  const auto report = Run(disk / "x", ExportMode::kLink);
  ASSERT_OK(report.status());
  EXPECT_EQ(report->mode, ExportMode::kLink);
  ASSERT_TRUE(disk.CutPower());
  store_.reset();
  ASSERT_TRUE(disk.Again());
  EXPECT_OK(Check(disk / "x"));
}

TEST_F(ExportMachineTest, NothingCanBeWrittenThere) {
  Mount mount(FsKind::kTmpfs, 16 * kMiB);
  ASSERT_MOUNTED(mount);
  const std::string point = mount.ReadOnlyPoint();
  ASSERT_NE(point, "") << "a read-only mount cannot be made here";
  ASSERT_NO_FATAL_FAILURE(Make(mount / "store"));
  for (const ExportMode mode : {ExportMode::kLink, ExportMode::kCopy, ExportMode::kAuto}) {
    const Status status = Run(point + "/x", mode).status();
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("Read-only file system"));
    EXPECT_THAT(status.message(), HasSubstr(point + "/x"));
  }
  // The read-only view of the store itself: inside it all the same.
  EXPECT_EQ(Run(point + "/store/x", ExportMode::kCopy).status().code(),
            StatusCode::kInvalidArgument);
  // A store that can only be read, exported elsewhere on its file system: no links between mounts.
  store_.reset();
  path_ = point + "/store";
  store_ = Open(/*read_only=*/true);
  ASSERT_NE(store_, nullptr);
  const Status link = Run(mount / "x", ExportMode::kLink).status();
  EXPECT_EQ(link.code(), StatusCode::kFailedPrecondition) << link.ToString();
  EXPECT_THAT(NamesIn(mount / ""), ElementsAre("store"));
  const auto report = Run(mount / "x", ExportMode::kAuto);
  ASSERT_OK(report.status());
  EXPECT_OK(Check(mount / "x"));
  ExpectStore();
  store_.reset();
}

// Nothing pins the step there: its export is whole, or says that the step is gone.
TEST_F(ExportMachineTest, AnUnpinnedStepIsDeletedMeanwhile) {
  Mount mount(FsKind::kExt4, 96 * kMiB);
  ASSERT_MOUNTED(mount);
  const std::string point = mount.ReadOnlyPoint();
  ASSERT_NE(point, "") << "a read-only mount cannot be made here";
  ASSERT_NO_FATAL_FAILURE(Make(mount / "store"));
  const auto writer = std::move(store_);
  for (uint64_t step = kCopiedStep + 1; step < kCopiedStep + 4; ++step) {
    ASSERT_OK(SaveSeeded(writer.get(), step, step, MachineState())->Wait());
  }
  path_ = point + "/store";
  store_ = Open(/*read_only=*/true);
  ASSERT_NE(store_, nullptr);
  ExportOptions options;
  options.mode = ExportMode::kCopy;
  bool deleted = false;
  options.progress = [&](uint64_t, uint64_t) {
    if (deleted) return true;
    deleted = true;
    const uint64_t steps[] = {kCopiedStep, kCopiedStep + 1, kCopiedStep + 2, kCopiedStep + 3};
    EXPECT_OK(writer->Delete(steps));
    for (uint64_t step = 20; step < 28; ++step) {
      EXPECT_OK(SaveSeeded(writer.get(), step, step, MachineState())->Wait());
    }
    EXPECT_OK(writer->Reclaim().status());
    return true;
  };
  const Status status = Export(*store_, kCopiedStep, mount / "x", options).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("was deleted while it was being read"));
  EXPECT_THAT(NamesIn(mount / ""), ::testing::Not(::testing::Contains(HasSubstr("x"))));
  store_.reset();
}

// ext4 has 65,000 names for a file.
TEST_F(ExportMachineTest, TooManyLinks) {
  Mount mount(FsKind::kExt4, 64 * kMiB);
  ASSERT_MOUNTED(mount);
  ASSERT_NO_FATAL_FAILURE(Make(mount / "store"));
  fs::create_directory(mount / "links");
  fs::path largest;  // which the exported step has a part of
  for (const auto& entry : fs::directory_iterator(SegmentsPath(path_))) {
    if (entry.path().extension() != ".seg") continue;
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  // A segment that is being written, and has another name, is never sealed.
  ASSERT_OK(store_->SealSegments({*ParseSegmentName(largest.filename().string())}).status());
  for (const fs::path& segment : {largest}) {
    for (int i = 0;; ++i) {
      const std::string name = StrCat(mount / "links/", segment.stem().string(), "-", i);
      if (link(segment.c_str(), name.c_str()) == 0) continue;
      ASSERT_EQ(errno, EMLINK) << i << strerror(errno);
      break;
    }
  }
  const Status status = Run(mount / "x", ExportMode::kLink).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr("Too many links"));
  EXPECT_THAT(status.message(), HasSubstr("use mode copy"));
  EXPECT_FALSE(fs::exists(mount / "x.orbax-checkpoint-tmp"));
  const auto report = Run(mount / "x", ExportMode::kAuto);
  ASSERT_OK(report.status());
  EXPECT_EQ(report->mode, ExportMode::kCopy);
  EXPECT_OK(Check(mount / "x"));
  ExpectStore();
  store_.reset();
}

// Acts as another user, in a child. The store belongs to this user.
TEST_F(ExportMachineTest, AnotherUser) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  path_ = dir_ / "store";
  // In a child, too: ThreadSanitizer ends a child whose threads come behind those of its parent.
  ASSERT_EQ(Reap(Fork([&] {
              Make(path_);
              ExpectStore();
              store_.reset();
              return !::testing::Test::HasFailure();
            })),
            0);
  fs::create_directory(dir_ / "theirs");
  ASSERT_EQ(chown((dir_ / "theirs").c_str(), kOther, kOther), 0);
  fs::create_directory(dir_ / "ours");
  const auto as_other = [&](const std::function<bool(Store*)>& body) {
    return Reap(Fork([&] {
      if (setresgid(kOther, kOther, kOther) != 0 || setresuid(kOther, kOther, kOther) != 0) {
        return false;
      }
      const auto reader = Open(/*read_only=*/true);
      return reader != nullptr && body(reader.get()) && !::testing::Test::HasFailure();
    }));
  };
  const auto segments_are_as_before = [&] {
    for (const auto& entry : fs::directory_iterator(SegmentsPath(path_))) {
      struct stat info {};
      ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
      EXPECT_EQ(info.st_nlink, 1U) << entry.path();
    }
  };
  EXPECT_EQ(as_other([&](Store* store) {
              ExportOptions options;
              const auto report = Export(*store, kCopiedStep, dir_ / "theirs/auto", options);
              EXPECT_OK(report.status());
              EXPECT_TRUE(report.ok() && report->mode != ExportMode::kLink);
              EXPECT_OK(Check(dir_ / "theirs/auto"));
              const Status denied = Export(*store, kCopiedStep, dir_ / "ours/x", options).status();
              EXPECT_EQ(denied.code(), StatusCode::kPermissionDenied) << denied.ToString();
              EXPECT_THAT(denied.message(), HasSubstr("ours/x"));
              return true;
            }),
            0);
  segments_are_as_before();
  EXPECT_THAT(NamesIn(dir_ / "ours"), IsEmpty());
  // Where the kernel protects hard links, another user may not make them.
  std::string protect;
  std::ifstream("/proc/sys/fs/protected_hardlinks") >> protect;
  EXPECT_EQ(as_other([&](Store* store) {
              ExportOptions options;
              options.mode = ExportMode::kLink;
              const Status status =
                  Export(*store, kCopiedStep, dir_ / "theirs/link", options).status();
              if (protect != "1") return status.ok();
              EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
              EXPECT_THAT(status.message(), HasSubstr("use mode copy"));
              return true;
            }),
            0);
  EXPECT_EQ(fs::exists(dir_ / "theirs/link"), protect != "1");
  EXPECT_FALSE(fs::exists(dir_ / "theirs/link.orbax-checkpoint-tmp"));
  // Segments that they may not read.
  for (const auto& entry : fs::directory_iterator(SegmentsPath(path_))) {
    if (entry.file_size() < 100'000) continue;
    ASSERT_EQ(chmod(entry.path().c_str(), 0600), 0);
  }
  const int unreadable = Reap(Fork([&] {
    if (setresgid(kOther, kOther, kOther) != 0 || setresuid(kOther, kOther, kOther) != 0) {
      return false;
    }
    StoreOptions options;
    options.read_only = true;
    const auto reader = Store::Open(path_, options);
    if (!reader.ok()) {
      EXPECT_EQ(reader.status().code(), StatusCode::kPermissionDenied)
          << reader.status().ToString();
      return !::testing::Test::HasFailure();
    }
    const Status status = Export(**reader, kCopiedStep, dir_ / "theirs/no", {}).status();
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << status.ToString();
    return !::testing::Test::HasFailure();
  }));
  EXPECT_EQ(unreadable, 0);
  EXPECT_FALSE(fs::exists(dir_ / "theirs/no"));
  EXPECT_FALSE(fs::exists(dir_ / "theirs/no.orbax-checkpoint-tmp"));
}

// A link takes the write mode of its segments, which binds all but root: their owner can use them
// again when the export is gone, punched or as spares.
TEST_F(ExportMachineTest, AnOwnerWhoIsNotRoot) {
  if (getuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(chown(dir_.path().c_str(), kOther, kOther), 0);
  const auto body = [&]() -> Status {
    if (setresgid(kOther, kOther, kOther) != 0 || setresuid(kOther, kOther, kOther) != 0) {
      return ErrnoStatus(errno, "become another user");
    }
    path_ = dir_ / "store";
    auto store = Open(/*read_only=*/false);
    const auto save = [&](uint64_t begin, uint64_t end) -> Status {
      for (uint64_t step = begin; step < end; ++step) {
        STEPWELL_ASSIGN_OR_RETURN(const auto handle,
                                  SaveSeeded(store.get(), step, step, MachineState()));
        STEPWELL_RETURN_IF_ERROR(handle.Wait());
      }
      return OkStatus();
    };
    for (uint64_t round = 0; round < 3; ++round) {
      const uint64_t first = 100 * round;
      STEPWELL_RETURN_IF_ERROR(save(first, first + 8));
      const std::string place = dir_ / StrCat("x", round);
      for (const uint64_t step : {first, first + 3}) {
        ExportOptions options;
        const auto report = Export(*store, step, StrCat(place, "-", step), options);
        STEPWELL_RETURN_IF_ERROR(report.status());
        EXPECT_EQ(report->mode, ExportMode::kLink);
      }
      // Some of its segments die wholly, others in part; before and after the exports go.
      std::vector<uint64_t> old = StepNumbers(store.get());
      std::erase_if(old, [&](uint64_t step) { return step % 4 == 1; });
      STEPWELL_RETURN_IF_ERROR(store->Delete(old));
      STEPWELL_RETURN_IF_ERROR(store->Reclaim().status());
      STEPWELL_RETURN_IF_ERROR(
          CheckExported(io::LocalFileSystem(), StrCat(place, "-", first), first, MachineState()));
      fs::remove_all(StrCat(place, "-", first));
      if (round == 1) {  // the other one is deleted while nobody has the store open
        STEPWELL_RETURN_IF_ERROR(store->Close());
        store.reset();
      }
      fs::remove_all(StrCat(place, "-", first + 3));
      if (store == nullptr) store = Open(/*read_only=*/false);
      STEPWELL_RETURN_IF_ERROR(store->Reclaim().status());
      STEPWELL_RETURN_IF_ERROR(save(first + 20, first + 28));
    }
    EXPECT_EQ(store->Stats().space.linked_bytes, 0U);
    STEPWELL_ASSIGN_OR_RETURN(const auto verified, store->Verify({}));
    EXPECT_TRUE(verified.problems.empty());
    STEPWELL_RETURN_IF_ERROR(store->Delete(StepNumbers(store.get())));
    STEPWELL_RETURN_IF_ERROR(store->Reclaim().status());
    STEPWELL_RETURN_IF_ERROR(save(900, 912));
    EXPECT_GT(store->Stats().segments_recycled + store->Stats().bytes_punched, 0U);
    return store->Close();
  };
  EXPECT_EQ(Reap(Fork([&] {
              const Status status = body();
              EXPECT_OK(status);
              return status.ok() && !::testing::Test::HasFailure();
            })),
            0);
}

// Several processes, one place, where a dead export left something: exactly one makes it.
TEST_F(ExportMachineTest, ConcurrentExportsToOnePlace) {
  constexpr int kProcesses = 4;
  constexpr int kRounds = 12;
  ASSERT_NO_FATAL_FAILURE(Make(dir_ / "store"));
  store_.reset();
  int busy = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const std::string place = dir_ / StrCat("x", round);
    const std::string temporary = place + ".orbax-checkpoint-tmp";
    if (round % 3 == 1) fs::create_directory(temporary);
    if (round % 3 == 2) {
      fs::create_directories(temporary + "/zzz/d");
      std::ofstream(temporary + "/zzz/d/old") << "old";
      std::ofstream(temporary + "/stepwell-export.lock");
    }
    const Signal start[kProcesses];
    std::vector<pid_t> children;
    for (int i = 0; i < kProcesses; ++i) {
      children.push_back(fork());
      if (children.back() != 0) continue;
      const auto reader = Open(/*read_only=*/true);
      start[i].Wait();
      ExportOptions options;
      options.mode = i % 2 == 0 ? ExportMode::kLink : ExportMode::kCopy;
      const StatusCode code = Export(*reader, kCopiedStep, place, options).status().code();
      if (code == StatusCode::kOk) _exit(0);
      if (code == StatusCode::kAlreadyExists) _exit(1);
      _exit(code == StatusCode::kUnavailable ? 2 : 3);
    }
    for (const Signal& signal : start) signal.Raise();
    int made = 0;
    for (const pid_t child : children) {
      const int status = Reap(child);
      ASSERT_TRUE(WIFEXITED(status));
      EXPECT_LT(WEXITSTATUS(status), 3);
      made += WEXITSTATUS(status) == 0 ? 1 : 0;
      busy += WEXITSTATUS(status) == 2 ? 1 : 0;
    }
    EXPECT_EQ(made, 1);
    EXPECT_OK(Check(place));
    EXPECT_FALSE(fs::exists(temporary));
    EXPECT_FALSE(fs::exists(place + "/zzz"));
    EXPECT_FALSE(fs::exists(place + "/stepwell-export.lock"));
  }
  std::printf("%d exports heard of another one that was under way\n", busy);
}

}  // namespace
}  // namespace stepwell::db
