// SPDX-License-Identifier: Apache-2.0
#include "io/directory_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/io/support/support.h"

namespace stepwell::io {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::Create;
using testing::TempDir;

constexpr milliseconds kNow{0};
constexpr milliseconds kLong = hours(1);  // a wait that nothing ends is a test that hangs

std::unique_ptr<DirectoryWatch> Watch(const std::string& directory, const std::string& name = "") {
  auto watch = DirectoryWatch::Open(directory, name);
  EXPECT_OK(watch.status());
  return *std::move(watch);
}

TEST(DirectoryWatchTest, TellsOfWritesInPlaceOnceAndOfNoOtherEntry) {
  const TempDir dir;
  const auto file = Create(dir / "a");
  const auto other = Create(dir / "b");
  const auto watch = Watch(dir.path(), "a");
  ASSERT_OK(watch->status());
  EXPECT_FALSE(watch->Wait(kNow));
  ASSERT_OK(file->WriteAt(0, AsBytes("one")));
  ASSERT_OK(file->WriteAt(0, AsBytes("two")));
  EXPECT_TRUE(watch->Wait(kLong));
  EXPECT_FALSE(watch->Wait(kNow));
  ASSERT_OK(other->WriteAt(0, AsBytes("three")));
  EXPECT_FALSE(watch->Wait(kNow));
}

TEST(DirectoryWatchTest, TellsOfNamesThatComeAndGo) {
  const TempDir dir;
  FileSystem* const files = LocalFileSystem();
  const auto watch = Watch(dir.path(), "a");
  const auto all = Watch(dir.path());
  Create(dir / "a.new");
  EXPECT_FALSE(watch->Wait(kNow));
  EXPECT_TRUE(all->Wait(kLong));
  ASSERT_OK(files->Rename(dir / "a.new", dir / "a"));
  EXPECT_TRUE(watch->Wait(kLong));
  ASSERT_OK(files->Remove(dir / "a"));
  EXPECT_TRUE(watch->Wait(kLong));
  ASSERT_OK(files->CreateDirectory(dir / "a"));
  EXPECT_TRUE(watch->Wait(kLong));
  EXPECT_TRUE(all->Wait(kNow));
  EXPECT_FALSE(all->Wait(kNow));
}

TEST(DirectoryWatchTest, TellsOfAWriteUnderWay) {
  const TempDir dir;
  const auto file = Create(dir / "a");
  const auto watch = Watch(dir.path(), "a");
  std::thread writer([&] { EXPECT_OK(file->WriteAt(0, AsBytes("one"))); });
  EXPECT_TRUE(watch->Wait(kLong));
  writer.join();
}

TEST(DirectoryWatchTest, WakeEndsTheWaitUnderWayOrTheNextOne) {
  const TempDir dir;
  const auto watch = Watch(dir.path());
  std::thread waker([&] { watch->Wake(); });
  EXPECT_TRUE(watch->Wait(kLong));
  waker.join();
  EXPECT_FALSE(watch->Wait(kNow));
  watch->Wake();
  watch->Wake();
  EXPECT_TRUE(watch->Wait(kLong));
  EXPECT_FALSE(watch->Wait(kNow));
}

TEST(DirectoryWatchTest, ASignalEndsTheWait) {
  const TempDir dir;
  const auto watch = Watch(dir.path());
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, &before), 0);
  // Again and again: one may come before the wait has begun.
  const itimerval often{{0, 5000}, {0, 5000}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  EXPECT_FALSE(watch->Wait(kLong));
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
}

TEST(DirectoryWatchTest, ADirectoryThatIsRemovedIsToldOnce) {
  const TempDir dir;
  ASSERT_OK(LocalFileSystem()->CreateDirectory(dir / "a"));
  const auto watch = Watch(dir / "a", "file");
  ASSERT_OK(LocalFileSystem()->RemoveDirectory(dir / "a"));
  EXPECT_TRUE(watch->Wait(kLong));
  EXPECT_EQ(watch->status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(watch->Wait(kNow));
  watch->Wake();
  EXPECT_TRUE(watch->Wait(kLong));
}

TEST(DirectoryWatchTest, WithoutWordOfChangesItWaitsAndWakes) {
  const auto watch = Watch("/proc");
  EXPECT_EQ(watch->status().code(), StatusCode::kUnimplemented);
  EXPECT_FALSE(watch->Wait(milliseconds(1)));
  watch->Wake();
  EXPECT_TRUE(watch->Wait(kLong));
}

TEST(DirectoryWatchTest, NoDirectoryIsAnError) {
  const TempDir dir;
  EXPECT_EQ(DirectoryWatch::Open(dir / "a", "").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace stepwell::io
