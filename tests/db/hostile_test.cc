// SPDX-License-Identifier: Apache-2.0
// Directories that were made to do harm: links and FIFOs in place of a store's files. And who may
// read what a store writes.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "db/export/export.h"
#include "db/layout.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void CopyTree(const std::string& from, const std::string& to) {
  fs::remove_all(to);
  if (fs::exists(from)) fs::copy(from, to, fs::copy_options::recursive);
}

class HostileTest : public ReclaimTest {
 protected:
  void SetUp() override {
    const auto writer = Open(Options());
    ASSERT_NE(writer, nullptr);
    for (uint64_t step = 0; step < 3; ++step) Save(writer.get(), step);
    ASSERT_OK(writer->Close());
    fs::create_directories(outside_);
    std::ofstream(outside_ + "/victim") << kPrecious;
  }
  StoreOptions Reading(bool untrusted) {
    StoreOptions options = Options();
    options.read_only = true;
    options.untrusted = untrusted;
    return options;
  }
  // Maps every name outside the store to its contents.
  std::map<std::string, std::string> Outside() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(outside_)) {
      std::ostringstream text;
      if (entry.is_regular_file()) text << std::ifstream(entry.path()).rdbuf();
      found[fs::relative(entry.path(), outside_).string()] = text.str();
    }
    return found;
  }
  // Everything in the store's directory, with what would betray a change.
  std::map<std::string, std::string> Inside() const {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      struct stat info {};
      EXPECT_EQ(lstat(entry.path().c_str(), &info), 0);
      found[entry.path().string()] =
          StrCat(info.st_size, " ", info.st_mode, " ", info.st_mtim.tv_sec, " ",
                 info.st_mtim.tv_nsec, " ", info.st_nlink);
    }
    return found;
  }
  std::vector<std::string> Names() const {
    return {"LOCK",      "RECLAIM",       "STEPWELL",      "readers",
            "index",     "segments",      "VIEWS",         "BALLAST",
            "RETENTION", "RETENTION.new", "index/CURRENT", SegmentPath("", 1).substr(1)};
  }

  static constexpr const char* kPrecious = "precious";
  const std::string outside_ = dir_ / "outside";
};

// A name of the store may be a link to a file, to nothing, or to a directory.
TEST_F(HostileTest, NoLinkIsFollowed) {
  CopyTree(path_, dir_ / "good");
  for (const std::string& name : Names()) {
    for (const std::string target : {"/victim", "/made", ""}) {
      SCOPED_TRACE(name + " -> outside" + target);
      CopyTree(dir_ / "good", path_);
      fs::remove_all(path_ + "/" + name);
      fs::create_symlink(outside_ + target, path_ + "/" + name);
      if (target.empty()) CopyTree(dir_ / "good/" + name, outside_ + "/inner");
      const auto before = Outside();
      for (const bool untrusted : {true, false}) {
        auto reader = Store::Open(path_, Reading(untrusted));
        if (reader.ok()) EXPECT_OK((*reader)->Close());
      }
      auto writer = Store::Open(path_, Options());
      if (writer.ok()) {
        Save(writer->get(), 100);
        EXPECT_OK((*writer)->Close());
      }
      EXPECT_EQ(Outside(), before);
    }
  }
}

TEST_F(HostileTest, AStoreBehindALinkOpens) {
  fs::create_directory_symlink(path_, dir_ / "alias");
  const auto store = Store::Open(dir_ / "alias", Reading(/*untrusted=*/true));
  ASSERT_OK(store.status());
  EXPECT_OK(CheckSeeded(store->get(), 2, 2, kState));
  const auto writer = Store::Open(dir_ / "alias/", Options());
  ASSERT_OK(writer.status());
  Save(writer->get(), 7);
}

// A FIFO without another end would be waited for, and one in place of LOCK has no locks.
TEST_F(HostileTest, NoFifoIsOpened) {
  CopyTree(path_, dir_ / "good");
  for (const std::string& name : Names()) {
    SCOPED_TRACE(name);
    CopyTree(dir_ / "good", path_);
    fs::remove_all(path_ + "/" + name);
    ASSERT_EQ(mkfifo((path_ + "/" + name).c_str(), 0600), 0);
    for (const bool untrusted : {true, false}) {
      const auto reader = Store::Open(path_, Reading(untrusted));
      if (reader.ok()) EXPECT_OK((*reader)->Close());
    }
    const auto writer = Store::Open(path_, Options());
    if (name == "LOCK" || name == "STEPWELL") {
      EXPECT_THAT(writer.status().message(), HasSubstr("it is not a regular file"));
    }
  }
}

TEST_F(HostileTest, AnUntrustedStoreIsOnlyRead) {
  StoreOptions writing = Options();
  writing.untrusted = true;
  EXPECT_EQ(Store::Open(path_, writing).status().code(), StatusCode::kInvalidArgument);

  fs::remove(ReclaimFilePath(path_));
  fs::remove_all(ReadersPath(path_));
  fs::remove_all(IndexPath(path_));
  const auto before = Inside();
  const auto store = Store::Open(path_, Reading(/*untrusted=*/true));
  ASSERT_OK(store.status());
  for (uint64_t step = 0; step < 3; ++step) {
    EXPECT_OK(CheckSeeded(store->get(), step, step, kState));
  }
  const auto verified = (*store)->Verify({});
  ASSERT_OK(verified.status());
  EXPECT_TRUE(verified->problems.empty());
  // Links would count in the store; a copy does not.
  ExportOptions link;
  link.mode = ExportMode::kLink;
  EXPECT_EQ(Export(**store, 1, dir_ / "linked", link).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_OK(Export(**store, 1, dir_ / "copied", {}).status());
  EXPECT_OK((*store)->Close());
  EXPECT_EQ(Inside(), before);
}

// Modes, of everything in a directory: (of files, of directories).
std::pair<std::set<mode_t>, std::set<mode_t>> ModesIn(const std::string& path) {
  std::pair<std::set<mode_t>, std::set<mode_t>> modes;
  const auto add = [&](const std::string& name) {
    struct stat info {};
    if (lstat(name.c_str(), &info) != 0) return;  // a file of RocksDB's that has gone
    (S_ISDIR(info.st_mode) ? modes.second : modes.first).insert(info.st_mode & 07777);
  };
  add(path);
  for (const auto& entry : fs::recursive_directory_iterator(path)) add(entry.path().string());
  return modes;
}

TEST_F(HostileTest, ANewStoreIsItsOwnersAlone) {
  const mode_t old = umask(022);
  const auto modes_of = [&](const std::string& path, const StoreOptions& options) {
    auto store = Store::Open(path, options);
    EXPECT_OK(store.status());
    Save(store->get(), (*store)->Steps()->size());
    EXPECT_OK((*store)->Close());
    EXPECT_OK(Store::Open(path, Reading(false)).status());
    return ModesIn(path);
  };
  StoreOptions shared = Options();
  shared.private_files = false;
  const auto mine = modes_of(dir_ / "mine", Options());
  const auto ours = modes_of(dir_ / "ours", shared);
  // A store goes on as it is, whatever the option; and a private one can be opened up.
  const auto still_mine = modes_of(dir_ / "mine", shared);
  const auto still_ours = modes_of(dir_ / "ours", Options());
  ASSERT_EQ(chmod((dir_ / "mine/STEPWELL").c_str(), 0644), 0);
  (void)modes_of(dir_ / "mine", Options());
  umask(old);
  EXPECT_THAT(mine.first, ElementsAre(0600));
  EXPECT_THAT(mine.second, ElementsAre(0700));
  EXPECT_EQ(still_mine, mine);
  EXPECT_THAT(ours.first, ElementsAre(0644));
  EXPECT_THAT(ours.second, ElementsAre(0755));
  EXPECT_EQ(still_ours, ours);
  EXPECT_EQ(ModesIn(dir_ / "mine").first.count(0644), 1U);
}

TEST_F(HostileTest, ExportsOfAPrivateStoreArePrivate) {
  const mode_t old = umask(022);
  const auto store = Open(Options());
  for (const ExportMode mode : {ExportMode::kAuto, ExportMode::kCopy}) {
    ExportOptions options;
    options.mode = mode;
    const std::string path = dir_ / StrCat("export", static_cast<int>(mode));
    const auto report = Export(*store, 1, path, options);
    ASSERT_OK(report.status());
    EXPECT_EQ(report->mode, mode == ExportMode::kAuto ? ExportMode::kLink : mode);
    for (const mode_t file : ModesIn(path).first) EXPECT_EQ(file & 077, 0U) << std::oct << file;
    EXPECT_THAT(ModesIn(path).second, ElementsAre(0700));
  }
  umask(old);
}

}  // namespace
}  // namespace stepwell::db
