// SPDX-License-Identifier: Apache-2.0
#include "db/save/far.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "format/grid.h"

namespace stepwell::db {
namespace {

// Shards of one leaf that go together, and the chunks that are read from them.
struct Unit {
  std::vector<uint32_t> shards;
  std::vector<uint64_t> chunks;
  uint64_t bytes = 0;
};

// The number of the lowest shard that goes together with one; `lowest` is that for most.
uint32_t LowestOf(std::span<const uint32_t> lowest, uint32_t shard) {
  while (lowest[shard] != shard) shard = lowest[shard];
  return shard;
}

// Ascending by the first shard. Nearly always each is one shard: chunks keep the borders of shards
// wherever that gives chunks of a fair size.
std::vector<Unit> UnitsOf(const PlannedLeaf& leaf) {
  const auto& shards = leaf.shards.shards();
  std::vector<uint32_t> lowest(shards.size());
  std::iota(lowest.begin(), lowest.end(), 0U);
  std::vector<uint32_t> shard_of(leaf.input.record.chunk_count);
  for (uint64_t chunk = 0; chunk < shard_of.size(); ++chunk) {
    const std::vector<uint32_t> together = ShardsOfChunk(leaf, chunk);
    shard_of[chunk] = together.front();
    for (const uint32_t shard : together) {
      const uint32_t a = LowestOf(lowest, shard_of[chunk]);
      const uint32_t b = LowestOf(lowest, shard);
      lowest[std::max(a, b)] = std::min(a, b);
    }
  }
  std::map<uint32_t, Unit> units;
  for (uint32_t shard = 0; shard < shards.size(); ++shard) {
    Unit& unit = units[LowestOf(lowest, shard)];
    unit.shards.push_back(shard);
    unit.bytes += format::ChunkBytes(shards[shard].shape, leaf.dtype->item_bytes);
  }
  for (uint64_t chunk = 0; chunk < shard_of.size(); ++chunk) {
    units[LowestOf(lowest, shard_of[chunk])].chunks.push_back(chunk);
  }
  std::vector<Unit> ascending;
  for (auto& [shard, unit] : units) ascending.push_back(std::move(unit));
  return ascending;
}

std::vector<uint32_t> NumbersOf(std::span<const PlannedLeaf> leaves, const FarRange& range) {
  std::vector<uint32_t> numbers;
  numbers.reserve(range.boxes.size());
  for (const auto [leaf, shard] : range.boxes) {
    numbers.push_back(*leaves[leaf].shards.shards()[shard].far);
  }
  return numbers;
}

}  // namespace

std::vector<FarRange> PlanFarRanges(std::span<const PlannedLeaf> leaves,
                                    std::span<const uint32_t> which, uint64_t bytes_max) {
  std::vector<FarRange> ranges;
  for (const uint32_t i : which) {
    if (leaves[i].unchanged) continue;
    for (const Unit& unit : UnitsOf(leaves[i])) {
      if (ranges.empty() || ranges.back().bytes + unit.bytes > bytes_max) ranges.emplace_back();
      FarRange& range = ranges.back();
      range.bytes += unit.bytes;
      for (const uint32_t shard : unit.shards) range.boxes.push_back({i, shard});
      for (const uint64_t chunk : unit.chunks) range.chunks.push_back({i, chunk});
    }
  }
  return ranges;
}

FarWindow::FarWindow(const FarCopies& far, std::span<const FarRange> ranges,
                     std::span<PlannedLeaf> leaves)
    : source_(far.source.get()),
      window_bytes_(far.window_bytes),
      ranges_(ranges),
      leaves_(leaves) {}

FarWindow::~FarWindow() {
  while (next_ < started_) Release().IgnoreError("the save has failed already");
}

Status FarWindow::StartWhatFits() {
  while (started_ < ranges_.size()) {
    const FarRange& range = ranges_[started_];
    if (there_bytes_ > 0 && there_bytes_ + range.bytes > window_bytes_) break;
    there_bytes_ += range.bytes;
    ++started_;  // before: what was started in part is released, too
    STEPWELL_RETURN_IF_ERROR(source_->Start(NumbersOf(leaves_, range)));
  }
  return OkStatus();
}

Status FarWindow::Bring() {
  STEPWELL_RETURN_IF_ERROR(StartWhatFits());
  const FarRange& range = ranges_[next_];
  std::vector<FarSource::Copy> copies;
  const Status status = source_->Wait(NumbersOf(leaves_, range), &copies);
  if (!status.ok()) {
    if (copies.size() >= range.boxes.size()) return status;
    const PlannedLeaf& failed = leaves_[range.boxes[copies.size()].leaf];
    return status.WithContext(InputName(failed.input.record));
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    const auto [leaf, shard] = range.boxes[i];
    leaves_[leaf].shards.SetMemory(shard, copies[i].data, std::move(copies[i].strides_bytes));
  }
  return OkStatus();
}

Status FarWindow::Release() {
  const FarRange& range = ranges_[next_];
  for (const auto [leaf, shard] : range.boxes) leaves_[leaf].shards.SetMemory(shard, nullptr, {});
  there_bytes_ -= range.bytes;
  ++next_;
  return source_->Release(NumbersOf(leaves_, range));
}

}  // namespace stepwell::db
