// SPDX-License-Identifier: Apache-2.0
#include "db/save/source.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace stepwell::db {
namespace {

using format::LeafKind;

const Piece& PieceOf(const PlannedLeaf& leaf, uint64_t chunk_index) {
  const auto after = std::upper_bound(
      leaf.pieces.begin(), leaf.pieces.end(), chunk_index,
      [](uint64_t index, const Piece& piece) { return index < piece.first_chunk; });
  return *std::prev(after);
}

}  // namespace

uint32_t LogicalChunkBytes(const PlannedLeaf& leaf, uint64_t chunk_index) {
  const auto& record = leaf.input.record;
  if (record.kind == LeafKind::kArray) {
    const format::Shape& chunk_shape =
        leaf.pieces.empty() ? record.chunk_shape : PieceOf(leaf, chunk_index).chunk_shape;
    return static_cast<uint32_t>(format::ChunkBytes(chunk_shape, leaf.dtype->item_bytes));
  }
  const uint64_t start = chunk_index * kValueChunkBytes;
  return static_cast<uint32_t>(std::min(kValueChunkBytes, record.logical_bytes - start));
}

ConstBytes InSource(const PlannedLeaf& leaf, const ChunkTask& chunk) {
  const auto& input = leaf.input;
  const auto& record = input.record;
  if (record.kind == LeafKind::kValue) {
    return AsBytes(input.value).subspan(chunk.chunk_index * kValueChunkBytes, chunk.logical_bytes);
  }
  const size_t item = leaf.dtype->item_bytes;
  if (leaf.dtype->value_bits != 0 || leaf.dtype->dtype == format::DType::kBool) return {};
  uint64_t offset = 0;
  if (!leaf.pieces.empty()) {
    const Piece& piece = PieceOf(leaf, chunk.chunk_index);
    const ShardInput& shard = leaf.shards.shards()[piece.shard];
    const bool contiguous =
        shard.strides_bytes == format::CStrides(shard.shape, item) &&
        format::ChunkIsContiguous(shard.shape, piece.chunk_shape,
                                  chunk.chunk_index - piece.first_chunk, item, &offset);
    return contiguous ? ConstBytes(shard.data + offset, chunk.logical_bytes) : ConstBytes();
  }
  if (!leaf.shards.empty()) {
    return leaf.shards.Run(record.shape, item, record.chunk_shape, chunk.chunk_index);
  }
  if (input.strides_bytes == format::CStrides(record.shape, item) &&
      format::ChunkIsContiguous(record.shape, record.chunk_shape, chunk.chunk_index, item,
                                &offset)) {
    return {input.data + offset, chunk.logical_bytes};
  }
  return {};
}

void GatherTo(const PlannedLeaf& leaf, const ChunkTask& chunk, std::byte* out) {
  const auto& input = leaf.input;
  const auto& record = input.record;
  if (record.kind == LeafKind::kValue) {
    std::memcpy(out, InSource(leaf, chunk).data(), chunk.logical_bytes);
  } else if (!leaf.pieces.empty()) {
    const Piece& piece = PieceOf(leaf, chunk.chunk_index);
    const ShardInput& shard = leaf.shards.shards()[piece.shard];
    format::GatherChunk({shard.data, shard.shape, shard.strides_bytes}, *leaf.dtype,
                        piece.chunk_shape, chunk.chunk_index - piece.first_chunk, out);
  } else if (!leaf.shards.empty()) {
    leaf.shards.Gather(record.shape, *leaf.dtype, record.chunk_shape, chunk.chunk_index, out);
  } else {
    format::GatherChunk({input.data, record.shape, input.strides_bytes}, *leaf.dtype,
                        record.chunk_shape, chunk.chunk_index, out);
  }
}

double Sample(const PlannedLeaf& leaf) {
  constexpr size_t kPieceBytes = 4096;
  std::array<std::byte, 4 * kPieceBytes> sample;
  const auto& input = leaf.input;
  const size_t item = leaf.dtype->item_bytes;
  const auto& shards = leaf.shards.shards();
  for (size_t i = 0; i < 4; ++i) {
    const ShardInput* shard = shards.empty() ? nullptr : &shards[(shards.size() - 1) * i / 3];
    const std::byte* data = shard == nullptr ? input.data : shard->data;
    const auto& shape = shard == nullptr ? input.record.shape : shard->shape;
    const auto& strides = shard == nullptr ? input.strides_bytes : shard->strides_bytes;
    const uint64_t total = format::ChunkBytes(shape, item);
    if (total < kPieceBytes || strides != format::CStrides(shape, item)) {
      const uint64_t middle = input.record.chunk_count / 2;
      const ChunkTask task{.logical_bytes = LogicalChunkBytes(leaf, middle), .chunk_index = middle};
      std::vector<std::byte> chunk(task.logical_bytes);
      GatherTo(leaf, task, chunk.data());
      const size_t size = std::min(chunk.size(), sample.size());
      return format::SampleRatio(ConstBytes(chunk).first(size), item);
    }
    const uint64_t at = AlignDown((total - kPieceBytes) / 3 * i, item);
    std::memcpy(sample.data() + i * kPieceBytes, data + at, kPieceBytes);
  }
  return format::SampleRatio(sample, item);
}

}  // namespace stepwell::db
