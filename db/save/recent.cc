// SPDX-License-Identifier: Apache-2.0
#include "db/save/recent.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/invariant.h"

namespace stepwell::db {

RecentChunks::Block::~Block() {
  if (memory != nullptr) pool->Release(memory);
}

RecentChunks::RecentChunks(io::BufferPool* pool) : pool_(pool) {
  pool_->SetSpare([this](io::BufferPool::Spare which) { return GiveBack(which); });
}

RecentChunks::~RecentChunks() { pool_->SetSpare({}); }

void RecentChunks::Keep(const format::Hash128& hash, ConstBytes bytes, const format::Hash128& old) {
  std::shared_ptr<Block> block;
  size_t offset = 0;
  {
    const io::MutexLock lock(&mutex_);
    if (old != hash) Unwant(old);
    if (const auto it = entries_.find(hash); it != entries_.end()) {
      if (!std::exchange(it->second.wanted, true)) ++it->second.block->wanted;
      return;
    }
    block = BlockFor(bytes.size());
    if (block == nullptr) return;
    offset = std::exchange(block->used_bytes, block->used_bytes + bytes.size());
  }
  std::memcpy(block->memory->memory.data() + offset, bytes.data(), bytes.size());
  const io::MutexLock lock(&mutex_);
  // The block may have been given back meanwhile, or another thread has kept the same bytes.
  if (block->removed || !entries_.try_emplace(hash, Entry{block, offset, bytes.size()}).second)
    return;
  block->hashes.push_back(hash);
  ++block->wanted;
}

void RecentChunks::LetGo(const format::Hash128& hash) {
  const io::MutexLock lock(&mutex_);
  Unwant(hash);
}

void RecentChunks::Unwant(const format::Hash128& hash) {
  const auto it = entries_.find(hash);
  if (it == entries_.end() || !std::exchange(it->second.wanted, false)) return;
  STEPWELL_DCHECK(it->second.block->wanted > 0, "a block's chunks were counted wrongly");
  --it->second.block->wanted;
}

// The newest block with room for so many bytes. A new one is the oldest of which nothing is wanted,
// read or written any more. While those are fewer than the others it is taken from memory that no
// save needs: saves that are under way together may have the base before.
std::shared_ptr<RecentChunks::Block> RecentChunks::BlockFor(size_t bytes) {
  if (bytes > pool_->block_bytes()) return nullptr;
  if (!blocks_.empty() && blocks_.back()->used_bytes + bytes <= pool_->block_bytes()) {
    return blocks_.back();
  }
  auto block = std::make_shared<Block>(pool_);
  const auto unwanted = static_cast<size_t>(std::count_if(
      blocks_.begin(), blocks_.end(), [](const auto& kept) { return kept->wanted == 0; }));
  if (2 * unwanted <= blocks_.size()) block->memory = pool_->TryAcquireSpare();
  for (size_t i = 0; block->memory == nullptr && i < blocks_.size(); ++i) {
    if (!IsFree(blocks_[i])) continue;
    const std::shared_ptr<Block> old = Remove(i);
    block->memory = std::exchange(old->memory, nullptr);
  }
  if (block->memory == nullptr) block->memory = pool_->TryAcquireSpare();
  if (block->memory == nullptr) return nullptr;
  blocks_.push_back(block);
  return block;
}

std::shared_ptr<RecentChunks::Block> RecentChunks::Remove(size_t index) {
  std::shared_ptr<Block> block = std::move(blocks_[index]);
  blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(index));
  block->removed = true;
  for (const format::Hash128& hash : block->hashes) entries_.erase(hash);
  return block;
}

RecentChunks::Held RecentChunks::Find(const format::Hash128& hash, size_t length_bytes) const {
  const io::MutexLock lock(&mutex_);
  const auto it = entries_.find(hash);
  if (it == entries_.end() || it->second.length_bytes != length_bytes) return {};
  const Entry& entry = it->second;
  return {{entry.block->memory->memory.data() + entry.offset_bytes, entry.length_bytes},
          entry.block};
}

bool RecentChunks::IsFree(const std::shared_ptr<Block>& block) const {
  const auto held = static_cast<long>(1 + block->hashes.size());
  return block->wanted == 0 && block.use_count() <= held;
}

bool RecentChunks::GiveBack(io::BufferPool::Spare which) {
  std::shared_ptr<Block> given;  // released after the lock is given back
  const io::MutexLock lock(&mutex_);
  const bool unwanted_only = which == io::BufferPool::Spare::kUnwanted;
  size_t index = 0;
  while (index < blocks_.size() &&
         (unwanted_only ? !IsFree(blocks_[index]) : blocks_[index]->wanted > 0)) {
    ++index;
  }
  if (index == blocks_.size()) {
    if (unwanted_only || blocks_.empty()) return false;
    index = 0;
  }
  given = Remove(index);
  return true;
}

}  // namespace stepwell::db
