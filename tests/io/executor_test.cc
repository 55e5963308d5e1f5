// SPDX-License-Identifier: Apache-2.0
#include "io/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "io/clock.h"
#include "io/guard.h"
#include "io/thread.h"

namespace stepwell::io {
namespace {

TEST(ThreadPoolTest, DestructorRunsWhatIsQueued) {
  std::atomic<int> ran{0};
  {
    const std::unique_ptr<Executor> pool = *MakeThreadPool(3);
    EXPECT_EQ(pool->parallelism(), 3U);
    for (int i = 0; i < 1000; ++i) pool->Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadPoolTest, RunsThatManyTasksAtOnce) {
  std::latch together(2);
  const std::unique_ptr<Executor> pool = *MakeThreadPool(2);
  for (int i = 0; i < 2; ++i) pool->Run([&] { together.arrive_and_wait(); });
  together.wait();  // hangs if there were only one thread
}

TEST(ThreadPoolTest, TasksMayQueueTasks) {
  std::atomic<int> ran{0};
  {
    const std::unique_ptr<Executor> pool = *MakeThreadPool(1);
    Executor* const executor = pool.get();
    executor->Run([&ran, executor] { executor->Run([&ran] { ++ran; }); });
  }
  EXPECT_EQ(ran, 1);
}

TEST(ThreadPoolTest, ThreadsHaveNames) {
  std::string name(16, '\0');
  {
    const std::unique_ptr<Executor> pool = *MakeThreadPool(0);
    EXPECT_EQ(pool->parallelism(), 1U);
    pool->Run([&] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  }
  EXPECT_STREQ(name.c_str(), "stepwell");
}

TEST(ThreadPoolTest, FewerThreadsDoAndNoneIsAnError) {
  for (int given : {0, 1, 2, 3}) {
    int left = given;
    SetThreadStartHook([&left] { return left-- > 0; });
    const auto pool = MakeThreadPool(3);
    SetThreadStartHook({});
    ASSERT_EQ(pool.ok(), given > 0);
    if (pool.ok()) {
      EXPECT_EQ((*pool)->parallelism(), static_cast<size_t>(given));
      continue;
    }
    EXPECT_THAT(pool.status().message(), ::testing::HasSubstr("RLIMIT_NPROC"));
    EXPECT_EQ(pool.status().os_error(), EAGAIN);
  }
}

TEST(TaskScopeTest, WaitsForItsOwnTasksAndForWhatTheyCaptured) {
  std::latch others(1);  // the pool's thread may still be in its wait() when the test ends
  const std::shared_ptr<Executor> pool = *MakeThreadPool(2);
  pool->Run([&] { others.wait(); });  // of somebody else: not waited for
  TaskScope scope(pool);
  scope.Wait();  // for nothing
  std::atomic<bool> gone{false};
  struct Slow {
    explicit Slow(std::atomic<bool>* flag) : gone(flag) {}
    ~Slow() {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      *gone = true;
    }
    std::atomic<bool>* gone;
  };
  scope.Run([&scope, captured = std::make_shared<Slow>(&gone)]() mutable {
    scope.Run([captured = std::move(captured)] {});  // tasks of tasks count, too
  });
  scope.Wait();
  EXPECT_TRUE(gone);
  others.count_down();
}

TEST(ThreadPoolTest, ThreadsOfLowPriorityYieldAndTheCallerKeepsItsOwn) {
  const int own = getpriority(PRIO_PROCESS, 0);
  std::vector<int> seen;
  for (const ThreadPriority priority : {ThreadPriority::kNormal, ThreadPriority::kLow}) {
    auto pool = MakeThreadPool(1, "test", priority);
    ASSERT_TRUE(pool.ok());
    (*pool)->Run([&] { seen.push_back(getpriority(PRIO_PROCESS, 0)); });
    pool->reset();  // runs what is queued
  }
  EXPECT_EQ(seen, (std::vector<int>{own, std::min(own + 5, 19)}));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST(GuardedTest, WhatIsThrownIsAnError) {
  EXPECT_TRUE(Guarded("work", [] { return OkStatus(); }).ok());
  const Status memory = Guarded("work", []() -> Status { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(memory.message(), "no memory to work");
  const Status other = Guarded("work", []() -> Status { throw std::runtime_error("broken"); });
  EXPECT_EQ(other.code(), StatusCode::kInternal);
  EXPECT_EQ(other.message(), "cannot work: broken");
}

TEST(InlineExecutorTest, RunsBeforeReturning) {
  InlineExecutor executor;
  bool ran = false;
  executor.Run([&] { ran = true; });
  EXPECT_TRUE(ran);
  EXPECT_EQ(executor.parallelism(), 1U);
}

TEST(ClockTest, MonotonicNeverGoesBackAndWallIsThisCentury) {
  Clock* const clock = SystemClock();
  const int64_t before = clock->MonotonicNanos();
  EXPECT_GE(clock->MonotonicNanos(), before);
  EXPECT_GT(clock->WallNanos(), int64_t{1'600'000'000} * 1'000'000'000);
}

}  // namespace
}  // namespace stepwell::io
