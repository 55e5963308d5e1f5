// SPDX-License-Identifier: Apache-2.0
// Cuts a step's bytes into blocks: pure planning, and the encoding of one block.
//
// A block is the unit of memory (io::BufferPool) and of writing. Every payload lies within one
// block, so blocks are encoded in parallel, written in any order and placed independently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "db/log/segment_files.h"
#include "db/save/base.h"
#include "db/save/shards.h"
#include "db/store.h"
#include "format/codec.h"
#include "format/grid.h"

namespace stepwell::db {

// Four chunks of the target size with their trailers, and any single chunk.
inline constexpr size_t kBlockBytes = (size_t{4} << 20) + (size_t{128} << 10);

struct ChunkTask {
  uint32_t leaf = 0;  // index into the step's leaves
  uint32_t logical_bytes = 0;
  uint32_t offset_bytes = 0;  // in the block, of the chunk's bytes as staged
  uint64_t chunk_index = 0;   // among the chunks that are saved of the leaf
};
struct BlockTask {
  std::vector<ChunkTask> chunks;
  // Staged chunks are payloads already but for their CRC: encoding is in place.
  bool in_place = false;

  uint64_t logical_bytes() const {
    uint64_t sum = 0;
    for (const ChunkTask& chunk : chunks) sum += chunk.logical_bytes;
    return sum;
  }
};

// A leaf as the pipeline sees it: the input, with its grid and codec decided. Of a partial one,
// each shard is the piece of the record with its index.
struct PlannedLeaf {
  LeafInput input;
  ShardMap shards;  // the shards of an array that is given in shards; has taken input.shards
  uint32_t item = 0;
  const format::DTypeInfo* dtype = nullptr;  // null for values
  // The leaf of the commit to refer to, of the same grid; null: none. `base_step` says whether that
  // still may be.
  const BaseLeaf* base = nullptr;
  SaveBase* base_step = nullptr;
  format::Hash128 grid;         // GridHash, once the grid is decided
  bool said_unchanged = false;  // since the base, as the caller knows
  bool unchanged = false;       // every chunk is the base's; none is read
  // An earlier leaf of the save (its index) that is read from the same memory, as where a tree has
  // one array twice: this one has the same chunks. None: it has its own.
  std::optional<uint32_t> twin;
  // Where contents are kept for later differences; null: no differences are made.
  RecentChunks* recent = nullptr;
  // Changed chunks are stored as differences to the base's, where that pays.
  bool as_delta = false;
  bool near_base = false;  // of a chunk at least; engine thread
  bool changed = false;    // a chunk's content is not the base's; engine thread
  // PlanLeaf sets record.statistics; each chunk's are added to it when the chunk is recorded.
  bool takes_statistics = false;
  format::CodecId codec = format::CodecId::kRaw;
};

// The chunk shape for `shape`: what the leaf asks for, or the usual one. kInvalidArgument when what
// it asks for cannot be.
Result<format::Shape> WantedChunkShape(const LeafInput& input, std::span<const uint64_t> shape,
                                       std::span<const uint64_t> shard_shape);

// Lets the leaves of a save, ascending by key, refer to those of the same key in `base`, which
// outlives the job. `ticket` is the save's. Call before PlanLeaf.
void ReferTo(SaveBase* base, uint64_t ticket, std::span<PlannedLeaf> leaves);

// Returns true if differences are tried after so many saves in a row without one: less and less
// often, since the base has to be read for it.
constexpr bool TriesDelta(uint8_t dense_saves) { return (dense_saves & (dense_saves - 1)) == 0; }
// Returns the count after one more such save. From 128 on it goes round, so that every 64th save
// tries.
constexpr uint8_t NextDenseSaves(uint8_t dense_saves) {
  return dense_saves >= 128 ? uint8_t{65} : static_cast<uint8_t>(dense_saves + 1);
}

// Checks the leaf and fills record.chunk_shape, chunk_count, pieces and logical_bytes, and the
// codec, or moves a short value inline. `policy` kAuto samples the data; the codec of a leaf that
// is far away is still to be chosen.
Status PlanLeaf(CodecPolicy policy, PlannedLeaf* leaf);

// Returns true if the bytes of an array are ShardInput::far.
inline bool IsFar(const PlannedLeaf& leaf) {
  const auto& shards = leaf.shards.shards();
  return !shards.empty() && shards.front().far;
}

// Chooses the codec of an array, by a sample of what of it is in memory: `chunk` is.
void ChooseCodec(CodecPolicy policy, uint64_t chunk, PlannedLeaf* leaf);

// Sets `twin` of those of `which`, ascending, that have one among them. Call after PlanLeaf.
void FindTwins(std::span<PlannedLeaf> leaves, std::span<const uint32_t> which);

// Blocks for the chunks of `leaves[i]` for each i of `which`, in that order. With `stage`, offsets
// are those of the staged copy, and raw and other chunks go to separate blocks.
std::vector<BlockTask> PlanBlocks(std::span<const PlannedLeaf> leaves,
                                  std::span<const uint32_t> which, bool stage);

// A chunk among those that are saved of a leaf (its index).
struct LeafChunk {
  uint32_t leaf = 0;
  uint64_t chunk = 0;
};
// The same for these chunks only, staged.
std::vector<BlockTask> PlanStagedBlocks(std::span<const PlannedLeaf> leaves,
                                        std::span<const LeafChunk> chunks);

// The shards (their numbers) that have elements of a chunk of an array that comes in shards.
std::vector<uint32_t> ShardsOfChunk(const PlannedLeaf& leaf, uint64_t chunk_index);

// A leaf in messages.
std::string InputName(const format::LeafRecord& record);

// Returns the most bytes that the payload of a chunk may take, with its CRC.
uint64_t PayloadBytesMax(const PlannedLeaf& leaf, uint64_t chunk_index, uint32_t logical_bytes);

// The grid that a chunk of an array is one of: the array's, or that of one of its pieces.
struct ChunkOnGrid {
  std::span<const uint64_t> shape;
  std::span<const uint64_t> chunk_shape;
  uint64_t index = 0;  // on this grid
};
ChunkOnGrid GridOf(const format::LeafRecord& record, uint64_t chunk_index);

// Copies the chunks of a block from the leaves' memory to their staged offsets.
void StageBlock(std::span<const PlannedLeaf> leaves, const BlockTask& task, std::byte* block);

// Values longer than this are cut into several LZ4 frames.
inline constexpr uint64_t kValueChunkBytes = uint64_t{1} << 20;

uint32_t LogicalChunkBytes(const PlannedLeaf& leaf, uint64_t chunk_index);
// The bytes of a chunk where they already lie in memory as the codec wants them, else empty.
ConstBytes InSource(const PlannedLeaf& leaf, const ChunkTask& chunk);
void GatherTo(const PlannedLeaf& leaf, const ChunkTask& chunk, std::byte* out);
// format::SampleRatio of four small pieces spread over the array (over its shards in memory, if it
// comes in some), or of `chunk`, which is in memory, where it is not contiguous. The array has at
// least 16 KiB.
double Sample(const PlannedLeaf& leaf, uint64_t chunk);

}  // namespace stepwell::db
