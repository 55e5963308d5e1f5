// SPDX-License-Identifier: Apache-2.0
#include "db/log/footprint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "db/log/alignment.h"
#include "db/log/recovery.h"
#include "db/log/step_records.h"

namespace stepwell::db {
namespace {

ByteRange Grains(uint64_t offset_bytes, uint64_t length_bytes) {
  return {AlignDown(offset_bytes, kGrainBytes), AlignUp(offset_bytes + length_bytes, kGrainBytes)};
}

void AddFrame(const format::FramePlace& place, Footprint* footprint) {
  auto& part = footprint->segments[place.segment];
  part.ranges.push_back(Grains(place.offset_bytes, place.length_bytes));
  part.moved_bytes += AlignUp(place.length_bytes, kGrainBytes);
}

}  // namespace

std::vector<ByteRange> Normalize(std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> out;
  for (const ByteRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (!out.empty() && range.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, range.end);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

uint64_t TotalBytes(const std::vector<ByteRange>& normalized) {
  uint64_t total = 0;
  for (const ByteRange& range : normalized) total += range.end - range.begin;
  return total;
}

Result<Footprint> ReadFootprint(SegmentFiles& files, const format::FramePlace& commit_place) {
  STEPWELL_ASSIGN_OR_RETURN(const auto records, StepRecords::Open(&files, commit_place));
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, records->In(format::KeysBelow("")));
  Footprint footprint;
  AddFrame(commit_place, &footprint);
  for (const format::RecordsBlock& block : records->blocks()) AddFrame(block.place, &footprint);
  std::set<std::pair<uint64_t, uint64_t>> seen;  // payloads that two leaves share count once
  for (const format::LeafRecord& leaf : leaves) {
    for (const format::ChunkRecord& chunk : leaf.chunks) {
      if (!seen.emplace(chunk.segment, chunk.offset_bytes).second) continue;
      auto& part = footprint.segments[chunk.segment];
      part.payload_bytes += chunk.stored_bytes;
      part.moved_bytes += AlignUp(chunk.stored_bytes, PayloadAlignment(chunk.stored_bytes));
      const ByteRange range = Grains(chunk.offset_bytes, chunk.stored_bytes);
      if (!part.ranges.empty() && part.ranges.back().begin <= range.begin &&
          part.ranges.back().end >= range.begin) {
        part.ranges.back().end = std::max(part.ranges.back().end, range.end);
      } else {
        part.ranges.push_back(range);
      }
    }
  }
  for (auto& [segment, part] : footprint.segments) part.ranges = Normalize(std::move(part.ranges));
  return footprint;
}

Result<std::shared_ptr<const Footprint>> FootprintCache::Get(
    uint64_t commit, const format::FramePlace& commit_place) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = by_commit_.find(commit); it != by_commit_.end()) return it->second;
  }
  STEPWELL_ASSIGN_OR_RETURN(Footprint footprint, ReadFootprint(*files_, commit_place));
  auto shared = std::make_shared<const Footprint>(std::move(footprint));
  const std::lock_guard lock(mutex_);
  by_commit_[commit] = shared;
  return shared;
}

void FootprintCache::Keep(const std::vector<std::shared_ptr<const LiveStep>>& live) {
  std::set<uint64_t> commits;
  for (const auto& step : live) commits.insert(step->record.commit);
  const std::lock_guard lock(mutex_);
  std::erase_if(by_commit_, [&](const auto& entry) { return !commits.contains(entry.first); });
}

void FootprintCache::ForgetCommits(const std::vector<uint64_t>& commits) {
  const std::lock_guard lock(mutex_);
  for (const uint64_t commit : commits) by_commit_.erase(commit);
}

Result<FootprintCache::Edges> FootprintCache::EdgesOf(uint64_t segment) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = sealed_.find(segment); it != sealed_.end()) return it->second;
  }
  STEPWELL_ASSIGN_OR_RETURN(const SegmentEdges found, ReadSegmentEdges(*files_, segment));
  Edges edges;
  edges.store_id = found.header.store_id;
  if (found.header.segment != segment) return edges;
  edges.own = true;
  edges.sealed = found.footer_offset_bytes > 0;
  edges.commit_min = found.commit_min;
  edges.ranges.push_back(Grains(0, found.catalog_end_bytes));
  if (edges.sealed) edges.ranges.push_back({found.footer_offset_bytes, found.size_bytes});
  edges.ranges = Normalize(std::move(edges.ranges));
  if (edges.sealed) {
    const std::lock_guard lock(mutex_);
    sealed_[segment] = edges;
  }
  return edges;
}

void FootprintCache::Forget(uint64_t segment) {
  const std::lock_guard lock(mutex_);
  sealed_.erase(segment);
}

}  // namespace stepwell::db
