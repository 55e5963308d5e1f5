// SPDX-License-Identifier: Apache-2.0
#include "io/executor.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <latch>
#include <string>

#include "io/clock.h"

namespace stepwell::io {
namespace {

TEST(ThreadPoolTest, DestructorRunsWhatIsQueued) {
  std::atomic<int> ran{0};
  {
    const std::unique_ptr<Executor> pool = MakeThreadPool(3);
    EXPECT_EQ(pool->parallelism(), 3U);
    for (int i = 0; i < 1000; ++i) pool->Run([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadPoolTest, RunsThatManyTasksAtOnce) {
  std::latch together(2);
  const std::unique_ptr<Executor> pool = MakeThreadPool(2);
  for (int i = 0; i < 2; ++i) pool->Run([&] { together.arrive_and_wait(); });
  together.wait();  // hangs if there were only one thread
}

TEST(ThreadPoolTest, TasksMayQueueTasks) {
  std::atomic<int> ran{0};
  {
    const std::unique_ptr<Executor> pool = MakeThreadPool(1);
    Executor* const executor = pool.get();
    executor->Run([&ran, executor] { executor->Run([&ran] { ++ran; }); });
  }
  EXPECT_EQ(ran, 1);
}

TEST(ThreadPoolTest, ThreadsHaveNames) {
  std::string name(16, '\0');
  {
    const std::unique_ptr<Executor> pool = MakeThreadPool(0);
    EXPECT_EQ(pool->parallelism(), 1U);
    pool->Run([&] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  }
  EXPECT_STREQ(name.c_str(), "stepwell-0");
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
