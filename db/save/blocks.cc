// SPDX-License-Identifier: Apache-2.0
// Chunks into blocks.
#include <utility>

#include "db/save/plan.h"

namespace stepwell::db {
namespace {

using format::CodecId;

// Collects chunks into blocks of one sort.
struct BlockBuilder {
  bool in_place = false;
  std::vector<BlockTask>* blocks = nullptr;
  BlockTask current{};
  size_t used_bytes = 0;

  void Add(uint32_t leaf, uint64_t chunk_index, uint32_t logical_bytes, size_t payload_max) {
    size_t offset = AlignUp(used_bytes, PayloadAlignment(payload_max));
    if (offset + payload_max > kBlockBytes) {
      Flush();
      offset = 0;
    }
    current.chunks.push_back({leaf, logical_bytes, static_cast<uint32_t>(offset), chunk_index});
    used_bytes = offset + payload_max;
  }
  void Flush() {
    if (current.chunks.empty()) return;
    current.in_place = in_place;
    blocks->push_back(std::move(current));
    current = {};
    used_bytes = 0;
  }
};

// Collects chunks of both sorts.
class BlocksBuilder {
 public:
  BlocksBuilder(std::span<const PlannedLeaf> leaves, bool stage)
      : leaves_(leaves),
        stage_(stage),
        raw_{.in_place = stage, .blocks = &blocks_},
        coded_{.in_place = false, .blocks = &blocks_} {}

  void Add(uint32_t number, uint64_t chunk) {
    const PlannedLeaf& leaf = leaves_[number];
    const bool is_raw = stage_ && leaf.codec == CodecId::kRaw && !leaf.as_delta;
    const uint32_t logical = LogicalChunkBytes(leaf, chunk);
    (is_raw ? raw_ : coded_).Add(number, chunk, logical, PayloadBytesMax(leaf, chunk, logical));
  }
  std::vector<BlockTask> Finish() {
    raw_.Flush();
    coded_.Flush();
    return std::move(blocks_);
  }

 private:
  const std::span<const PlannedLeaf> leaves_;
  const bool stage_;
  std::vector<BlockTask> blocks_;
  BlockBuilder raw_;
  BlockBuilder coded_;
};

}  // namespace

std::vector<BlockTask> PlanBlocks(std::span<const PlannedLeaf> leaves,
                                  std::span<const uint32_t> which, bool stage) {
  BlocksBuilder blocks(leaves, stage);
  for (const uint32_t i : which) {
    if (leaves[i].unchanged || leaves[i].twin) continue;
    const uint64_t count = leaves[i].input.record.chunk_count;
    for (uint64_t chunk = 0; chunk < count; ++chunk) blocks.Add(i, chunk);
  }
  return blocks.Finish();
}

std::vector<BlockTask> PlanStagedBlocks(std::span<const PlannedLeaf> leaves,
                                        std::span<const LeafChunk> chunks) {
  BlocksBuilder blocks(leaves, /*stage=*/true);
  for (const auto [leaf, chunk] : chunks) blocks.Add(leaf, chunk);
  return blocks.Finish();
}

void StageBlock(std::span<const PlannedLeaf> leaves, const BlockTask& task, std::byte* block) {
  for (const ChunkTask& chunk : task.chunks) {
    GatherTo(leaves[chunk.leaf], chunk, block + chunk.offset_bytes);
  }
}

}  // namespace stepwell::db
