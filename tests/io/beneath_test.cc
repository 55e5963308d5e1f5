// SPDX-License-Identifier: Apache-2.0
#include "io/beneath.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using ::testing::Contains;
using testing::CreateOptions;
using ::testing::ElementsAre;
using testing::TempDir;
namespace fs = std::filesystem;

constexpr StatusCode kRefused = StatusCode::kFailedPrecondition;

class BeneathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ + "/a/b");
    fs::create_directories(outside_ + "/b");
    std::ofstream(outside_ + "/victim") << "precious";
    std::ofstream(outside_ + "/b/victim") << "precious";
    fs::create_symlink(outside_ + "/victim", root_ + "/file");
    fs::create_symlink(outside_ + "/made", root_ + "/nothing");
    fs::create_symlink(outside_, root_ + "/directory");
    fs::create_symlink("a", root_ + "/within");
  }

  TempDir dir_;
  const std::string root_ = dir_ / "root";
  const std::string outside_ = dir_ / "outside";
  const std::unique_ptr<FileSystem> files_ = FileSystemBeneath(root_, FileModes::kPrivate);
};

TEST_F(BeneathTest, NoNameIsFollowed) {
  FileOpenOptions truncate = CreateOptions();
  truncate.truncate = true;
  for (const std::string name : {"/file", "/nothing", "/directory/victim", "/directory/b/victim",
                                 "/directory/new", "/within/b/new", "//directory//victim"}) {
    const std::string path = root_ + name;
    EXPECT_EQ(files_->Open(path, {}).status().code(), kRefused) << path;
    EXPECT_EQ(files_->Open(path, {.write = true}).status().code(), kRefused) << path;
    EXPECT_EQ(files_->Open(path, CreateOptions()).status().code(), kRefused) << path;
    EXPECT_EQ(files_->Open(path, truncate).status().code(), kRefused) << path;
    EXPECT_EQ(files_->Stat(path).status().code(), kRefused) << path;
  }
  EXPECT_EQ(fs::file_size(outside_ + "/victim"), 8U);
  EXPECT_FALSE(fs::exists(outside_ + "/made"));
  EXPECT_FALSE(fs::exists(outside_ + "/new"));
  for (const std::string name : {"/directory", "/directory/b", "/within/b"}) {
    const std::string path = root_ + name;
    EXPECT_EQ(files_->List(path).status().code(), kRefused) << path;
    EXPECT_EQ(files_->SyncDirectory(path).code(), kRefused) << path;
    EXPECT_EQ(files_->FreeBytes(path).status().code(), kRefused) << path;
    EXPECT_EQ(files_->CreateDirectory(path + "/new").code(), kRefused) << path;
  }
  EXPECT_EQ(files_->Remove(root_ + "/directory/victim").code(), kRefused);
  EXPECT_EQ(files_->Rename(root_ + "/directory/victim", root_ + "/mine").code(), kRefused);
  EXPECT_EQ(files_->Link(root_ + "/directory/victim", root_ + "/mine").code(), kRefused);
  EXPECT_FALSE(files_->SetMode(root_ + "/file", 0777).ok());
  EXPECT_EQ(fs::status(outside_ + "/victim").permissions() & fs::perms::others_write,
            fs::perms::none);
  EXPECT_OK(files_->Remove(root_ + "/file"));  // the link itself
  EXPECT_TRUE(fs::exists(outside_ + "/victim"));
}

TEST_F(BeneathTest, NothingLeadsOut) {
  for (const std::string name : {"/..", "/../outside/victim", "/a/../../outside/victim", "/a/."}) {
    EXPECT_EQ(files_->Open(root_ + name, {}).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_OK(files_->Open(outside_ + "/victim", {}));  // somewhere else: as any program does
  EXPECT_OK(files_->Stat(root_));
}

TEST_F(BeneathTest, TheRootMayBeALink) {
  fs::create_directory_symlink(root_, dir_ / "alias");
  const auto files = FileSystemBeneath(dir_ / "alias/", FileModes::kUmask);
  EXPECT_OK(files->Open(dir_ / "alias/a/new", CreateOptions()));
  EXPECT_TRUE(fs::exists(root_ + "/a/new"));
  EXPECT_EQ(files->Open(dir_ / "alias/file", {}).status().code(), kRefused);
}

TEST_F(BeneathTest, OnlyRegularFilesAreOpened) {
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  for (const bool write : {false, true}) {
    const Status status = files_->Open(root_ + "/fifo", {.write = write}).status();
    EXPECT_EQ(status.message(), StrCat("open ", root_, "/fifo: it is not a regular file"));
  }
  EXPECT_EQ(files_->Open(root_ + "/fifo", CreateOptions()).status().code(),
            StatusCode::kInvalidArgument);
  // io_uring would answer EAGAIN on such a file.
  ASSERT_OK(files_->Open(root_ + "/plain", CreateOptions()));
  const auto plain = files_->Open(root_ + "/plain", {.direct = true});
  ASSERT_OK(plain);
  EXPECT_EQ(fcntl((*plain)->descriptor(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(BeneathTest, PrivateFilesAreTheOwners) {
  const mode_t old = umask(022);
  const auto shared = FileSystemBeneath(root_, FileModes::kUmask);
  const auto mode = [&](const std::string& name) { return files_->Stat(root_ + name)->mode; };
  ASSERT_OK(files_->Open(root_ + "/mine", CreateOptions()));
  ASSERT_OK(files_->CreateDirectory(root_ + "/my"));
  ASSERT_OK(shared->Open(root_ + "/ours", CreateOptions()));
  ASSERT_OK(shared->CreateDirectory(root_ + "/our"));
  umask(old);
  EXPECT_EQ(mode("/mine"), 0600U);
  EXPECT_EQ(mode("/my"), 0700U);
  EXPECT_EQ(mode("/ours"), 0644U);
  EXPECT_EQ(mode("/our"), 0755U);
}

TEST_F(BeneathTest, AHeldRootIsTheDirectoryAndNotItsName) {
  auto held = files_->HoldRoot();
  ASSERT_OK(held);
  fs::rename(root_, dir_ / "moved");
  fs::create_directories(root_ + "/a");  // another one
  ASSERT_OK(files_->Open(root_ + "/plain", CreateOptions()));
  ASSERT_OK(files_->CreateDirectory(root_ + "/a/new"));
  ASSERT_OK(files_->SyncDirectory(root_));
  EXPECT_THAT(*files_->List(root_), Contains("plain"));
  EXPECT_EQ(files_->Open(root_ + "/file", {}).status().code(), kRefused);
  EXPECT_TRUE(fs::exists(dir_ / "moved/plain"));
  EXPECT_TRUE(fs::exists(dir_ / "moved/a/new"));
  EXPECT_FALSE(fs::exists(root_ + "/plain"));
  held->reset();
  EXPECT_THAT(*files_->List(root_), ElementsAre("a"));
}

// No descriptor is left: that is said, and not that something is wrong with the directory.
TEST_F(BeneathTest, AHeldRootWithoutDescriptors) {
  const auto held = files_->HoldRoot();
  ASSERT_OK(held);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status root = files_->Stat(root_).status();
  const Status below = files_->Stat(root_ + "/a").status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(root.os_error(), EMFILE) << root.ToString();
  EXPECT_EQ(below.os_error(), EMFILE) << below.ToString();
  EXPECT_OK(files_->SyncDirectory(root_));
}

TEST_F(BeneathTest, WalkingFindsWhatOpenat2Finds) {
  const Descriptor root(open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (const char* path : {"", "a", "a/b", "a//b", "directory", "directory/b", "within/b", "file",
                           "missing", "missing/b", "nothing"}) {
    errno = 0;
    const Descriptor opened = OpenDirectoryBeneath(root_.c_str(), path);
    const int opened_errno = opened.value() < 0 ? errno : 0;
    errno = 0;
    const Descriptor walked = WalkBeneath(root.value(), path);
    EXPECT_EQ(walked.value() < 0 ? errno : 0, opened_errno) << path;
    struct stat a {
    }, b{};
    if (opened.value() < 0 || walked.value() < 0) continue;
    ASSERT_EQ(fstat(opened.value(), &a) | fstat(walked.value(), &b), 0);
    EXPECT_EQ(a.st_ino, b.st_ino) << path;
  }
}

}  // namespace
}  // namespace stepwell::io
