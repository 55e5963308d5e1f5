// SPDX-License-Identifier: Apache-2.0
// The contents of chunks that were saved last, so that the next save's differences need not read
// them back. They lie in blocks of the memory for saves that no save needs at the moment.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "format/records.h"
#include "io/buffer.h"
#include "io/bytes.h"
#include "io/mutex.h"

namespace stepwell::db {

// Finds contents by their hash, so nothing of it depends on which save, or which step, they are of.
// Thread-safe.
class RecentChunks {
 public:
  // A chunk's bytes, which stay as long as this does.
  struct Held {
    ConstBytes bytes;
    std::shared_ptr<const void> hold;
  };

  // `pool` outlives this, and asks it for memory (GiveBack) until this is destroyed.
  explicit RecentChunks(io::BufferPool* pool);
  ~RecentChunks();
  RecentChunks(const RecentChunks&) = delete;
  RecentChunks& operator=(const RecentChunks&) = delete;

  // Keeps a copy of a chunk's bytes if there is memory for it. They take the place of those with
  // the hash `old`, which are the first to go when memory is needed.
  void Keep(const format::Hash128& hash, ConstBytes bytes, const format::Hash128& old);
  // The bytes with this hash are among the first to go from now on.
  void LetGo(const format::Hash128& hash);
  // The bytes with this hash, whose length must be `length_bytes`; empty: they are not kept.
  Held Find(const format::Hash128& hash, size_t length_bytes) const;
  // Gives a block back to the pool, kUnwanted: one whose contents are all among the first to go;
  // false: there is none.
  bool GiveBack(io::BufferPool::Spare which);

 private:
  struct Block {
    explicit Block(io::BufferPool* pool_) : pool(pool_) {}
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    io::BufferPool* const pool;
    io::BufferPool::Block* memory = nullptr;
    size_t used_bytes = 0;
    size_t wanted = 0;     // chunks whose place no other content has taken
    bool removed = false;  // from `blocks_`
    std::vector<format::Hash128> hashes;
  };
  struct Entry {
    std::shared_ptr<Block> block;
    size_t offset_bytes = 0;
    size_t length_bytes = 0;
    bool wanted = true;
  };

  void Unwant(const format::Hash128& hash) STEPWELL_REQUIRES(mutex_);
  std::shared_ptr<Block> BlockFor(size_t bytes) STEPWELL_REQUIRES(mutex_);
  std::shared_ptr<Block> Remove(size_t index) STEPWELL_REQUIRES(mutex_);
  // Nothing of it is wanted, read or written any more.
  bool IsFree(const std::shared_ptr<Block>& block) const STEPWELL_REQUIRES(mutex_);

  io::BufferPool* const pool_;
  mutable io::Mutex mutex_;
  std::map<format::Hash128, Entry> entries_ STEPWELL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Block>> blocks_ STEPWELL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace stepwell::db
