// SPDX-License-Identifier: Apache-2.0
// One file or directory of the simulated machine: what the live system sees, what the medium holds,
// and which sectors differ because no sync has covered them. Pages are shared copy-on-write between
// the two and between crash images. Not thread-safe: SimWorld's mutex guards it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/disk.h"
#include "tests/prng.h"

namespace stepwell::sim {

inline constexpr uint64_t kSectorBytes = 512;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr uint64_t kSectorsPerPage = kPageBytes / kSectorBytes;

// Odds of the fates of an unsynced sector in a crash, in parts of the sum.
struct SectorOdds {
  uint32_t keep = 1;
  uint32_t drop = 1;
  uint32_t torn = 0;     // the first bytes new, the rest old
  uint32_t garbage = 0;  // random from the first byte that the write changed
};

struct ByteRange {
  uint64_t offset = 0;
  uint64_t length = 0;
};

// A file's bytes. A null page is zeros; bytes past the size are zeros.
class Content {
 public:
  uint64_t size() const { return size_; }
  size_t page_count() const { return pages_.size(); }
  // Zeros past the end.
  void Read(uint64_t offset, MutableBytes out) const;
  // Grows the size as needed.
  void Write(uint64_t offset, ConstBytes data);
  void Resize(uint64_t size);
  // Zeros within the size.
  void Zero(uint64_t offset, uint64_t length);
  // Both leave the size alone; `other` may be shorter (zeros then).
  void CopySector(const Content& other, uint64_t sector);
  void SharePage(const Content& other, uint64_t page);
  bool HasPage(uint64_t page) const { return page < pages_.size() && pages_[page] != nullptr; }

 private:
  using Page = std::array<std::byte, kPageBytes>;
  Page* MutablePage(uint64_t page);

  uint64_t size_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;  // may lag behind size_
};

class Inode;
using InodeRef = std::shared_ptr<Inode>;
using Entries = std::map<std::string, InodeRef>;

class Inode : public std::enable_shared_from_this<Inode> {
 public:
  Inode(uint64_t inode_number, bool directory) : number(inode_number), is_directory(directory) {}

  // --- files ---
  const Content& live() const { return live_; }
  const Content& medium() const { return medium_; }
  bool clean() const { return dirty_.empty() && !size_dirty_ && truncated_to_ == kNone; }
  // Reads the live file; zeros past the end. A direct read goes around the cache, so it lacks what
  // a failed sync lost.
  void Read(uint64_t offset, MutableBytes out, bool direct) const;
  void Write(uint64_t offset, ConstBytes data);
  void Allocate(uint64_t offset, uint64_t length);
  // The range becomes zeros, its whole pages free. Like a write, it may survive a crash page by
  // page only: the medium then has the old bytes.
  void Punch(uint64_t offset, uint64_t length);
  void Truncate(uint64_t size);
  // Makes everything but `uncovered` durable.
  void Sync(const std::vector<ByteRange>& uncovered);
  // A sync that failed: chance decides what reached the medium; the rest counts as clean though the
  // medium lacks it, so that the next sync succeeds and lies.
  void FailSync(Prng* prng);
  // A sync of the whole file system met that failure: the file's own next sync reports it, too.
  void SetUnreported() { unreported_ = true; }
  bool TakeUnreported() { return std::exchange(unreported_, false); }
  // The kernel's own writeback: one dirty sector reaches the medium early.
  void WriteBackOne(Prng* prng);
  // Returns the file's contents after a power cut.
  Content Survivor(const SectorOdds& odds, Prng* prng) const;
  // Both images at once, for rot and surgery. `size` and names are left alone.
  void Poke(uint64_t offset, ConstBytes data);
  // Becomes a clean file with these bytes (after a crash).
  void Settle(Content content);
  uint64_t AllocatedBytes() const;
  // Bytes of new space that a write or allocation of this range needs.
  uint64_t NewBytes(uint64_t offset, uint64_t length) const;

  const uint64_t number;
  const bool is_directory;
  // --- names ---
  Entries entries;          // directories: what the live system sees
  Entries durable_entries;  // directories: what the medium holds
  uint64_t link_count = 0;  // live names
  // --- the live system only; empty in a crash image ---
  uint64_t handle_count = 0;
  std::map<const void*, io::LockKind> locks;  // by open file

  // A copy for another world: shares pages, without handles and locks; entries are left empty.
  InodeRef CloneContent() const;

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  void MarkAllocated(uint64_t offset, uint64_t length);
  void MarkDirty(uint64_t offset, uint64_t length);

  Content live_;
  Content medium_;
  std::map<uint64_t, uint8_t> dirty_;  // page -> sectors written since the last sync
  std::vector<bool> allocated_;        // by page, of the live file
  uint64_t truncated_to_ = kNone;      // the smallest unsynced truncation
  bool size_dirty_ = false;
  bool unreported_ = false;
  bool diverged_ = false;  // a failed sync left clean sectors that the medium lacks
};

}  // namespace stepwell::sim
