// SPDX-License-Identifier: Apache-2.0
#include "io/for_each.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <memory>
#include <vector>

namespace stepwell::io {
namespace {

TEST(ForEachTest, EachIndexOnceOnSeveralThreads) {
  const std::unique_ptr<Executor> pool = *MakeThreadPool(3);
  ASSERT_EQ(ThreadsOfForEach(*pool), 4U);
  for (const size_t count : {0U, 1U, 2U, 1000U}) {
    std::vector<std::atomic<int>> calls(count);
    std::array<std::atomic<int>, 4> on_thread{};
    ForEach(pool.get(), count, [&](size_t i, size_t thread) {
      EXPECT_EQ(++on_thread[thread], 1) << "two calls at once have the number " << thread;
      ++calls[i];
      --on_thread[thread];
    });
    for (const auto& each : calls) EXPECT_EQ(each, 1);
  }
}

TEST(ForEachTest, TheExecutorHelps) {
  const std::unique_ptr<Executor> pool = *MakeThreadPool(1);
  std::latch together(2);
  ForEach(pool.get(), 2, [&](size_t, size_t) { together.arrive_and_wait(); });
}

TEST(ForEachTest, ABusyExecutorIsNotWaitedFor) {
  std::latch busy(1);
  const std::unique_ptr<Executor> pool = *MakeThreadPool(1);
  pool->Run([&] { busy.wait(); });
  int calls = 0;
  ForEach(pool.get(), 10, [&](size_t, size_t) { ++calls; });
  EXPECT_EQ(calls, 10);
  busy.count_down();
}

}  // namespace
}  // namespace stepwell::io
