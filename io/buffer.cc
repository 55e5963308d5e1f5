// SPDX-License-Identifier: Apache-2.0
#include "io/buffer.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "io/result.h"

namespace stepwell::io {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr std::chrono::milliseconds kAskInterval{100};

size_t MappedBytes(size_t size_bytes) { return AlignUp(size_bytes, kPageBytes); }

std::byte* Allocate(size_t size_bytes) {
  void* memory = std::aligned_alloc(kPageBytes, size_bytes);
  if (memory != nullptr) std::memset(memory, 0, size_bytes);
  return static_cast<std::byte*>(memory);
}

std::byte* Map(size_t size_bytes) {
  void* memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

// Maps more than wanted and gives the ends back, so that the first huge page begins at byte 0.
std::byte* MapHuge(size_t size_bytes) {
  std::byte* wide = Map(size_bytes + kHugePageBytes);
  if (wide == nullptr) return nullptr;
  const uintptr_t start = reinterpret_cast<uintptr_t>(wide);
  const size_t head = static_cast<size_t>(AlignUp(start, kHugePageBytes) - start);
  if (head != 0) munmap(wide, head);
  const size_t tail = kHugePageBytes - head;
  if (tail != 0) munmap(wide + head + size_bytes, tail);
  // Advice only: without huge pages everything works, with more page faults.
  (void)madvise(wide + head, size_bytes, MADV_HUGEPAGE);
  return wide + head;
}

constexpr int kNodesMax = 1024;  // Linux has MAX_NUMNODES up to 1 << 10
constexpr int kBitsPerWord = 8 * sizeof(unsigned long);

}  // namespace

AlignedBuffer::AlignedBuffer(size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > SIZE_MAX - 2 * kHugePageBytes) return;
  const size_t mapped = MappedBytes(size_bytes);
  data_ = mapped < kMappedBytesMin  ? Allocate(mapped)
          : mapped < kHugePageBytes ? Map(mapped)
                                    : MapHuge(mapped);
  if (data_ != nullptr) size_bytes_ = size_bytes;
}

AlignedBuffer::~AlignedBuffer() {
  const size_t mapped = MappedBytes(size_bytes_);
  if (mapped < kMappedBytesMin) {
    std::free(data_);
  } else {
    munmap(data_, mapped);
  }
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

BufferPool::BufferPool(size_t block_bytes, size_t block_count_max, size_t reserve_count,
                       std::chrono::nanoseconds quick_touch)
    : block_bytes_(block_bytes),
      block_count_max_(block_count_max),
      reserve_count_(reserve_count),
      quick_touch_(quick_touch) {
  STEPWELL_CHECK(reserve_count < block_count_max, "Acquire could never succeed");
}

size_t BufferPool::block_count() const {
  const MutexLock lock(&mutex_);
  return blocks_.size();
}

size_t BufferPool::in_use() const {
  const MutexLock lock(&mutex_);
  return blocks_.size() - idle_.size();
}

// A block, unless only `keep` or fewer would be left to take. Null with more than that left means
// that the kernel has no memory.
BufferPool::Block* BufferPool::TakeLocked(size_t keep) {
  const size_t used = blocks_.size() - idle_.size();
  if (block_count_max_ - used <= keep) return nullptr;
  if (idle_.empty()) {
    auto block = std::make_unique<Block>();
    block->memory = AlignedBuffer(block_bytes_);
    if (!block->memory) return nullptr;
    idle_.reserve(blocks_.size() + 1);  // so that Release never allocates
    blocks_.push_back(std::move(block));
    return blocks_.back().get();
  }
  Block* block = idle_.back();
  idle_.pop_back();
  return block;
}

// True: one was released, which another thread may take first.
bool BufferPool::AskForSpare(Spare which) {
  const std::function<bool(Spare)> give_back = give_back_;
  if (!give_back) return false;
  const MutexUnlock unlocked(&mutex_);
  return give_back(which);
}

// Touches the pages of a block that was just made, for as long as the kernel is slow and no block
// is released. One that was is taken instead, and the new one is idle, the last to be taken.
BufferPool::Block* BufferPool::TouchOrSwap(Block* made) {
  for (size_t offset = 0; offset < block_bytes_; offset += kHugePageBytes) {
    const size_t end = std::min(offset + kHugePageBytes, block_bytes_);
    const auto start = std::chrono::steady_clock::now();
    {
      const MutexUnlock unlocked(&mutex_);
      for (size_t at = offset; at < end; at += kPageBytes) made->memory.data()[at] = std::byte{0};
    }
    if (std::chrono::steady_clock::now() - start <= quick_touch_) break;
    if (idle_.empty()) continue;
    std::swap(made, idle_.back());
    std::rotate(idle_.begin(), idle_.end() - 1, idle_.end());
    break;
  }
  return made;
}

BufferPool::Block* BufferPool::Acquire(const std::function<void()>& pump,
                                       const std::function<bool()>& keep_waiting) {
  const MutexLock lock(&mutex_);
  for (;;) {
    if (stopped_) return nullptr;
    const size_t used = blocks_.size() - idle_.size();
    const bool may_take = block_count_max_ - used > reserve_count_;
    if (may_take && idle_.empty() && AskForSpare(Spare::kUnwanted)) continue;
    const size_t made = blocks_.size();
    if (Block* block = TakeLocked(reserve_count_)) {
      return blocks_.size() == made || pump ? block : TouchOrSwap(block);
    }
    if (AskForSpare(Spare::kAny)) continue;
    if (may_take) return nullptr;  // no memory
    if (pump) {
      const MutexUnlock unlocked(&mutex_);
      pump();
    } else if (!keep_waiting) {
      free_.Wait(&mutex_);
    } else if (!free_.WaitUntil(&mutex_, std::chrono::steady_clock::now() + kAskInterval)) {
      const MutexUnlock unlocked(&mutex_);
      if (!keep_waiting()) return nullptr;
    }
  }
}

bool BufferPool::Prefault(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    {
      const MutexLock lock(&mutex_);
      if (stopped_ || blocks_.size() >= block_count_max_) return false;
    }
    auto block = std::make_unique<Block>();
    block->memory = AlignedBuffer(block_bytes_);
    if (!block->memory) return false;
    std::memset(block->memory.data(), 0, block_bytes_);
    const MutexLock lock(&mutex_);
    if (stopped_ || blocks_.size() >= block_count_max_) return false;
    idle_.reserve(blocks_.size() + 1);
    blocks_.push_back(std::move(block));
    idle_.push_back(blocks_.back().get());
    free_.NotifyOne();
  }
  return true;
}

BufferPool::Block* BufferPool::TryAcquire(bool* no_memory) {
  const MutexLock lock(&mutex_);
  if (idle_.empty()) (void)AskForSpare(Spare::kUnwanted);
  Block* block = TakeLocked(0);
  while (block == nullptr && AskForSpare(Spare::kAny)) block = TakeLocked(0);
  if (block == nullptr) block = TakeLocked(0);  // one may have been released while it was asked for
  const size_t used = blocks_.size() - idle_.size();
  if (no_memory != nullptr) *no_memory = block == nullptr && used < block_count_max_;
  return block;
}

BufferPool::Block* BufferPool::TryAcquireSpare() {
  const MutexLock lock(&mutex_);
  if (stopped_) return nullptr;
  return TakeLocked(std::max(reserve_count_, block_count_max_ / 4));
}

void BufferPool::SetSpare(std::function<bool(Spare)> give_back) {
  const MutexLock lock(&mutex_);
  give_back_ = std::move(give_back);
}

void BufferPool::Release(Block* block) {
  {
    const MutexLock lock(&mutex_);
    STEPWELL_CHECK(idle_.size() < blocks_.size(), "a block was released twice");
    idle_.push_back(block);
  }
  free_.NotifyOne();
}

void BufferPool::Stop() {
  {
    const MutexLock lock(&mutex_);
    stopped_ = true;
  }
  free_.NotifyAll();
}

int NumaNodeOfPciDevice(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::ifstream file(StrCat("/sys/bus/pci/devices/", bus_id, "/numa_node"));
  int node = -1;
  return file >> node && node >= 0 && node < kNodesMax ? node : -1;
}

Status PreferNumaNode(MutableBytes memory, int node) {
  if (node < 0 || node >= kNodesMax) return InvalidArgumentError(StrCat("no NUMA node ", node));
  unsigned long nodes[kNodesMax / kBitsPerWord] = {};
  nodes[node / kBitsPerWord] = 1UL << (node % kBitsPerWord);
  if (syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, nodes, kNodesMax + 1, 0) ==
      0) {
    return OkStatus();
  }
  const int os_error = errno;  // before anything else can change it
  return ErrnoStatus(os_error, StrCat("preferring NUMA node ", node));
}

}  // namespace stepwell::io
