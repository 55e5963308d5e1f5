// SPDX-License-Identifier: Apache-2.0
#include "db/log/footprint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "db/layout.h"
#include "db/log/recovery.h"
#include "db/log/segment_files.h"
#include "db/log/step_records.h"

namespace stepwell::db {
namespace {

// More than copies take, for extents that make no sense.
constexpr uint64_t kCopiesBytesMax = uint64_t{64} << 20;

ByteRange Grains(uint64_t offset_bytes, uint64_t length_bytes) {
  return {AlignDown(offset_bytes, kGrainBytes), AlignUp(offset_bytes + length_bytes, kGrainBytes)};
}

void AddFrame(const format::FramePlace& place, Footprint* footprint) {
  auto& part = footprint->segments[place.segment];
  part.ranges.push_back(Grains(place.offset_bytes, place.length_bytes));
  part.moved_bytes += AlignUp(place.length_bytes, kGrainBytes);
}

// What live steps need of one segment.
struct Use {
  std::vector<ByteRange> ranges;
  uint64_t payload_bytes = 0;
  uint64_t padding_bytes = 0;
  std::vector<std::pair<ByteRange, size_t>> by_step;  // ranges with their step's place in the list
};

// Calls `visit` with every file (not directory) directly in `directory`.
template <typename Visit>
void EachFile(io::FileSystem* file_system, const std::string& directory, Visit visit) {
  const auto names = file_system->List(directory);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const auto info = file_system->Stat(directory + "/" + name);
    if (info.ok() && !info->is_directory) visit(name, *info);
  }
}

// Steps that have a block in common with another: only these can share payloads.
std::set<size_t> Overlapping(std::map<uint64_t, Use>* uses) {
  std::set<size_t> steps;
  for (auto& [segment, use] : *uses) {
    auto& ranges = use.by_step;
    std::sort(ranges.begin(), ranges.end(),
              [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
    uint64_t end = 0;
    size_t owner = 0;
    for (const auto& [range, step] : ranges) {
      if (range.begin < end && step != owner) {
        steps.insert(step);
        steps.insert(owner);
      }
      if (range.end > end) {
        end = range.end;
        owner = step;
      }
    }
  }
  return steps;
}

// Payload bytes that more than one of the steps refers to: once each, and how often they were
// counted too many.
struct Shared {
  uint64_t bytes = 0;
  std::map<uint64_t, uint64_t> counted_again;  // by segment
};
Shared CountShared(const SpaceQuery& query, const std::set<size_t>& steps) {
  std::map<std::pair<uint64_t, uint64_t>, std::pair<uint64_t, uint64_t>> seen;  // bytes, steps
  for (const size_t i : steps) {
    const auto leaves = ReadStepRecords(*query.files, query.live[i]->place, "");
    if (!leaves.ok()) continue;
    std::set<std::pair<uint64_t, uint64_t>> mine;
    for (const auto& leaf : *leaves) {
      for (const auto& chunk : leaf.chunks) {
        if (!mine.emplace(chunk.segment, chunk.offset_bytes).second) continue;
        auto& entry = seen[{chunk.segment, chunk.offset_bytes}];
        entry.first = chunk.stored_bytes;
        ++entry.second;
      }
    }
  }
  Shared shared;
  for (const auto& [place, entry] : seen) {
    if (entry.second < 2) continue;
    shared.bytes += entry.first;
    shared.counted_again[place.first] += (entry.second - 1) * entry.first;
  }
  return shared;
}

std::map<uint64_t, Use> UsesOf(const SpaceQuery& query) {
  std::map<uint64_t, Use> uses;
  for (size_t i = 0; i < query.live.size(); ++i) {
    const auto& live = query.live[i];
    const auto footprint = query.footprints->Get(live->record.commit, live->place);
    if (!footprint.ok()) {
      // Damaged: what its record says about whole segments has to do.
      for (const auto& extent : live->record.extents) {
        Use& use = uses[extent.segment];
        use.payload_bytes += extent.stored_bytes;
        const uint64_t length = std::min(extent.end_bytes, AlignUp(extent.stored_bytes, 4096));
        use.ranges.push_back({extent.end_bytes - length, extent.end_bytes});
      }
      continue;
    }
    for (const auto& [segment, part] : (*footprint)->segments) {
      Use& use = uses[segment];
      use.payload_bytes += part.payload_bytes;
      use.padding_bytes += part.padding_bytes;
      use.ranges.insert(use.ranges.end(), part.ranges.begin(), part.ranges.end());
      use.ranges.insert(use.ranges.end(), part.copies.begin(), part.copies.end());
      for (const ByteRange& range : part.ranges) use.by_step.emplace_back(range, i);
    }
  }
  return uses;
}

void AddSegment(const SpaceQuery& query, uint64_t id, const io::FileInfo& info, const Use* use,
                SpaceStats* space) {
  std::vector<ByteRange> needed;
  bool sealed = false;
  if (const auto edges = query.footprints->EdgesOf(id); edges.ok()) {
    needed = edges->ranges;
    sealed = edges->sealed;
  }
  if (const auto it = query.catalogs.find(id); it != query.catalogs.end()) {
    needed.push_back(it->second);
  }
  if (use != nullptr) needed.insert(needed.end(), use->ranges.begin(), use->ranges.end());
  needed = Normalize(std::move(needed));
  uint64_t left = info.allocated_bytes;
  const auto take = [&left](uint64_t bytes, uint64_t* part) {
    const uint64_t taken = std::min(left, bytes);
    *part += taken;
    left -= taken;
  };
  const uint64_t payload = use == nullptr ? 0 : use->payload_bytes;
  const uint64_t total = TotalBytes(needed);
  const uint64_t rest = total > payload ? total - payload : 0;
  const uint64_t padding = use == nullptr ? 0 : std::min(use->padding_bytes, rest);
  take(payload, &space->live_bytes);
  take(padding, &space->padding_bytes);
  take(rest - padding, &space->overhead_bytes);
  uint64_t end = info.size_bytes;
  if (query.open_ends) {
    if (const auto it = query.open_ends->find(id); it != query.open_ends->end()) end = it->second;
  } else if (!sealed && !needed.empty()) {
    end = needed.back().end;
  }
  take(info.size_bytes > end ? info.size_bytes - end : 0, &space->reserved_bytes);
  space->dead_bytes += left;
  if (info.link_count > 1) space->linked_bytes += info.allocated_bytes;
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
  for (auto& [segment, part] : footprint.segments) {
    part.ranges = Normalize(std::move(part.ranges));
    const uint64_t blocks = TotalBytes(part.ranges);
    part.padding_bytes = blocks - std::min(blocks, part.payload_bytes);
  }
  AddFrame(commit_place, &footprint);
  for (const format::RecordsBlock& block : records->blocks()) AddFrame(block.place, &footprint);
  // The commit frame's run of blocks goes on behind it, with copies of the frames before.
  const uint64_t frame_end = commit_place.offset_bytes + commit_place.length_bytes;
  for (const format::SegmentExtent& extent : records->step().extents) {
    if (extent.segment != commit_place.segment || extent.end_bytes <= frame_end) continue;
    footprint.segments[extent.segment].copies.push_back(
        Grains(frame_end, std::min(extent.end_bytes - frame_end, kCopiesBytesMax)));
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

void AccountSpace(const SpaceQuery& query, StoreStats* stats) {
  SpaceStats& space = stats->space;
  std::map<uint64_t, Use> uses = UsesOf(query);
  const std::set<size_t> overlapping = Overlapping(&uses);
  if (!overlapping.empty()) {
    const Shared shared = CountShared(query, overlapping);
    space.shared_bytes = shared.bytes;
    for (const auto& [segment, bytes] : shared.counted_again) {
      uint64_t& payload = uses[segment].payload_bytes;
      payload -= std::min(payload, bytes);
    }
  }
  const auto each_in = [&](const std::string& directory, const auto& visit) {
    EachFile(query.file_system, directory, [&](const auto& name, const io::FileInfo& info) {
      space.total_bytes += info.allocated_bytes;
      visit(name, info);
    });
  };
  each_in(query.store_path, [&](const std::string& name, const io::FileInfo& info) {
    const bool ballast = query.store_path + "/" + name == BallastFilePath(query.store_path);
    (ballast ? space.reserved_bytes : space.other_bytes) += info.allocated_bytes;
  });
  each_in(ReadersPath(query.store_path), [&](const auto&, const io::FileInfo& info) {
    space.other_bytes += info.allocated_bytes;
  });
  each_in(IndexPath(query.store_path), [&](const auto&, const io::FileInfo& info) {
    space.index_bytes += info.allocated_bytes;
  });
  each_in(SegmentsPath(query.store_path), [&](const auto& name, const io::FileInfo& info) {
    if (const auto id = ParseSegmentName(name)) {
      ++stats->segments;
      stats->segment_bytes += info.allocated_bytes;
      const auto use = uses.find(*id);
      AddSegment(query, *id, info, use == uses.end() ? nullptr : &use->second, &space);
    } else {
      (IsSpareName(name) ? space.reserved_bytes : space.other_bytes) += info.allocated_bytes;
    }
  });
}

}  // namespace stepwell::db
