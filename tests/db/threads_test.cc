// SPDX-License-Identifier: Apache-2.0
// A machine that has no threads, or no memory, to give: the open says so, leaves nothing behind,
// and works once there are some. A watchdog ends what hangs.
#include <gmock/gmock.h>
#include <unistd.h>

#include <tuple>

#include "db/view/view.h"
#include "io/thread.h"
#include "tests/db/support/process_support.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr unsigned kHangSeconds = 120;

class StarvedTest : public ::testing::TestWithParam<std::string> {
 protected:
  StarvedTest() { std::filesystem::permissions(dir_.path(), std::filesystem::perms::all); }

  // Returns the lines that a process prints when it has only this much.
  std::vector<std::string> Run(const std::string& what, uint64_t limit) {
    const std::string path = dir_ / StrCat(what, limit);
    ChildProcess child(
        {STEPWELL_STORE_CHILD, "starved", path, GetParam(), what, std::to_string(limit)});
    std::vector<std::string> lines = child.Rest();
    const int status = child.Wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    return lines;
  }

  TempDir dir_;
};

TEST_P(StarvedTest, WithoutThreadsTheOpenFailsAndTheNextOneWorks) {
  size_t refused = 0;
  for (uint64_t limit = 1; limit <= 13; ++limit) {
    SCOPED_TRACE(limit);
    const auto lines = Run("threads", limit);
    ASSERT_EQ(lines.size(), 3U) << (lines.empty() ? "" : lines.back());
    if (lines[0] != "saved") {
      ++refused;
      EXPECT_THAT(lines[0], HasSubstr("cannot be started"));
      EXPECT_THAT(lines[0], HasSubstr(StrCat("RLIMIT_NPROC is ", limit)));
      EXPECT_THAT(lines[0], HasSubstr("raise it"));
    }
    // The main thread, and the one for callbacks, which the process keeps.
#if defined(STEPWELL_TSAN)  // and its own
    EXPECT_THAT(lines[1], AnyOf("threads 1", "threads 2", "threads 3"));
#else
    EXPECT_THAT(lines[1], AnyOf("threads 1", "threads 2"));
#endif
    EXPECT_EQ(lines[2], "done");
  }
  EXPECT_GE(refused, 5U);
}

// Address sanitizers reserve more address space than any limit.
#if !defined(STEPWELL_ASAN) && !defined(STEPWELL_TSAN)
TEST_P(StarvedTest, WithoutMemoryTheOpenFailsAndTheNextOneWorks) {
  size_t refused = 0;
  for (uint64_t mib = 1; mib <= 97; mib += 12) {
    SCOPED_TRACE(mib);
    const auto lines = Run("memory", mib << 20);
    ASSERT_EQ(lines.size(), 3U) << (lines.empty() ? "" : lines.back());
    if (lines[0] != "saved") ++refused;
    // The third is RocksDB's timer, of an index that was given up after an exception in it.
    EXPECT_THAT(lines[1], AnyOf("threads 1", "threads 2", "threads 3"));
    EXPECT_EQ(lines[2], "done");
  }
  EXPECT_GE(refused, 3U);
}
#endif

INSTANTIATE_TEST_SUITE_P(Disks, StarvedTest, ::testing::Values("uring", "posix"),
                         [](const auto& param) { return param.param; });

// In this process, every start of a thread in turn: once, or it and all behind it.
class ThreadStartTest : public ::testing::TestWithParam<std::tuple<io::DiskKind, bool>> {
 protected:
  ThreadStartTest() { alarm(kHangSeconds); }
  ~ThreadStartTest() override {
    alarm(0);
    io::SetThreadStartHook({});
  }

  // From now on the start with this number fails, or it and all behind it.
  void FailAt(size_t number) {
    starts_ = 0;
    io::SetThreadStartHook([this, number] {
      const size_t start = starts_++;
      return std::get<1>(GetParam()) ? start != number : start < number;
    });
  }

  TempDir dir_;
  std::atomic<size_t> starts_{0};
};

TEST_P(ThreadStartTest, NoneOfThemLeavesAnythingBehind) {
  StoreOptions options;
  options.disk = std::get<0>(GetParam());
  options.threads = 2;
  const std::string path = dir_ / "run";
  size_t refused = 0;
  uint64_t step = 0;
  bool all = false;
  for (size_t number = 0; !all; ++number) {
    SCOPED_TRACE(number);
    ASSERT_LT(number, 40U);
    FailAt(number);
    {
      auto store = Store::Open(path, options);
      if (store.ok()) {
        auto view = OpenView(**store, dir_ / "view", {});
        all = view.ok() && starts_ <= number;
        if (!view.ok()) {
          EXPECT_THAT(view.status().message(), HasSubstr("cannot be started"));
        }
        EXPECT_OK(SaveSeeded(store->get(), step, step, SmallState())->Wait());
        ++step;
        EXPECT_OK((*store)->Close());
      } else {
        ++refused;
        EXPECT_THAT(store.status().message(), HasSubstr("cannot be started"));
        EXPECT_NE(store.status().code(), StatusCode::kUnavailable);
      }
    }
    io::SetThreadStartHook({});
    auto again = Store::Open(path, options);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_OK(SaveSeeded(again->get(), step, step, SmallState())->Wait());
    EXPECT_OK(CheckSeeded(again->get(), step, step, SmallState()));
    ++step;
    EXPECT_OK((*again)->Close());
  }
  EXPECT_GE(refused, 4U);
}

INSTANTIATE_TEST_SUITE_P(
    Disks, ThreadStartTest,
    ::testing::Combine(::testing::Values(io::DiskKind::kUring, io::DiskKind::kPosix),
                       ::testing::Bool()),
    [](const auto& param) {
      return std::string(std::get<0>(param.param) == io::DiskKind::kUring ? "Uring" : "Posix") +
             (std::get<1>(param.param) ? "Once" : "ForEver");
    });

}  // namespace
}  // namespace stepwell::db
