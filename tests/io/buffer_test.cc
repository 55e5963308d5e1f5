// SPDX-License-Identifier: Apache-2.0
#include "io/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

namespace stepwell::io {
namespace {

TEST(AlignedBufferTest, IsZeroedAlignedAndMoves) {
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{100'000}, (size_t{2} << 20) + 1}) {
    AlignedBuffer buffer(size);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer.size(), size);
    const size_t alignment = size >= (size_t{2} << 20) ? size_t{2} << 20 : 4096;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0U);
    EXPECT_TRUE(std::all_of(buffer.bytes().begin(), buffer.bytes().end(),
                            [](std::byte b) { return b == std::byte{0}; }));
    buffer.bytes().back() = std::byte{7};
    const std::byte* const address = buffer.data();
    AlignedBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.data(), address);
    EXPECT_FALSE(buffer);  // NOLINT(bugprone-use-after-move): empty is promised
    EXPECT_EQ(moved.bytes().back(), std::byte{7});
    AlignedBuffer assigned(16);
    assigned = std::move(moved);
    EXPECT_EQ(assigned.data(), address);
  }
}

TEST(AlignedBufferTest, EmptyWhenThereIsNoMemory) {
  EXPECT_FALSE(AlignedBuffer(0));
  EXPECT_FALSE(AlignedBuffer(SIZE_MAX));
  EXPECT_FALSE(AlignedBuffer(size_t{1} << 60));
  EXPECT_EQ(AlignedBuffer(size_t{1} << 60).size(), 0U);
}

TEST(BufferPoolTest, MakesBlocksLazilyUpToTheBound) {
  BufferPool pool(8192, 3, 0);
  EXPECT_EQ(pool.block_count(), 0U);
  BufferPool::Block* first = pool.Acquire();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->memory.size(), 8192U);
  EXPECT_EQ(first->buffer_index, -1);
  EXPECT_EQ(pool.block_count(), 1U);
  pool.Release(first);
  EXPECT_EQ(pool.Acquire(), first) << "a block that is idle is used before a new one is made";
  EXPECT_EQ(pool.block_count(), 1U);
  std::set<BufferPool::Block*> blocks = {first, pool.TryAcquire(), pool.TryAcquire()};
  EXPECT_EQ(blocks.size(), 3U);
  EXPECT_EQ(pool.in_use(), 3U);
  EXPECT_EQ(pool.TryAcquire(), nullptr);
  for (BufferPool::Block* block : blocks) pool.Release(block);
  EXPECT_EQ(pool.in_use(), 0U);
  EXPECT_EQ(pool.block_count(), 3U);
}

TEST(BufferPoolTest, NoMemoryIsNotNoFreeBlock) {
  BufferPool endless(size_t{1} << 60, 3, 1);
  bool no_memory = false;
  EXPECT_EQ(endless.TryAcquire(&no_memory), nullptr);
  EXPECT_TRUE(no_memory);
  BufferPool pool(4096, 2, 1);
  std::set<BufferPool::Block*> blocks = {pool.TryAcquire(), pool.TryAcquire(&no_memory)};
  EXPECT_FALSE(no_memory);
  EXPECT_EQ(pool.TryAcquire(&no_memory), nullptr);
  EXPECT_FALSE(no_memory) << "one comes back";
  for (BufferPool::Block* block : blocks) pool.Release(block);
}

// `give_back` runs without the lock, so that another thread may release a block meanwhile.
TEST(BufferPoolTest, ABlockReleasedWhileASpareIsAskedForIsTaken) {
  BufferPool pool(4096, 2, 1);
  BufferPool::Block* const one = pool.TryAcquire();
  BufferPool::Block* const other = pool.TryAcquire();
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  pool.SetSpare([&](BufferPool::Spare which) {
    if (which == BufferPool::Spare::kAny) pool.Release(one);
    return false;
  });
  bool no_memory = true;
  EXPECT_EQ(pool.TryAcquire(&no_memory), one);
  EXPECT_FALSE(no_memory);
}

TEST(BufferPoolTest, WhatIsOfNoUseIsTakenBeforeABlockIsMade) {
  BufferPool pool(4096, 8, 1);
  std::vector<BufferPool::Block*> unwanted = {pool.TryAcquireSpare(), pool.TryAcquireSpare()};
  BufferPool::Block* const wanted = pool.TryAcquireSpare();
  pool.SetSpare([&](BufferPool::Spare which) {
    EXPECT_EQ(which, BufferPool::Spare::kUnwanted) << "new blocks may still be made";
    if (unwanted.empty()) return false;
    pool.Release(unwanted.back());
    unwanted.pop_back();
    return true;
  });
  BufferPool::Block* const blocks[] = {pool.Acquire(), pool.TryAcquire(), pool.Acquire()};
  EXPECT_EQ(pool.block_count(), 4U);
  for (BufferPool::Block* block : blocks) {
    ASSERT_NE(block, nullptr);
    EXPECT_NE(block, wanted);
  }
}

// Where the kernel is slow to clear memory, the disk may be done with a block before.
TEST(BufferPoolTest, ABlockReleasedWhileOneIsTouchedIsTaken) {
  constexpr size_t kBlockBytes = size_t{64} << 20;
  bool was_taken = false;
  for (int round = 0; round < 200 && !was_taken; ++round) {
    BufferPool pool(kBlockBytes, 3, 1, std::chrono::nanoseconds(-1));
    BufferPool::Block* const first = pool.TryAcquire();
    ASSERT_NE(first, nullptr);
    std::thread disk([&] {
      while (pool.block_count() < 2) std::this_thread::yield();
      pool.Release(first);
    });
    BufferPool::Block* const taken = pool.Acquire();
    disk.join();
    ASSERT_NE(taken, nullptr);
    EXPECT_EQ(pool.in_use(), 1U);
    EXPECT_EQ(pool.block_count(), 2U);
    was_taken = taken == first;
    BufferPool::Block* const other = pool.TryAcquire();
    EXPECT_NE(other, taken);
    EXPECT_EQ(other == first, taken != first);
  }
  EXPECT_TRUE(was_taken);
}

TEST(BufferPoolTest, ReserveIsOnlyForTryAcquire) {
  BufferPool pool(4096, 3, 2);
  BufferPool::Block* first = pool.Acquire();
  ASSERT_NE(first, nullptr);
  int pumped = 0;
  BufferPool::Block* reserved = nullptr;
  BufferPool::Block* second = pool.Acquire([&] {
    if (++pumped == 1) reserved = pool.TryAcquire();  // an encoder gets one although we wait
    if (pumped == 2) pool.Release(reserved);          // still only the reserve is free
    if (pumped == 3) pool.Release(first);
  });
  EXPECT_NE(reserved, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(pumped, 3);
}

TEST(BufferPoolTest, StopWakesWaitersAndReleaseStillWorks) {
  BufferPool pool(4096, 1, 0);
  BufferPool::Block* block = pool.Acquire();
  std::atomic<int> nulls{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { nulls += pool.Acquire() == nullptr ? 1 : 0; });
  }
  pool.Stop();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(nulls, 3);
  pool.Release(block);
  EXPECT_EQ(pool.Acquire(), nullptr);
  // A task that runs already must be able to end.
  EXPECT_EQ(pool.TryAcquire(), block);
  pool.Release(block);
}

TEST(BufferPoolTest, NullWhenThereIsNoMemory) {
  BufferPool pool(size_t{1} << 60, 2, 0);
  EXPECT_EQ(pool.Acquire(), nullptr);
  EXPECT_EQ(pool.TryAcquire(), nullptr);
  EXPECT_EQ(pool.block_count(), 0U);
}

TEST(BufferPoolTest, ManyThreadsNeverExceedTheBound) {
  BufferPool pool(4096, 4, 1);
  std::atomic<size_t> held{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 2000; ++round) {
        BufferPool::Block* block = i == 0 ? pool.TryAcquire() : pool.Acquire();
        if (block == nullptr) continue;
        if (++held > 4) exceeded = true;
        block->memory.data()[0] = std::byte{1};
        --held;
        pool.Release(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(pool.in_use(), 0U);
  EXPECT_LE(pool.block_count(), 4U);
}

}  // namespace
}  // namespace stepwell::io
