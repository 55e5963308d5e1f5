// SPDX-License-Identifier: Apache-2.0
#include "db/log/lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include "db/layout.h"
#include "io/open_disk.h"
#include "tests/db/support/forked.h"

namespace stepwell::db {
namespace {

using std::chrono::milliseconds;

// Waits for the end of a process without reaping it: it stays as a zombie.
void WaitForEnd(pid_t pid) {
  siginfo_t info;
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
}

class LockTest : public testing::Test {
 protected:
  void SetUp() override {
    store_ = testing::TempDir() + "stepwell_lock_XXXXXX";
    ASSERT_NE(mkdtemp(store_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(store_); }

  Result<std::unique_ptr<io::File>> Acquire(milliseconds timeout = milliseconds(0)) {
    return AcquireLock(io::LocalFileSystem(), store_, timeout);
  }
  // Holds the lock with a text of our own in it.
  std::unique_ptr<io::File> HoldWithText(std::string_view text) {
    io::FileOpenOptions options;
    options.write = true;
    options.create = true;
    auto file = io::LocalFileSystem()->Open(LockFilePath(store_), options);
    EXPECT_TRUE(file.ok());
    EXPECT_TRUE((*file)->WriteAt(0, AsBytes(text)).ok());
    EXPECT_TRUE((*file)->Truncate(text.size()).ok());
    EXPECT_TRUE((*file)->TryLock(io::LockKind::kExclusive).value());
    return std::move(file).value();
  }
  std::string Text() {
    std::string text(512, '\0');
    const int file = open(LockFilePath(store_).c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t size = read(file, text.data(), text.size());
    close(file);
    text.resize(size < 0 ? 0 : static_cast<size_t>(size));
    return text;
  }

  std::string store_;
};

bool Contains(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST_F(LockTest, SaysWhoHoldsIt) {
  const auto lock = Acquire();
  ASSERT_TRUE(lock.ok()) << lock.status().ToString();
  const std::string text = Text();
  EXPECT_EQ(text.find(StrCat("pid=", getpid(), " boot=")), 0u) << text;
  EXPECT_NE(text.find(" start="), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(LockTest, LongerOldTextIsReplaced) {
  { const auto old = HoldWithText(std::string(200, 'x')); }
  const auto lock = Acquire();
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(Text().find('x'), std::string::npos);
}

TEST_F(LockTest, SecondInOneProcessFailsAtOnce) {
  const auto lock = Acquire();
  ASSERT_TRUE(lock.ok());
  const auto second = Acquire(milliseconds(3'600'000));
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(second.status(), StrCat("process ", getpid(),
                                               " (this one), which has it open "
                                               "already: use that Store object, or close it")))
      << second.status().message();
  EXPECT_TRUE(Contains(second.status(), store_));
}

TEST_F(LockTest, FreeAgainAfterClose) {
  ASSERT_TRUE(Acquire().ok());
  EXPECT_TRUE(Acquire().ok());
}

TEST_F(LockTest, HolderInAnotherProcessIsNamed) {
  const Signal ready;
  const pid_t pid = Fork([&] {
    const auto lock = Acquire();
    ready.Raise();
    pause();
    return lock.ok();
  });
  ready.Wait();
  const auto lock = Acquire(milliseconds(3'600'000));  // not waited for: it lives
  EXPECT_EQ(lock.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(lock.status(), StrCat("process ", pid, ", which is running")));
  Kill(pid);
  EXPECT_TRUE(Acquire().ok());
}

// A process forked from the holder keeps the lock (nothing registered the descriptor).
TEST_F(LockTest, DeadHolderIsWaitedFor) {
  const Signal ready, finish;
  const pid_t holder = Fork([&] {
    const auto lock = Acquire();
    if (fork() == 0) {
      ready.Raise();
      finish.Wait();
      _exit(0);
    }
    return lock.ok();
  });
  ready.Wait();
  WaitForEnd(holder);
  const auto as_zombie = Acquire(milliseconds(50));
  EXPECT_EQ(as_zombie.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(as_zombie.status(), StrCat("process ", holder, " is gone but its lock")));
  EXPECT_EQ(Reap(holder), 0);
  const auto reaped = Acquire(milliseconds(50));
  EXPECT_TRUE(Contains(reaped.status(), "waited 0.05 s")) << reaped.status().message();

  std::thread waiter([&] { EXPECT_TRUE(Acquire(milliseconds(3'600'000)).ok()); });
  finish.Raise();
  waiter.join();
}

TEST_F(LockTest, ReusedPidIsNotTheHolder) {
  std::string text;
  {
    ASSERT_TRUE(Acquire().ok());
    text = Text();
  }
  const auto held = HoldWithText(text.substr(0, text.find("start=")) + "start=1\n");
  const auto lock = Acquire(milliseconds(20));
  EXPECT_TRUE(Contains(lock.status(), "is gone")) << lock.status().message();
}

TEST_F(LockTest, HolderOnAnotherMachine) {
  const auto held = HoldWithText(StrCat("pid=", getpid(), " boot=elsewhere start=1\n"));
  const auto lock = Acquire(milliseconds(20));
  EXPECT_TRUE(Contains(lock.status(), "of another machine")) << lock.status().message();
}

TEST_F(LockTest, TextsThatSayNothingAreADeadHolder) {
  const std::string texts[] = {"",
                               "\n",
                               "pid=",
                               "pid=-4 boot=a start=1\n",
                               "rubbish",
                               "pid=x\n",
                               "pid=999999999999999999999\n",
                               std::string(4096, 'p'),
                               std::string("\0\0\0", 3)};
  for (const std::string& text : texts) {
    const auto held = HoldWithText(text);
    const auto lock = Acquire();
    EXPECT_EQ(lock.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(Contains(lock.status(), "waited")) << lock.status().message();
  }
}

TEST_F(LockTest, NoStoreDirectory) {
  const auto lock = AcquireLock(io::LocalFileSystem(), store_ + "/none", milliseconds(0));
  EXPECT_EQ(lock.status().code(), StatusCode::kNotFound);
}

TEST_F(LockTest, ForkedChildKeepsNothing) {
  const Signal ready, finish;
  const pid_t holder = Fork([&] {
    const auto lock = Acquire();
    CloseInForkedChild(&lock, (*lock)->descriptor());
    if (fork() == 0) {
      ready.Raise();
      finish.Wait();
      _exit(0);
    }
    pause();
    return lock.ok();
  });
  ready.Wait();
  EXPECT_EQ(Acquire().status().code(), StatusCode::kUnavailable);  // the child unlocked nothing
  Kill(holder);
  EXPECT_TRUE(Acquire().ok());  // though the child still sleeps
  finish.Raise();
}

TEST_F(LockTest, ChildHasAHarmlessDescriptorInstead) {
  const auto lock = Acquire();
  const int descriptor = (*lock)->descriptor();
  CloseInForkedChild(&lock, descriptor);
  CloseInForkedChild(&lock, -1);  // of a simulated file: ignored
  const auto is_null_device = [&] {
    struct stat here {
    }, null{};
    return fstat(descriptor, &here) == 0 && stat("/dev/null", &null) == 0 &&
           here.st_rdev == null.st_rdev && S_ISCHR(here.st_mode);
  };
  EXPECT_EQ(Reap(Fork(is_null_device)), 0);
  EXPECT_FALSE(is_null_device());
  ForgetForkDescriptors(&lock);
  EXPECT_NE(Reap(Fork(is_null_device)), 0);
}

TEST_F(LockTest, OwnersAreForgottenOneByOne) {
  const int first = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  const int second = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  CloseInForkedChild(&first, first);
  CloseInForkedChild(&second, second);
  ForgetForkDescriptors(&first);
  EXPECT_EQ(Reap(Fork([&] {
              struct stat one {
              }, two{};
              return fstat(first, &one) == 0 && fstat(second, &two) == 0 && S_ISREG(one.st_mode) &&
                     S_ISCHR(two.st_mode);
            })),
            0);
  ForgetForkDescriptors(&second);
  close(first);
  close(second);
}

TEST_F(LockTest, ForkBesideThreadsThatRegister) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
      CloseInForkedChild(&stop, descriptor);
      ForgetForkDescriptors(&stop);
      close(descriptor);
    }
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Reap(Fork([&] {
                ForgetForkDescriptors(&stop);  // hangs if the mutex was left locked
                return true;
              })),
              0);
  }
  stop = true;
  busy.join();
}

TEST_F(LockTest, UseAfterForkIsNamed) {
  const int pid = getpid();
  EXPECT_TRUE(CheckNotForked(pid).ok());
  EXPECT_EQ(Reap(Fork([&] {
              const Status status = CheckNotForked(pid);
              return status.code() == StatusCode::kFailedPrecondition && Contains(status, "fork");
            })),
            0);
}

}  // namespace
}  // namespace stepwell::db
