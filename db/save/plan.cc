// SPDX-License-Identifier: Apache-2.0
#include "db/save/plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "format/endian.h"
#include "format/hash.h"
#include "format/piece.h"

namespace stepwell::db {
namespace {

using format::CodecId;
using format::LeafKind;
using format::PieceRecord;

// Arrays below this are stored raw without a look: the trailer and index cost more than they save.
constexpr uint64_t kSampledBytesMin = uint64_t{64} << 10;
// Compression pays on the hot path when it at least halves the bytes: LZ4 with bitshuffle then runs
// faster than a local drive writes what it saves.
constexpr double kWorthwhileRatio = 2.0;

// The shards of a part of an array whose chunks come encoded.
Status PlanEncodedPieces(PlannedLeaf* leaf) {
  auto& input = leaf->input;
  auto& record = input.record;
  for (ShardInput& shard : input.shards) shard.data = input.payloads.front().data();
  const auto by_origin = [](const ShardInput& a, const ShardInput& b) {
    return a.origin < b.origin;
  };
  if (!std::is_sorted(input.shards.begin(), input.shards.end(), by_origin)) {
    return InvalidArgumentError("its encoded shards do not ascend");
  }
  STEPWELL_ASSIGN_OR_RETURN(leaf->shards,
                            ShardMap::Make(record.shape, leaf->dtype->item_bytes, /*partial=*/true,
                                           std::move(input.shards)));
  input.shards.clear();
  for (const ShardInput& shard : leaf->shards.shards()) {
    if (!format::LiesOnGrid(record, shard.origin, shard.shape)) {
      return InvalidArgumentError("an encoded shard ends within a chunk");
    }
    record.pieces.push_back({shard.origin, shard.shape, record.chunk_shape, record.chunk_count});
    record.chunk_count += format::ChunkCount(shard.shape, record.chunk_shape);
  }
  return OkStatus();
}

// Returns true if the record says how the array is cut.
bool HasGrid(const format::LeafRecord& record) {
  const auto is_zero = [](uint64_t extent) { return extent == 0; };
  return record.chunk_shape.size() == record.shape.size() &&
         std::none_of(record.chunk_shape.begin(), record.chunk_shape.end(), is_zero);
}

// Chunks that come encoded: what a reader of the log would refuse is refused here.
Status PlanEncoded(PlannedLeaf* leaf) {
  auto& record = leaf->input.record;
  const auto& payloads = leaf->input.payloads;
  if (leaf->input.hold == nullptr) return InvalidArgumentError("nothing holds its payloads");
  leaf->codec = leaf->input.codec;
  const format::CodecInfo* const codec = format::FindCodec(leaf->codec);
  if (codec == nullptr || codec->zarr == format::ZarrChain::kNone) {
    return InvalidArgumentError("not a codec of arrays");
  }
  if (!HasGrid(record)) return InvalidArgumentError("its chunks have other axes than it has");
  const size_t item = leaf->dtype->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t chunk_elements,
                            format::ElementCount(record.chunk_shape, item));
  if (leaf->input.partial) {
    STEPWELL_RETURN_IF_ERROR(PlanEncodedPieces(leaf));
  } else {
    record.chunk_count = format::ChunkCount(record.shape, record.chunk_shape);
  }
  if (chunk_elements * item > format::kChunkBytesMax || record.chunk_count != payloads.size()) {
    return InvalidArgumentError(StrCat(payloads.size(), " chunks of ", chunk_elements * item,
                                       " bytes; its grid has ", record.chunk_count));
  }
  const size_t payload_max = format::PayloadBytesMax(leaf->codec, chunk_elements * item);
  for (const ConstBytes payload : payloads) {
    if (payload.size() < format::kCrcBytes || payload.size() > payload_max) {
      return InvalidArgumentError(StrCat("a payload of ", payload.size(), " bytes"));
    }
  }
  const auto& shard = leaf->input.shard_shape;
  if (shard.size() == record.shape.size() && shard != record.shape) record.shard_shape = shard;
  return OkStatus();
}

// Plans where the array's bytes come from: one piece of memory, or shards.
Status PlanSource(uint64_t elements, PlannedLeaf* leaf) {
  auto& input = leaf->input;
  const size_t item = leaf->dtype->item_bytes;
  const format::Shape& shape = input.record.shape;
  if (!input.shards.empty() || input.partial) {
    STEPWELL_ASSIGN_OR_RETURN(leaf->shards,
                              ShardMap::Make(shape, item, input.partial, std::move(input.shards)));
    input.shards.clear();
    if (input.shard_shape.empty()) input.shard_shape = leaf->shards.pitch();
    return OkStatus();
  }
  if (input.strides_bytes.empty()) input.strides_bytes = format::CStrides(shape, item);
  if (input.strides_bytes.size() != shape.size()) {
    return InvalidArgumentError("as many strides as axes are needed");
  }
  if (elements > 0 && input.data == nullptr) return InvalidArgumentError("no data");
  return OkStatus();
}

// The pieces of a leaf of which others save the rest, and the grid that they are parts of, if one
// chunk shape divides the shards: else the pieces have grids of their own.
Status PlanPieces(PlannedLeaf* leaf) {
  auto& record = leaf->input.record;
  for (const ShardInput& shard : leaf->shards.shards()) {
    PieceRecord piece{shard.origin, shard.shape, record.chunk_shape, record.chunk_count};
    if (!format::LiesOnGrid(record, shard.origin, shard.shape)) {
      STEPWELL_ASSIGN_OR_RETURN(piece.chunk_shape, WantedChunkShape(leaf->input, shard.shape, {}));
    }
    record.chunk_count += format::ChunkCount(shard.shape, piece.chunk_shape);
    record.pieces.push_back(std::move(piece));
  }
  return OkStatus();
}

// Returns true if the caller gives the chunk shape, as for a step that keeps the grid of another
// store, and blocks have room for such chunks.
bool HasUsableGrid(const format::LeafRecord& record, uint64_t item_bytes) {
  if (record.shape.empty() || !HasGrid(record)) return false;
  const auto elements = format::ElementCount(record.chunk_shape, item_bytes);
  return elements.ok() && *elements * item_bytes <= format::kChunkBytesMax;
}

Status PlanGrid(PlannedLeaf* leaf) {
  auto& input = leaf->input;
  auto& record = input.record;
  if (!input.shard_shape.empty() && input.shard_shape.size() != record.shape.size()) {
    return InvalidArgumentError("a shard has other axes than the array");
  }
  if (input.partial) {
    const auto& shard = input.shard_shape.empty() ? record.shape : input.shard_shape;
    STEPWELL_ASSIGN_OR_RETURN(record.chunk_shape, WantedChunkShape(input, shard, {}));
    return PlanPieces(leaf);
  }
  if (!HasUsableGrid(record, leaf->dtype->item_bytes)) {
    STEPWELL_ASSIGN_OR_RETURN(record.chunk_shape,
                              WantedChunkShape(input, record.shape, input.shard_shape));
  }
  record.chunk_count = format::ChunkCount(record.shape, record.chunk_shape);
  return OkStatus();
}

// With the grid known: whether all chunks are the base's, as the caller knows. Its statistics are,
// too: a base that the caller knows of is of this session, and has them if this save takes them.
bool TakeUnchanged(PlannedLeaf* leaf) {
  if (!leaf->said_unchanged || GridHash(leaf->input.record) != leaf->base->grid) return false;
  const auto& chunks = leaf->base->chunks;
  const bool all_known = std::all_of(chunks.begin(), chunks.end(),
                                     [](const auto& chunk) { return chunk.hash.known(); });
  if (!all_known || !leaf->base_step->Refer()) return false;
  auto& record = leaf->input.record;
  record.chunks = chunks;
  for (format::ChunkRecord& chunk : record.chunks) chunk.SetReferenced();
  record.statistics = leaf->base->statistics;
  if (record.statistics) {
    record.statistics->changed = 0;
    record.statistics->changed_count = format::ChangedCount::kExact;
  }
  leaf->unchanged = true;
  return true;
}

Status PlanArray(CodecPolicy policy, PlannedLeaf* leaf) {
  auto& record = leaf->input.record;
  leaf->dtype = format::FindDType(record.dtype);
  if (leaf->dtype == nullptr) return InvalidArgumentError("unknown dtype");
  const size_t item = leaf->dtype->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t elements, format::ElementCount(record.shape, item));
  record.logical_bytes = elements * item;
  if (!leaf->input.payloads.empty()) {
    if (leaf->takes_statistics) record.statistics.emplace();
    return PlanEncoded(leaf);
  }
  STEPWELL_RETURN_IF_ERROR(PlanSource(elements, leaf));
  STEPWELL_RETURN_IF_ERROR(PlanGrid(leaf));
  if (leaf->input.shard_shape != record.shape) record.shard_shape = leaf->input.shard_shape;
  if (TakeUnchanged(leaf)) return OkStatus();
  if (leaf->takes_statistics) record.statistics.emplace();
  if (!IsFar(*leaf)) ChooseCodec(policy, record.chunk_count / 2, leaf);
  return OkStatus();
}

const PieceRecord& PieceOf(const format::LeafRecord& record, uint64_t chunk_index) {
  const auto after = std::upper_bound(
      record.pieces.begin(), record.pieces.end(), chunk_index,
      [](uint64_t index, const PieceRecord& piece) { return index < piece.first_chunk; });
  return *std::prev(after);
}

const ShardInput& ShardOf(const PlannedLeaf& leaf, const PieceRecord& piece) {
  return leaf.shards.shards()[static_cast<size_t>(&piece - leaf.input.record.pieces.data())];
}

}  // namespace

Result<format::Shape> WantedChunkShape(const LeafInput& input, std::span<const uint64_t> shape,
                                       std::span<const uint64_t> shard_shape) {
  const format::DTypeInfo* dtype = format::FindDType(input.record.dtype);
  if (dtype == nullptr) return InvalidArgumentError("unknown dtype");
  if (input.chunk_bytes_max > 0 || !input.chunk_axes.empty()) {
    const uint64_t bytes_max =
        input.chunk_bytes_max > 0 ? input.chunk_bytes_max : format::kChunkBytesMax;
    return format::ChunkShapeWithin(shape, dtype->item_bytes, shard_shape, bytes_max,
                                    input.chunk_axes);
  }
  if (input.partial) {
    const auto divides = format::DividingChunkShape(shape, dtype->item_bytes);
    if (divides) return *divides;
  }
  return format::ChooseChunkShape(shape, dtype->item_bytes, shard_shape);
}

void ReferTo(SaveBase* base, uint64_t ticket, std::span<PlannedLeaf> leaves) {
  // A save of another thread may have been committed that came later than this one: of what it has,
  // this one's caller knew nothing.
  const bool is_earlier = base->ticket() < ticket;
  auto there = base->leaves().begin();
  for (PlannedLeaf& leaf : leaves) {
    while (there != base->leaves().end() && there->key < leaf.input.record.key) ++there;
    if (there == base->leaves().end()) return;
    if (there->key != leaf.input.record.key) continue;
    leaf.base = &*there;
    leaf.base_step = base;
    const uint64_t since = leaf.input.unchanged_since;
    leaf.said_unchanged = is_earlier && since != 0 && since <= base->ticket();
  }
}

namespace {

Status PlanWithoutBase(CodecPolicy policy, PlannedLeaf* leaf) {
  auto& record = leaf->input.record;
  record.chunks.clear();
  record.first_chunk = 0;
  record.chunk_count = 0;
  record.shard_shape.clear();
  record.statistics.reset();
  switch (record.kind) {
    case LeafKind::kNode:
      return OkStatus();
    case LeafKind::kArray:
      return PlanArray(policy, leaf);
    case LeafKind::kValue:
      record.logical_bytes = leaf->input.value.size();
      leaf->codec = CodecId::kLz4Frame;
      if (leaf->input.value.size() <= format::kInlineValueBytesMax) {
        record.inline_value = std::move(leaf->input.value);
        leaf->input.value.clear();
      } else {
        record.chunk_count = (record.logical_bytes + kValueChunkBytes - 1) / kValueChunkBytes;
      }
      return OkStatus();
  }
  return InvalidArgumentError("unknown kind of leaf");
}

}  // namespace

void ChooseCodec(CodecPolicy policy, uint64_t chunk, PlannedLeaf* leaf) {
  const auto& record = leaf->input.record;
  // All processes that save parts of an array have to choose the same codec, without seeing all of
  // it.
  const auto& shards = leaf->shards.shards();
  const bool has_all =
      !leaf->input.partial || (shards.size() == 1 && shards.front().shape == record.shape);
  const bool worthwhile =
      policy == CodecPolicy::kBlosc ||
      (policy == CodecPolicy::kAuto && has_all && record.logical_bytes >= kSampledBytesMin &&
       Sample(*leaf, chunk) >= kWorthwhileRatio);
  leaf->codec = worthwhile && record.logical_bytes > 0 ? CodecId::kBloscLz4 : CodecId::kRaw;
}

Status PlanLeaf(CodecPolicy policy, PlannedLeaf* leaf) {
  leaf->input.record.partial = leaf->input.partial;
  STEPWELL_RETURN_IF_ERROR(PlanWithoutBase(policy, leaf));
  if (leaf->input.record.chunk_count > 0) leaf->grid = GridHash(leaf->input.record);
  if (leaf->base != nullptr && leaf->grid != leaf->base->grid) leaf->base = nullptr;
  if (leaf->dtype == nullptr || !leaf->input.payloads.empty()) leaf->recent = nullptr;
  leaf->as_delta = leaf->recent != nullptr && leaf->base != nullptr && !leaf->unchanged &&
                   TriesDelta(leaf->base->dense_saves);
  return OkStatus();
}

namespace {

// Of smaller ones two copies cost hardly more than one: space is given out in blocks.
constexpr uint64_t kTwinBytesMin = 4096;

// Where the leaf's first element lies; null: it is not read from one place, or has no twin.
const std::byte* MemoryOf(const PlannedLeaf& leaf) {
  const LeafInput& input = leaf.input;
  if (leaf.dtype == nullptr || leaf.unchanged || leaf.takes_statistics || input.partial ||
      !input.payloads.empty() || input.record.logical_bytes < kTwinBytesMin) {
    return nullptr;
  }
  return leaf.shards.empty() ? input.data : nullptr;
}

}  // namespace

void FindTwins(std::span<PlannedLeaf> leaves, std::span<const uint32_t> which) {
  std::unordered_multimap<const std::byte*, uint32_t> seen;
  for (const uint32_t i : which) {
    PlannedLeaf& leaf = leaves[i];
    const std::byte* const memory = MemoryOf(leaf);
    if (memory == nullptr) continue;
    const auto [begin, end] = seen.equal_range(memory);
    const auto is_twin = [&](const auto& other) {
      const PlannedLeaf& twin = leaves[other.second];
      return twin.grid == leaf.grid && twin.codec == leaf.codec &&
             twin.input.strides_bytes == leaf.input.strides_bytes;
    };
    if (const auto it = std::find_if(begin, end, is_twin); it != end) {
      leaf.twin = it->second;
    } else {
      seen.emplace(memory, i);
    }
  }
}

std::string InputName(const format::LeafRecord& record) {
  const auto key = format::DecodeLeafKey(record.key);
  if (!key.ok()) return "(undecodable key)";
  return StrCat("item '", key->item, "', leaf '", format::PathToText(key->path), "'");
}

uint64_t PayloadBytesMax(const PlannedLeaf& leaf, uint64_t chunk_index, uint32_t logical_bytes) {
  if (!leaf.input.payloads.empty()) return leaf.input.payloads[chunk_index].size();
  return format::PayloadBytesMax(leaf.codec, logical_bytes);
}

ChunkOnGrid GridOf(const format::LeafRecord& record, uint64_t chunk_index) {
  if (record.pieces.empty()) return {record.shape, record.chunk_shape, chunk_index};
  const PieceRecord& piece = PieceOf(record, chunk_index);
  return {piece.shape, piece.chunk_shape, chunk_index - piece.first_chunk};
}

uint32_t LogicalChunkBytes(const PlannedLeaf& leaf, uint64_t chunk_index) {
  const auto& record = leaf.input.record;
  if (record.kind == LeafKind::kArray) {
    const auto chunk_shape = GridOf(record, chunk_index).chunk_shape;
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
  if (!record.pieces.empty()) {
    const PieceRecord& piece = PieceOf(record, chunk.chunk_index);
    const ShardInput& shard = ShardOf(leaf, piece);
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

std::vector<uint32_t> ShardsOfChunk(const PlannedLeaf& leaf, uint64_t chunk_index) {
  const auto& record = leaf.input.record;
  if (record.pieces.empty()) {
    return leaf.shards.ShardsOf(record.shape, record.chunk_shape, chunk_index);
  }
  return {static_cast<uint32_t>(&PieceOf(record, chunk_index) - record.pieces.data())};
}

void GatherTo(const PlannedLeaf& leaf, const ChunkTask& chunk, std::byte* out) {
  const auto& input = leaf.input;
  const auto& record = input.record;
  if (record.kind == LeafKind::kValue) {
    std::memcpy(out, InSource(leaf, chunk).data(), chunk.logical_bytes);
  } else if (!record.pieces.empty()) {
    const PieceRecord& piece = PieceOf(record, chunk.chunk_index);
    const ShardInput& shard = ShardOf(leaf, piece);
    format::GatherChunk({shard.data, shard.shape, shard.strides_bytes}, *leaf.dtype,
                        piece.chunk_shape, chunk.chunk_index - piece.first_chunk, out);
  } else if (!leaf.shards.empty()) {
    leaf.shards.Gather(record.shape, *leaf.dtype, record.chunk_shape, chunk.chunk_index, out);
  } else {
    format::GatherChunk({input.data, record.shape, input.strides_bytes}, *leaf.dtype,
                        record.chunk_shape, chunk.chunk_index, out);
  }
}

double Sample(const PlannedLeaf& leaf, uint64_t chunk_index) {
  constexpr size_t kPieceBytes = 4096;
  std::array<std::byte, 4 * kPieceBytes> sample;
  const auto& input = leaf.input;
  const size_t item = leaf.dtype->item_bytes;
  std::vector<const ShardInput*> here;
  for (const ShardInput& shard : leaf.shards.shards()) {
    if (shard.data != nullptr) here.push_back(&shard);
  }
  for (size_t i = 0; i < 4; ++i) {
    const ShardInput* shard = here.empty() ? nullptr : here[(here.size() - 1) * i / 3];
    const std::byte* data = shard == nullptr ? input.data : shard->data;
    const auto& shape = shard == nullptr ? input.record.shape : shard->shape;
    const auto& strides = shard == nullptr ? input.strides_bytes : shard->strides_bytes;
    const uint64_t total = format::ChunkBytes(shape, item);
    if (total < kPieceBytes || strides != format::CStrides(shape, item)) {
      const ChunkTask task{.logical_bytes = LogicalChunkBytes(leaf, chunk_index),
                           .chunk_index = chunk_index};
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
