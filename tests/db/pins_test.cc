// SPDX-License-Identifier: Apache-2.0
#include "db/log/pins.h"

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
#include <vector>

#include "db/layout.h"
#include "io/open_disk.h"
#include "tests/db/support/forked.h"

namespace stepwell::db {
namespace {

using io::LockKind;

constexpr uid_t kNobody = 65534;

// The file that this process makes for a pin with this id.
std::string PinName(int id) { return StrCat("000000000000000", id, "-", getpid()); }

class PinsTest : public testing::Test {
 protected:
  void SetUp() override {
    store_ = testing::TempDir() + "stepwell_pins_XXXXXX";
    ASSERT_NE(mkdtemp(store_.data()), nullptr);
  }
  void TearDown() override {
    chmod(store_.c_str(), 0700);
    std::filesystem::remove_all(store_);
  }

  io::FileSystem* files() { return io::LocalFileSystem(); }
  Result<std::unique_ptr<ReaderPin>> Create(uint64_t id) {
    return ReaderPin::Create(files(), store_, id);
  }
  static constexpr int64_t kAll = -2;
  // The lowest; -1: no reader; kAll: everything is kept.
  int64_t Lowest() {
    const auto reclaim = ReclaimLock::Acquire(files(), store_, LockKind::kExclusive);
    EXPECT_TRUE(reclaim.ok());
    const auto pins = ReadPins(files(), store_);
    EXPECT_TRUE(pins.ok()) << pins.status().ToString();
    if (!pins.ok() || pins->unknown) return kAll;
    return pins->commits.empty() ? -1 : static_cast<int64_t>(pins->commits.front());
  }
  size_t PinFiles() { return files()->List(ReadersPath(store_)).value().size(); }
  void WritePin(const std::string& name, std::string_view text) {
    io::FileOpenOptions options;
    options.write = true;
    options.create = true;
    const auto file = files()->Open(ReadersPath(store_) + "/" + name, options);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->WriteAt(0, AsBytes(text)).ok());
  }

  std::string store_;
};

TEST_F(PinsTest, NoReaders) {
  EXPECT_EQ(Lowest(), -1);  // not even the directory
  ASSERT_TRUE(Create(1).ok());
  EXPECT_EQ(Lowest(), -1);
}

TEST_F(PinsTest, OwnPinsCount) {
  const auto pin = Create(1);
  ASSERT_TRUE(pin.ok()) << pin.status().ToString();
  EXPECT_EQ(Lowest(), kAll);  // being made
  ASSERT_TRUE((*pin)->Set(7).ok());
  EXPECT_EQ(Lowest(), 7);
  ASSERT_TRUE((*pin)->Set(12).ok());
  EXPECT_EQ(Lowest(), 12);
  ASSERT_TRUE((*pin)->Set(3).ok());
  EXPECT_EQ(Lowest(), 3);
}

TEST_F(PinsTest, LowestOfMany) {
  auto high = Create(UINT64_MAX);
  ASSERT_TRUE((*high)->Set(UINT64_MAX / 2).ok());
  {
    const auto low = Create(0);
    ASSERT_TRUE((*low)->Set(5).ok());
    EXPECT_EQ(Lowest(), 5);
  }
  EXPECT_EQ(Lowest(), static_cast<int64_t>(UINT64_MAX / 2));
  EXPECT_EQ(PinFiles(), 1u);
}

TEST_F(PinsTest, AllOfThemAreRead) {
  std::vector<std::unique_ptr<ReaderPin>> pins;
  for (const uint64_t commit : {9U, 3U, 0U, 9U, 5U}) {
    auto pin = Create(pins.size());
    ASSERT_TRUE(pin.ok()) << pin.status().ToString();
    ASSERT_TRUE((*pin)->Set(commit).ok());
    pins.push_back(std::move(*pin));
  }
  EXPECT_EQ(ReadPins(files(), store_).value(), (ReaderPins{{0, 3, 5, 9}, false}));
  ASSERT_TRUE(pins[1]->Rest().ok());  // still open
  EXPECT_EQ(ReadPins(files(), store_).value(), (ReaderPins{{0, 5, 9}, false}));
  ASSERT_TRUE(pins[1]->Set(7).ok());
  const auto being_made = Create(99);
  EXPECT_EQ(ReadPins(files(), store_).value(), (ReaderPins{{0, 5, 7, 9}, true}));
}

TEST_F(PinsTest, TakenIdIsRefused) {
  const auto pin = Create(1);
  EXPECT_EQ(Create(1).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Lowest(), kAll);
}

TEST_F(PinsTest, ReaderInAnotherProcess) {
  const Signal ready;
  const pid_t pid = Fork([&] {
    const auto pin = Create(1);
    const bool set = pin.ok() && (*pin)->Set(9).ok();
    ready.Raise();
    pause();
    return set;
  });
  ready.Wait();
  EXPECT_EQ(Lowest(), 9);
  Kill(pid);
  EXPECT_EQ(PinFiles(), 1u);  // nobody tidied up
  EXPECT_EQ(Lowest(), -1);
  EXPECT_EQ(PinFiles(), 0u);
}

TEST_F(PinsTest, TextsThatAreNoCommitKeepEverything) {
  const auto pin = Create(1);
  ASSERT_TRUE((*pin)->Set(7).ok());
  const std::string name = PinName(1);
  for (const std::string_view text :
       {"0000000000000000000x\n", "99999999999999999999\n", "-0000000000000000007\n"}) {
    WritePin(name, text);
    EXPECT_EQ(Lowest(), kAll) << text;
  }
  ASSERT_TRUE((*pin)->Set(7).ok());
  EXPECT_EQ(truncate((ReadersPath(store_) + "/" + name).c_str(), 20), 0);
  EXPECT_EQ(Lowest(), kAll);
}

TEST_F(PinsTest, DeadFilesOfAnyTextAreRemoved) {
  ASSERT_TRUE(Create(1).ok());
  WritePin("dead", "00000000000000000004\n");
  WritePin("empty", "");
  WritePin("rubbish", "rubbish");
  EXPECT_EQ(Lowest(), -1);
  EXPECT_EQ(PinFiles(), 0u);
}

TEST_F(PinsTest, OrphanedChildOfAReaderPinsNothing) {
  const Signal ready, finish;
  const pid_t reader = Fork([&] {
    const auto pin = Create(1);
    if (fork() == 0) {
      ready.Raise();
      finish.Wait();
      _exit(0);
    }
    pause();
    return pin.ok();
  });
  ready.Wait();
  EXPECT_EQ(Lowest(), kAll);
  Kill(reader);
  EXPECT_EQ(Lowest(), -1);
  finish.Raise();
}

TEST_F(PinsTest, ForkedChildThatTidiesUpLeavesThePinAlone) {
  auto pin = Create(1);
  ASSERT_TRUE((*pin)->Set(4).ok());
  EXPECT_EQ(Reap(Fork([&] {
              std::move(pin).value().reset();
              return true;
            })),
            0);
  EXPECT_EQ(PinFiles(), 1u);
  EXPECT_EQ(Lowest(), 4);
}

TEST_F(PinsTest, SharedReclaimLocksLiveTogetherAndKeepExclusiveOut) {
  auto one = ReclaimLock::Acquire(files(), store_, LockKind::kShared);
  auto two = ReclaimLock::Acquire(files(), store_, LockKind::kShared);
  ASSERT_TRUE(one.ok() && two.ok());
  std::atomic<bool> released{false};
  std::thread exclusive([&] {
    const auto lock = ReclaimLock::Acquire(files(), store_, LockKind::kExclusive);
    EXPECT_TRUE(lock.ok());
    EXPECT_TRUE(released);
  });
  one.value().reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  released = true;
  two.value().reset();
  exclusive.join();
}

TEST_F(PinsTest, ExclusiveReclaimOfAnotherProcessKeepsSharedOut) {
  const Signal ready;
  const pid_t pid = Fork([&] {
    const auto lock = ReclaimLock::Acquire(files(), store_, LockKind::kExclusive);
    ready.Raise();
    pause();
    return lock.ok();
  });
  ready.Wait();
  std::atomic<bool> killed{false};
  std::thread shared([&] {
    const auto lock = ReclaimLock::Acquire(files(), store_, LockKind::kShared);
    EXPECT_TRUE(lock.ok());
    EXPECT_TRUE(killed);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  killed = true;
  Kill(pid);
  shared.join();
}

// Readers come and go beside passes of reclaim that take unlocked files for dead ones.
TEST_F(PinsTest, PinsMadeBesideReclaimHold) {
  std::atomic<bool> stop{false};
  std::thread reclaim([&] {
    while (!stop) Lowest();
  });
  std::vector<std::thread> readers;
  for (uint64_t reader = 1; reader <= 2; ++reader) {
    readers.emplace_back([&, reader] {
      for (uint64_t i = 0; i < 100; ++i) {
        const auto pin = Create(reader);
        ASSERT_TRUE(pin.ok()) << pin.status().ToString();
        {
          const auto lock = ReclaimLock::Acquire(files(), store_, LockKind::kShared);
          ASSERT_TRUE((*pin)->Set(reader).ok());
        }
        const int64_t lowest = Lowest();
        // The other one may just be made.
        ASSERT_TRUE(lowest == kAll || lowest > 0) << lowest;
        ASSERT_LE(lowest, static_cast<int64_t>(reader));
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  stop = true;
  reclaim.join();
  EXPECT_EQ(Lowest(), -1);
  EXPECT_EQ(PinFiles(), 0u);
}

// Becomes a user without rights here. (root has all rights.)
bool DropRights() { return getuid() != 0 || setuid(kNobody) == 0; }

TEST_F(PinsTest, WithoutWriteAccess) {
  ASSERT_EQ(chmod(store_.c_str(), 0555), 0);
  EXPECT_EQ(Reap(Fork([&] {
              return DropRights() && Create(1).status().code() == StatusCode::kPermissionDenied &&
                     ReclaimLock::Acquire(files(), store_, LockKind::kShared).status().code() ==
                         StatusCode::kPermissionDenied;
            })),
            0);
}

TEST_F(PinsTest, PinsOfAnotherUserCount) {
  const auto pin = Create(1);
  ASSERT_TRUE((*pin)->Set(6).ok());
  WritePin("dead", "00000000000000000002\n");
  const std::string path = ReadersPath(store_) + "/" + PinName(1);
  ASSERT_EQ(chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(chmod((ReadersPath(store_) + "/dead").c_str(), 0444), 0);
  ASSERT_EQ(chmod(store_.c_str(), 0755), 0);
  EXPECT_EQ(Reap(Fork([&] {
              if (!DropRights()) return false;
              const auto pins = ReadPins(files(), store_);
              return pins.ok() && *pins == ReaderPins{{6}, false};
            })),
            0);
}

}  // namespace
}  // namespace stepwell::db
