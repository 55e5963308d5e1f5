// SPDX-License-Identifier: Apache-2.0
#include "db/commit/frame_records.h"

#include <algorithm>
#include <set>
#include <utility>

#include "db/log/footprint.h"
#include "format/hash.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

// Records that are more than this go to frames of about this size, and none to the commit
// frame: looking one leaf up reads that, which is then small, and one or two of them.
constexpr size_t kRecordsFrameBytes = size_t{64} << 10;

size_t EstimatedRecordBytes(const LeafRecord& record) {
  return 192 + record.key.size() + record.inline_value.size() + record.sharding_json.size() +
         record.type_name.size() + record.variable_types.size() + 16 * record.shape.size() +
         record.pieces.size() * (64 + 24 * record.shape.size()) + (record.statistics ? 64 : 0);
}
size_t EstimatedChunkBytes(const format::ChunkRecord& chunk) {
  return 64 + 32 * chunk.bases.size();
}

// A leaf with very many chunks goes on in the next run with records that have only key and chunks.
void SplitLeaf(const LeafRecord& record, std::vector<RecordsRun>* runs) {
  for (size_t done = 0; done < record.chunks.size();) {
    LeafRecord part;
    part.key = record.key;
    part.kind = record.kind;
    part.dtype = record.dtype;
    if (done == 0) {
      part = record;
      part.chunks.clear();
    }
    size_t used = EstimatedRecordBytes(part);
    size_t end = done;
    do {
      used += EstimatedChunkBytes(record.chunks[end++]);
    } while (end < record.chunks.size() && used <= kRecordsFrameBytes);
    part.first_chunk = done;
    part.chunk_count = record.chunk_count;
    part.chunks.assign(record.chunks.begin() + static_cast<ptrdiff_t>(done),
                       record.chunks.begin() + static_cast<ptrdiff_t>(end));
    done = end;
    runs->emplace_back().parts.push_back(std::move(part));
  }
}

// Part 0 counts whole leaves, the others what they have of them.
uint64_t LogicalBytesIn(const LeafRecord& record, uint32_t part) {
  if (!record.partial || part == 0) return record.logical_bytes;
  uint64_t bytes = 0;
  for (const format::PieceRecord& piece : record.pieces) {
    bytes += format::ChunkBytes(piece.shape, format::FindDType(record.dtype)->item_bytes);
  }
  return bytes;
}

}  // namespace

std::vector<RecordsRun> SplitRecords(std::span<const LeafRecord> records) {
  std::vector<RecordsRun> runs;
  size_t begin = 0;
  size_t used = 0;
  const auto close = [&](size_t end) {
    if (begin < end) runs.emplace_back().whole = records.subspan(begin, end - begin);
    used = 0;
  };
  for (size_t i = 0; i < records.size(); ++i) {
    size_t bytes = EstimatedRecordBytes(records[i]);
    for (const auto& chunk : records[i].chunks) bytes += EstimatedChunkBytes(chunk);
    if (used + bytes > kRecordsFrameBytes) {
      close(i);
      begin = i;
    }
    if (bytes > kRecordsFrameBytes && records[i].chunks.size() > 1) {
      SplitLeaf(records[i], &runs);
      begin = i + 1;
      continue;
    }
    used += bytes;
  }
  close(records.size());
  return runs;
}

void Count(const LeafRecord& record, format::ItemRecord* item, format::StepRecord* step) {
  for (const auto& chunk : record.chunks) item->stored_bytes += chunk.all_stored_bytes();
  item->stored_bytes += record.inline_value.size();
  if (record.statistics) item->nonfinite += record.statistics->nonfinite;
  if (record.kind != format::LeafKind::kNode) {
    ++item->leaf_count;
    item->logical_bytes += LogicalBytesIn(record, step->group ? step->group->part : 0);
  }
  step->chunk_count += record.chunk_count;
}

void SumItems(format::StepRecord* step) {
  for (const auto& item : step->items) {
    step->leaf_count += item.leaf_count;
    step->logical_bytes += item.logical_bytes;
    step->stored_bytes += item.stored_bytes;
  }
}

bool HoldsAll(const std::map<uint64_t, format::SegmentExtent>& extents,
              std::span<const LeafRecord> records) {
  bool holds = true;
  for (const LeafRecord& record : records) {
    for (const auto& chunk : record.chunks) {
      format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
        const auto it = extents.find(payload.segment);
        holds = holds && it != extents.end() &&
                payload.offset_bytes + payload.stored_bytes <= it->second.end_bytes;
      });
    }
  }
  return holds;
}

void AddReferenced(std::span<const LeafRecord> records, size_t block_bytes,
                   std::map<uint64_t, format::SegmentExtent>* extents) {
  std::map<uint64_t, std::vector<format::PayloadPlace>> referred;
  for (const LeafRecord& record : records) {
    for (const auto& chunk : record.chunks) {
      format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
        if (!payload.referenced) return;
        referred[payload.segment].push_back({payload.offset_bytes, payload.stored_bytes});
      });
    }
  }
  for (auto& [segment, places] : referred) {
    auto& extent = (*extents)[segment];
    extent.segment = segment;
    const format::Hash128 hash = format::PlacesHash(&places);
    if (extent.block_bytes == 0) extent.places = hash;
    for (const format::PayloadPlace& place : places) {
      extent.stored_bytes += place.stored_bytes;
      extent.referenced_bytes += place.stored_bytes;
    }
    const format::PayloadPlace& last = places.back();
    extent.end_bytes =
        std::max(extent.end_bytes, AlignUp(last.offset_bytes + last.stored_bytes, block_bytes));
  }
}

std::map<uint64_t, format::SegmentExtent> ExtentsOf(const std::vector<LeafRecord>& records,
                                                    size_t block_bytes) {
  std::map<uint64_t, format::SegmentExtent> extents;
  std::map<uint64_t, std::vector<ByteRange>> blocks;
  std::set<std::pair<uint64_t, uint64_t>> seen;  // payloads that two leaves have count once
  for (const LeafRecord& record : records) {
    for (const auto& chunk : record.chunks) {
      format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
        if (payload.referenced) return;
        if (!seen.emplace(payload.segment, payload.offset_bytes).second) return;
        auto& extent = extents[payload.segment];
        const uint64_t end = AlignUp(payload.offset_bytes + payload.stored_bytes, block_bytes);
        extent.segment = payload.segment;
        extent.end_bytes = std::max(extent.end_bytes, end);
        extent.stored_bytes += payload.stored_bytes;
        blocks[payload.segment].push_back({AlignDown(payload.offset_bytes, block_bytes), end});
      });
    }
  }
  for (auto& [segment, ranges] : blocks) {
    extents[segment].block_bytes = TotalBytes(Normalize(std::move(ranges)));
  }
  AddReferenced(records, block_bytes, &extents);
  return extents;
}

}  // namespace stepwell::db
