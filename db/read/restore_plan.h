// SPDX-License-Identifier: Apache-2.0
// The restore planner: pure data in, pure data out; no I/O. (selected leaves x wanted boxes) ->
// chunks -> reads sorted by (segment, offset), neighbours merged, each chunk read and decoded once
// however many requests want it.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "db/store.h"
#include "format/records.h"

namespace stepwell::db {

inline constexpr uint64_t kReadGapBytesMax = uint64_t{64} << 10;  // merged over
inline constexpr uint64_t kReadBytesMax = (uint64_t{4} << 20) + (uint64_t{128} << 10);
// A plan of few bytes in all is cut finer: its buffers are new memory, which the kernel must clear.
inline constexpr uint64_t kSmallPlanBytes = uint64_t{32} << 20;
inline constexpr uint64_t kSmallPlanReadBytesMax = uint64_t{448} << 10;

struct PlannedChunk {
  const format::LeafRecord* leaf = nullptr;  // the first request's
  uint64_t chunk_index = 0;
  const format::ChunkRecord* record = nullptr;
  uint64_t value_offset_bytes = 0;  // kValue: where its bytes go in the value
  std::vector<uint32_t> requests;   // indices into the requests, ascending
};
struct PlannedRead {
  uint64_t segment = 0;
  uint64_t offset_bytes = 0;  // exact; the executor widens to the file's alignment
  uint64_t length_bytes = 0;
  uint32_t chunk_begin = 0;  // range in RestorePlan::chunks
  uint32_t chunk_end = 0;
  uint32_t part = 0;  // whose segment it is, in a step of many processes
};
struct RestorePlan {
  std::vector<PlannedChunk> chunks;  // by (part, segment, offset)
  std::vector<PlannedChunk> deltas;  // chunks with bases, in the same order; no read has them
  std::vector<PlannedRead> reads;
  uint64_t bytes_needed = 0;  // stored bytes of all chunks, each once
  uint64_t bytes_read = 0;    // sum of the reads' lengths, and of what `deltas` need
};

// kInvalidArgument: a box outside its array; kDataLoss: a record that contradicts itself (chunk
// count, logical size against the grid, payload over the limits).
Result<RestorePlan> PlanRestore(std::span<const LoadRequest> requests);

// Requests for leaves whose pieces have chunk grids of their own, piece by piece: they fill between
// them what was wanted; requests for whole leaves are copied. The pieces that they refer to are
// here, and refer to nothing but the memory to be filled.
struct PieceRequests {
  std::list<format::LeafRecord> leaves;
  std::vector<LoadRequest> requests;
};
bool HasPieces(const LoadRequest& request);
// kDataLoss: a leaf's pieces contradict its record. kFailedPrecondition: they do not have all of a
// box: this is a part of a store of several processes, opened by itself.
Result<PieceRequests> SplitByPieces(std::span<const LoadRequest> requests);

// One of a chunk's payloads, those of its bases first, as a chunk of its own, without requests. Its
// record, which is without bases, goes to `records`.
PlannedChunk PlanPayload(const PlannedChunk& chunk, size_t number,
                         std::deque<format::ChunkRecord>* records);
// The payload of that number.
const format::StoredPayload& PayloadAt(const format::ChunkRecord& chunk, size_t number);

// Cuts `chunks` (any order; their records checked with CheckChunk) into reads, each of a chunk's
// own payload. Equal chunks stay apart.
RestorePlan PlanReads(std::vector<PlannedChunk> chunks);

// Records come from disk and are never trusted. kDataLoss naming the leaf when they contradict
// themselves: the leaf without its chunks, and one chunk of a leaf that passed.
Status CheckLeaf(const format::LeafRecord& leaf);
Status CheckChunk(const format::LeafRecord& leaf, uint64_t chunk_index);

}  // namespace stepwell::db
