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

ByteRange RoundOutward(uint64_t offset_bytes, uint64_t length_bytes) {
  return {AlignDown(offset_bytes, kGrainBytes), AlignUp(offset_bytes + length_bytes, kGrainBytes)};
}

void AddFrame(const format::FramePlace& place, uint64_t length_bytes, Footprint* footprint) {
  auto& part = footprint->segments[place.segment];
  part.ranges.push_back(RoundOutward(place.offset_bytes, length_bytes));
  part.moved_bytes += AlignUp(length_bytes, kGrainBytes);
}

void AddPayload(const format::StoredPayload& payload, Footprint* footprint) {
  auto& part = footprint->segments[payload.segment];
  part.payload_bytes += payload.stored_bytes;
  part.moved_bytes += AlignUp(payload.stored_bytes, PayloadAlignment(payload.stored_bytes));
  const ByteRange range = RoundOutward(payload.offset_bytes, payload.stored_bytes);
  if (!part.ranges.empty() && part.ranges.back().begin <= range.begin &&
      part.ranges.back().end >= range.begin) {
    part.ranges.back().end = std::max(part.ranges.back().end, range.end);
  } else {
    part.ranges.push_back(range);
  }
}

// The live steps' use of one segment.
struct LiveBytes {
  uint64_t owned_bytes = 0;     // payloads
  uint64_t orphaned_bytes = 0;  // payloads that live steps refer to and none owns
  uint64_t block_bytes = 0;     // of payloads
  uint64_t frame_bytes = 0;
  uint64_t end_bytes = 0;
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

// By what the steps' records say of their segments: nothing is read for it. What a step refers to,
// and live steps from before it do not own, is orphaned: at least what is more than all that they
// own there.
std::map<uint64_t, LiveBytes> LiveBytesBySegment(const SpaceQuery& query) {
  auto in_order = query.live;
  std::ranges::sort(in_order, {}, [](const auto& live) { return live->record.commit; });
  std::map<uint64_t, LiveBytes> uses;
  for (const auto& live : in_order) {
    for (const format::SegmentExtent& extent : live->record.extents) {
      LiveBytes& use = uses[extent.segment];
      use.orphaned_bytes =
          std::max(use.orphaned_bytes,
                   extent.referenced_bytes - std::min(extent.referenced_bytes, use.owned_bytes));
      use.owned_bytes += extent.stored_bytes - extent.referenced_bytes;
      use.block_bytes += extent.block_bytes;
      use.frame_bytes += extent.frame_bytes;
      use.end_bytes = std::max(use.end_bytes, extent.end_bytes);
    }
  }
  return uses;
}

void AddSegment(const SpaceQuery& query, uint64_t id, const io::FileInfo& info,
                const LiveBytes& use, SpaceStats* space) {
  std::vector<ByteRange> edges;
  bool sealed = false;
  if (const auto known = query.footprints->EdgesOf(id); known.ok()) {
    edges = known->ranges;
    sealed = known->sealed;
  }
  if (const auto it = query.catalogs.find(id); it != query.catalogs.end()) {
    edges.push_back(it->second);
  }
  edges = Normalize(std::move(edges));
  uint64_t left = info.allocated_bytes;
  const auto take = [&left](uint64_t bytes, uint64_t* part) {
    const uint64_t taken = std::min(left, bytes);
    *part += taken;
    left -= taken;
  };
  take(use.owned_bytes + use.orphaned_bytes, &space->live_bytes);
  take(use.block_bytes - std::min(use.block_bytes, use.owned_bytes), &space->padding_bytes);
  take(use.frame_bytes + TotalBytes(edges), &space->overhead_bytes);
  uint64_t end = info.size_bytes;
  if (query.open_ends) {
    if (const auto it = query.open_ends->find(id); it != query.open_ends->end()) end = it->second;
  } else if (!sealed) {
    end = std::max(use.end_bytes, edges.empty() ? 0 : edges.back().end);
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
      format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
        const bool is_new = seen.emplace(payload.segment, payload.offset_bytes).second;
        if (is_new) AddPayload(payload, &footprint);
      });
    }
  }
  AddFrame(commit_place, commit_place.length_bytes, &footprint);
  for (const format::RecordsBlock& block : records->blocks()) {
    AddFrame(block.place, format::BytesWithCopy(block.place.length_bytes), &footprint);
  }
  // The commit frame's run of blocks goes on behind it, with copies of the frames before.
  const uint64_t frame_end = commit_place.offset_bytes + commit_place.length_bytes;
  for (const format::SegmentExtent& extent : records->step().extents) {
    if (extent.segment != commit_place.segment || extent.end_bytes <= frame_end) continue;
    footprint.segments[extent.segment].copies.push_back(
        RoundOutward(frame_end, std::min(extent.end_bytes - frame_end, kCopiesBytesMax)));
  }
  for (auto& [segment, part] : footprint.segments) part.ranges = Normalize(std::move(part.ranges));
  return footprint;
}

Result<std::shared_ptr<const Footprint>> FootprintCache::Get(
    uint64_t commit, const format::FramePlace& commit_place) {
  {
    const io::MutexLock lock(&mutex_);
    if (const auto it = by_commit_.find(commit); it != by_commit_.end()) return it->second;
  }
  STEPWELL_ASSIGN_OR_RETURN(Footprint footprint, ReadFootprint(*files_, commit_place));
  auto shared = std::make_shared<const Footprint>(std::move(footprint));
  const io::MutexLock lock(&mutex_);
  by_commit_[commit] = shared;
  return shared;
}

void FootprintCache::ForgetCommits(const std::vector<uint64_t>& commits) {
  const io::MutexLock lock(&mutex_);
  for (const uint64_t commit : commits) by_commit_.erase(commit);
}

Result<FootprintCache::Edges> FootprintCache::EdgesOf(uint64_t segment) {
  {
    const io::MutexLock lock(&mutex_);
    if (const auto it = sealed_.find(segment); it != sealed_.end()) return it->second;
  }
  STEPWELL_ASSIGN_OR_RETURN(const SegmentEdges found, ReadSegmentEdges(*files_, segment));
  Edges edges;
  edges.store_id = found.header.store_id;
  if (found.header.segment != segment) return edges;
  edges.own = true;
  edges.sealed = found.footer_offset_bytes > 0;
  edges.commit_min = found.commit_min;
  edges.ranges.push_back(RoundOutward(0, found.catalog_end_bytes));
  if (edges.sealed) edges.ranges.push_back({found.footer_offset_bytes, found.size_bytes});
  edges.ranges = Normalize(std::move(edges.ranges));
  if (edges.sealed) {
    const io::MutexLock lock(&mutex_);
    sealed_[segment] = edges;
  }
  return edges;
}

void FootprintCache::Forget(uint64_t segment) {
  const io::MutexLock lock(&mutex_);
  sealed_.erase(segment);
}

void AccountSpace(const SpaceQuery& query, StoreStats* stats) {
  SpaceStats& space = stats->space;
  const std::map<uint64_t, LiveBytes> uses = LiveBytesBySegment(query);
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
      AddSegment(query, *id, info, use == uses.end() ? LiveBytes{} : use->second, &space);
    } else {
      (IsSpareName(name) ? space.reserved_bytes : space.other_bytes) += info.allocated_bytes;
    }
  });
}

}  // namespace stepwell::db
