// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/sim_inode.h"

#include <algorithm>
#include <cstring>

namespace stepwell::sim {
namespace {

uint64_t PagesFor(uint64_t bytes) { return AlignUp(bytes, kPageBytes) / kPageBytes; }

bool Covers(const std::vector<ByteRange>& ranges, uint64_t sector) {
  const uint64_t begin = sector * kSectorBytes;
  for (const ByteRange& range : ranges) {
    if (begin < range.offset + range.length && range.offset < begin + kSectorBytes) return true;
  }
  return false;
}

}  // namespace

Content::Page* Content::MutablePage(uint64_t page) {
  if (page >= pages_.size()) pages_.resize(page + 1);
  std::shared_ptr<Page>& slot = pages_[page];
  if (slot == nullptr) {
    slot = std::make_shared<Page>();
  } else if (slot.use_count() != 1) {
    slot = std::make_shared<Page>(*slot);
  }
  return slot.get();
}

void Content::Read(uint64_t offset, MutableBytes out) const {
  while (!out.empty()) {
    const uint64_t page = offset / kPageBytes;
    const uint64_t within = offset % kPageBytes;
    const size_t count = std::min<size_t>(out.size(), kPageBytes - within);
    if (HasPage(page)) {
      std::memcpy(out.data(), pages_[page]->data() + within, count);
    } else {
      std::memset(out.data(), 0, count);
    }
    out = out.subspan(count);
    offset += count;
  }
}

void Content::Write(uint64_t offset, ConstBytes data) {
  while (!data.empty()) {
    const uint64_t within = offset % kPageBytes;
    const size_t count = std::min<size_t>(data.size(), kPageBytes - within);
    std::memcpy(MutablePage(offset / kPageBytes)->data() + within, data.data(), count);
    data = data.subspan(count);
    offset += count;
  }
  size_ = std::max(size_, offset);
}

void Content::Resize(uint64_t size) {
  size_ = size;
  const uint64_t pages = PagesFor(size);
  if (pages_.size() > pages) pages_.resize(pages);
  const uint64_t within = size % kPageBytes;
  if (within != 0 && HasPage(pages - 1)) {
    std::memset(MutablePage(pages - 1)->data() + within, 0, kPageBytes - within);
  }
}

void Content::Zero(uint64_t offset, uint64_t length) {
  uint64_t end = std::min(offset + length, size_);
  while (offset < end) {
    const uint64_t page = offset / kPageBytes;
    const uint64_t within = offset % kPageBytes;
    const uint64_t count = std::min(end - offset, kPageBytes - within);
    if (HasPage(page)) {
      if (count == kPageBytes) {
        pages_[page] = nullptr;
      } else {
        std::memset(MutablePage(page)->data() + within, 0, count);
      }
    }
    offset += count;
  }
}

void Content::CopySector(const Content& other, uint64_t sector) {
  const uint64_t page = sector / kSectorsPerPage;
  if (!other.HasPage(page) && !HasPage(page)) return;
  const uint64_t within = sector % kSectorsPerPage * kSectorBytes;
  Page* to = MutablePage(page);
  other.Read(sector * kSectorBytes, {to->data() + within, kSectorBytes});
}

void Content::SharePage(const Content& other, uint64_t page) {
  if (!other.HasPage(page) && !HasPage(page)) return;
  if (page >= pages_.size()) pages_.resize(page + 1);
  pages_[page] = other.HasPage(page) ? other.pages_[page] : nullptr;
}

void Inode::MarkAllocated(uint64_t offset, uint64_t length) {
  const uint64_t end = PagesFor(offset + length);
  if (allocated_.size() < end) allocated_.resize(end);
  for (uint64_t page = offset / kPageBytes; page < end; ++page) allocated_[page] = true;
}

void Inode::MarkDirty(uint64_t offset, uint64_t length) {
  const uint64_t end = AlignUp(offset + length, kSectorBytes) / kSectorBytes;
  for (uint64_t sector = offset / kSectorBytes; sector < end; ++sector) {
    uint8_t& mask = dirty_[sector / kSectorsPerPage];
    mask = static_cast<uint8_t>(mask | (1u << (sector % kSectorsPerPage)));
  }
}

void Inode::Read(uint64_t offset, MutableBytes out, bool direct) const {
  live_.Read(offset, out);
  if (!direct || !diverged_) return;
  for (uint64_t done = 0; done < out.size();) {
    const uint64_t sector = (offset + done) / kSectorBytes;
    const uint64_t end = std::min<uint64_t>((sector + 1) * kSectorBytes - offset, out.size());
    const auto page = dirty_.find(sector / kSectorsPerPage);
    const bool dirty = page != dirty_.end() && (page->second >> sector % kSectorsPerPage & 1) != 0;
    if (!dirty) medium_.Read(offset + done, out.subspan(done, end - done));
    done = end;
  }
}

void Inode::Write(uint64_t offset, ConstBytes data) {
  if (data.empty()) return;
  if (offset + data.size() > live_.size()) size_dirty_ = true;
  live_.Write(offset, data);
  MarkAllocated(offset, data.size());
  MarkDirty(offset, data.size());
}

void Inode::Allocate(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  MarkAllocated(offset, length);
  if (offset + length <= live_.size()) return;
  live_.Resize(offset + length);
  size_dirty_ = true;
}

void Inode::Punch(uint64_t offset, uint64_t length) {
  const uint64_t end = std::min(offset + length, live_.size());
  if (offset >= end) return;
  live_.Zero(offset, length);
  MarkDirty(offset, end - offset);
  const uint64_t last = end == live_.size() ? PagesFor(end) : end / kPageBytes;
  for (uint64_t page = PagesFor(offset); page < last && page < allocated_.size(); ++page) {
    allocated_[page] = false;
  }
}

void Inode::Truncate(uint64_t size) {
  if (size == live_.size()) return;
  const bool shrinks = size < live_.size();
  live_.Resize(size);
  size_dirty_ = true;
  if (!shrinks) return;
  truncated_to_ = std::min(truncated_to_, size);
  allocated_.resize(std::min<uint64_t>(allocated_.size(), PagesFor(size)));
  // The sector at the cut keeps its mark: its zeroed tail is a change like any other.
  const uint64_t sectors = AlignUp(size, kSectorBytes) / kSectorBytes;
  dirty_.erase(dirty_.lower_bound(PagesFor(size)), dirty_.end());
  const auto last = dirty_.find(sectors / kSectorsPerPage);
  if (last == dirty_.end()) return;
  last->second = static_cast<uint8_t>(last->second & ((1u << (sectors % kSectorsPerPage)) - 1));
  if (last->second == 0) dirty_.erase(last);
}

void Inode::Sync(const std::vector<ByteRange>& uncovered) {
  const bool size_changed = size_dirty_ || truncated_to_ != kNone;
  if (truncated_to_ < medium_.size()) medium_.Resize(truncated_to_);
  // After a failed sync the medium may be shorter; what is written there later brings its size.
  uint64_t end = medium_.size();
  std::map<uint64_t, uint8_t> left;
  for (const auto& [page, mask] : dirty_) {
    uint8_t open = 0;
    for (uint64_t i = 0; i < kSectorsPerPage && !uncovered.empty(); ++i) {
      if ((mask >> i & 1) != 0 && Covers(uncovered, page * kSectorsPerPage + i)) {
        open = static_cast<uint8_t>(open | (1u << i));
      }
    }
    if (open != 0) left[page] = open;
    if (open != mask) end = std::max(end, std::min((page + 1) * kPageBytes, live_.size()));
    if (open == 0 && (mask == 0xFF || !diverged_)) {
      medium_.SharePage(live_, page);
      continue;
    }
    for (uint64_t i = 0; i < kSectorsPerPage; ++i) {
      if (((mask & ~open) >> i & 1) != 0) medium_.CopySector(live_, page * kSectorsPerPage + i);
    }
  }
  medium_.Resize(size_changed ? live_.size() : end);
  dirty_ = std::move(left);
  truncated_to_ = kNone;
  size_dirty_ = false;
}

void Inode::FailSync(Prng* prng) {
  if (clean()) return;
  medium_ = Survivor(SectorOdds{1, 1, 0, 0}, prng);
  dirty_.clear();
  truncated_to_ = kNone;
  size_dirty_ = false;
  diverged_ = true;
}

void Inode::WriteBackOne(Prng* prng) {
  if (dirty_.empty() || truncated_to_ != kNone) return;
  auto it = dirty_.lower_bound(prng->Below(dirty_.rbegin()->first + 1));
  const uint64_t sector = it->first * kSectorsPerPage + prng->Below(kSectorsPerPage);
  if ((it->second >> (sector % kSectorsPerPage) & 1) == 0) return;
  // Past the durable size the medium's sector stays invisible until the size is durable too.
  if ((sector + 1) * kSectorBytes <= medium_.size()) medium_.CopySector(live_, sector);
}

Content Inode::Survivor(const SectorOdds& odds, Prng* prng) const {
  Content out = medium_;
  if (clean()) return out;
  const bool all = odds.drop + odds.torn + odds.garbage == 0;
  const bool none = odds.keep + odds.torn + odds.garbage == 0;
  uint64_t end = kNone;  // writes past it cannot be on the medium
  uint64_t size = medium_.size();
  if (truncated_to_ < medium_.size()) {
    if (all || (!none && prng->Coin())) {
      out.Resize(truncated_to_);
      size = truncated_to_;
    } else {
      end = truncated_to_;
    }
  }
  const uint64_t sum = uint64_t{odds.keep} + odds.drop + odds.torn + odds.garbage;
  for (const auto& [page, mask] : dirty_) {
    for (uint64_t i = 0; i < kSectorsPerPage; ++i) {
      const uint64_t sector = page * kSectorsPerPage + i;
      if ((mask >> i & 1) == 0 || (sector + 1) * kSectorBytes > end) continue;
      uint64_t fate = prng->Below(sum);
      if (fate < odds.keep) {
        out.CopySector(live_, sector);
        continue;
      }
      fate -= odds.keep;
      if (fate < odds.drop) continue;
      fate -= odds.drop;
      std::array<std::byte, kSectorBytes> now{};
      std::array<std::byte, kSectorBytes> old{};
      live_.Read(sector * kSectorBytes, now);
      out.Read(sector * kSectorBytes, old);
      const auto cut = static_cast<std::ptrdiff_t>(prng->Below(kSectorBytes));
      if (fate < odds.torn) {
        std::copy(now.begin(), now.begin() + cut, old.begin());
      } else {
        const auto changed = std::mismatch(now.begin(), now.end(), old.begin()).second;
        for (auto it = changed; it != old.end(); ++it) *it = static_cast<std::byte>(prng->Next());
      }
      out.Write(sector * kSectorBytes, old);
    }
  }
  if (end == kNone && live_.size() > size) {
    // Growth is kept, dropped, or cut in between; a cut takes kept sectors with it.
    const uint64_t choice = all ? 0 : none ? 2 : prng->Below(3);
    if (choice == 0) size = live_.size();
    if (choice == 1) size += prng->Below(live_.size() - size);
  }
  out.Resize(size);
  return out;
}

void Inode::Poke(uint64_t offset, ConstBytes data) {
  for (Content* content : {&live_, &medium_}) {
    if (offset >= content->size()) continue;
    content->Write(offset, data.first(std::min<size_t>(data.size(), content->size() - offset)));
  }
}

void Inode::Settle(Content content) {
  medium_ = content;
  live_ = std::move(content);
  dirty_.clear();
  truncated_to_ = kNone;
  size_dirty_ = false;
  diverged_ = false;
  allocated_.resize(std::min<uint64_t>(allocated_.size(), PagesFor(live_.size())));
  for (uint64_t page = 0; page < live_.page_count(); ++page) {
    if (live_.HasPage(page)) MarkAllocated(page * kPageBytes, 1);
  }
}

uint64_t Inode::AllocatedBytes() const {
  const auto count = std::count(allocated_.begin(), allocated_.end(), true);
  return static_cast<uint64_t>(count) * kPageBytes;
}

uint64_t Inode::NewBytes(uint64_t offset, uint64_t length) const {
  if (length == 0) return 0;
  uint64_t count = 0;
  for (uint64_t page = offset / kPageBytes; page < PagesFor(offset + length); ++page) {
    if (page >= allocated_.size() || !allocated_[page]) ++count;
  }
  return count * kPageBytes;
}

InodeRef Inode::CloneContent() const {
  auto clone = std::make_shared<Inode>(number, is_directory);
  clone->live_ = live_;
  clone->medium_ = medium_;
  clone->dirty_ = dirty_;
  clone->allocated_ = allocated_;
  clone->truncated_to_ = truncated_to_;
  clone->size_dirty_ = size_dirty_;
  clone->diverged_ = diverged_;
  return clone;
}

}  // namespace stepwell::sim
