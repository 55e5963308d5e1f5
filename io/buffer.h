// SPDX-License-Identifier: Apache-2.0
// Aligned memory and the bounded pool of equal blocks that every byte of a save passes through.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/bytes.h"
#include "io/disk.h"
#include "io/mutex.h"

namespace stepwell::io {

// Move-only, zeroed, page-aligned memory, anonymous but for small ones; asks for huge pages from 2
// MiB on. Empty when the kernel has no memory to give.
class AlignedBuffer {
 public:
  // From this size on a buffer is a mapping of its own. Smaller ones come from the heap: two system
  // calls and the page faults cost more than reading a frame of one page does.
  static constexpr size_t kMappedBytesMin = size_t{128} << 10;

  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size_bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_bytes_; }
  MutableBytes bytes() { return {data_, size_bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// At most `block_count_max` blocks of `block_bytes`, made when first needed and then kept.
// Thread-safe. The last `reserve_count` blocks are only for TryAcquire, so that background encoders
// always make progress while callers wait.
class BufferPool {
 public:
  static constexpr std::chrono::nanoseconds kQuickTouch = std::chrono::microseconds(500);

  struct Block {
    AlignedBuffer memory;
    int buffer_index = -1;  // of Disk::RegisterBuffer, set by the engine
  };

  // The kernel is slow if it takes longer than `quick_touch` for 2 MiB.
  BufferPool(size_t block_bytes, size_t block_count_max, size_t reserve_count,
             std::chrono::nanoseconds quick_touch = kQuickTouch);

  size_t block_bytes() const { return block_bytes_; }
  size_t block_count_max() const { return block_count_max_; }
  // Blocks made so far: the memory held is at most block_count_max * block_bytes.
  size_t block_count() const;
  size_t in_use() const;

  // Waits for a block. While none is free, `pump` (if any) is called instead of sleeping: the
  // simulation runs the engine there; else `keep_waiting` (if any) is asked about every 100 ms.
  // Null after Stop(), when the kernel has no memory, or when `keep_waiting` said false.
  // A new block whose pages the kernel is slow to clear is left, without a pump, for one that is
  // released meanwhile: the disk may be faster.
  Block* Acquire(const std::function<void()>& pump = {},
                 const std::function<bool()>& keep_waiting = {});
  // Makes up to `count` free blocks, within the bound, and touches their pages: a later taker
  // does not wait for the kernel to clear them. False when no more can be made.
  bool Prefault(size_t count);
  // Null when none is free now. Goes on after Stop(), so that what runs already can end.
  // `no_memory`: whether the kernel has none for another block, so that none may ever be free.
  Block* TryAcquire(bool* no_memory = nullptr);
  // As TryAcquire, for what may be given back at any time: leaves a quarter of the blocks to
  // others, and asks nobody for memory.
  Block* TryAcquireSpare();
  // `give_back` is called, without a lock, when no block is free: it releases one that was taken
  // with TryAcquireSpare, or says false. kUnwanted: one of no use to its holder, before a new block
  // is made; kAny: before a taker waits. It must not be in a call any more when another one is set.
  enum class Spare { kUnwanted, kAny };
  void SetSpare(std::function<bool(Spare)> give_back);
  void Release(Block* block);
  // Wakes every waiter with null; used by freeze and close. Release still works.
  void Stop();

 private:
  Block* TakeLocked(size_t keep) STEPWELL_REQUIRES(mutex_);
  bool AskForSpare(Spare which) STEPWELL_REQUIRES(mutex_);
  Block* TouchOrSwap(Block* made) STEPWELL_REQUIRES(mutex_);

  const size_t block_bytes_;
  const size_t block_count_max_;
  const size_t reserve_count_;
  const std::chrono::nanoseconds quick_touch_;
  mutable Mutex mutex_;
  CondVar free_;
  std::vector<std::unique_ptr<Block>> blocks_ STEPWELL_GUARDED_BY(mutex_);
  std::vector<Block*> idle_ STEPWELL_GUARDED_BY(mutex_);
  std::function<bool(Spare)> give_back_ STEPWELL_GUARDED_BY(mutex_);
  bool stopped_ STEPWELL_GUARDED_BY(mutex_) = false;
};

// ---- memory on the NUMA node of a device ----

// The node that a PCI device ("0000:65:00.0", in any case) is attached to; -1 when the machine does
// not say, as those with one node do. Where Linux keeps it: /sys/bus/pci/devices/*/numa_node.
int NumaNodeOfPciDevice(std::string bus_id);

// Has the kernel take pages of `memory` (a mapping of its own, not yet written to) from `node`, or
// from another when that has none left (mbind(2), MPOL_PREFERRED). An error of the system where the
// kernel has no NUMA (ENOSYS), a container forbids it (EPERM), or there is no such node (EINVAL).
Status PreferNumaNode(MutableBytes memory, int node);

}  // namespace stepwell::io
