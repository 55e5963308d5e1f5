// SPDX-License-Identifier: Apache-2.0
#include "db/save/encode.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "format/element_statistics.h"
#include "format/endian.h"
#include "format/hash.h"

namespace stepwell::db {

using format::CodecId;

namespace {

constexpr uint64_t kBaseRecordBytes = 64;  // of a StoredPayload in a leaf's record and its copy

// The chunk's bytes: as they were staged, where they are, or gathered (into `out` if they are
// stored raw). For differences they are always copied: hash, difference and what is kept must be of
// the same bytes, also where a caller breaks the promise not to write to the array meanwhile.
ConstBytes LogicalBytes(const PlannedLeaf& leaf, const ChunkTask& chunk, ConstBytes staged,
                        std::vector<std::byte>* scratch, MutableBytes out) {
  if (!staged.empty()) return staged;
  if (leaf.codec == CodecId::kRaw && !leaf.as_delta) {
    GatherTo(leaf, chunk, out.data());
    return out.first(chunk.logical_bytes);
  }
  const ConstBytes source = leaf.recent == nullptr ? InSource(leaf, chunk) : ConstBytes();
  if (source.data() != nullptr) return source;
  scratch->resize(chunk.logical_bytes);
  GatherTo(leaf, chunk, scratch->data());
  return *scratch;
}

// Takes the statistics of a chunk with the hash `encoded` has. Without the base's bytes, all
// elements of a chunk that is not the base's may have changed.
void TakeStatistics(const PlannedLeaf& leaf, const ChunkTask& chunk, ConstBytes logical,
                    EncodedChunk* encoded) {
  if (!leaf.takes_statistics || leaf.dtype == nullptr) return;
  const ChunkOnGrid at = GridOf(leaf.input.record, chunk.chunk_index);
  auto& statistics = encoded->statistics.emplace(
      format::StatisticsOfChunk(*leaf.dtype, at.shape, at.chunk_shape, at.index, logical));
  if (leaf.base == nullptr) return;
  const bool is_same = leaf.base->chunks[chunk.chunk_index].hash == encoded->hash;
  statistics.changed = is_same ? 0 : statistics.elements;
  statistics.changed_count = is_same ? format::ChangedCount::kExact : format::ChangedCount::kAtMost;
}

// With the base's bytes, which are compared for a difference anyway.
void CountChanged(const PlannedLeaf& leaf, ConstBytes base, ConstBytes logical,
                  EncodedChunk* encoded) {
  if (!encoded->statistics) return;
  const uint64_t changed = format::CountDifferent(leaf.dtype->item_bytes, base, logical);
  encoded->statistics->changed = std::min(changed, encoded->statistics->elements);
  encoded->statistics->changed_count = format::ChangedCount::kExact;
}

// A chunk that comes encoded, as it is.
Result<EncodedChunk> CopyPayload(const PlannedLeaf& leaf, const ChunkTask& chunk,
                                 std::vector<std::byte>* scratch, MutableBytes out) {
  const ConstBytes payload = leaf.input.payloads[chunk.chunk_index];
  std::memcpy(out.data(), payload.data(), payload.size());
  EncodedChunk encoded;
  encoded.stored_bytes = static_cast<uint32_t>(payload.size());
  encoded.crc = format::LoadLittle<uint32_t>(payload.data() + payload.size() - format::kCrcBytes);
  ConstBytes logical = payload.first(payload.size() - format::kCrcBytes);
  if (leaf.codec != CodecId::kRaw) {
    scratch->resize(chunk.logical_bytes);
    STEPWELL_RETURN_IF_ERROR(format::DecodePayload(leaf.codec, payload, *scratch));
    logical = *scratch;
  }
  encoded.hash = format::HashOf(logical);
  TakeStatistics(leaf, chunk, logical, &encoded);
  return encoded;
}

// Returns true if the base has the same chunk: content (by its hash), codec, stored length and CRC
// agree, and a payload of an earlier session is still there.
bool IsInBase(const PlannedLeaf& leaf, const ChunkTask& chunk, const EncodedChunk& encoded,
              ConstBytes payload) {
  if (leaf.base == nullptr) return false;
  const format::ChunkRecord& there = leaf.base->chunks[chunk.chunk_index];
  return there.hash.known() && there.hash == encoded.hash && there.codec == leaf.codec &&
         there.logical_bytes == chunk.logical_bytes && there.stored_bytes == encoded.stored_bytes &&
         there.crc == encoded.crc && leaf.base_step->Holds(there, payload) &&
         leaf.base_step->Refer();
}

// Returns the most bytes that a difference to `there` may take; 0: a keyframe is due. A restore
// reads at most one and a half times the decoded bytes, and the differences behind a keyframe
// together take at most as much as it. One that is hardly smaller than a keyframe is not worth its
// bases. Each step names all of these again, so that chains of n differences cost n * n names: a
// keyframe comes before the names take more than it.
size_t RoomForDelta(const format::ChunkRecord& there) {
  const size_t bases = there.bases.size() + 1;
  const format::StoredPayload& keyframe = there.bases.empty() ? there : there.bases.front();
  if (bases > format::kBasesMax || bases * bases * kBaseRecordBytes > keyframe.stored_bytes) {
    return 0;
  }
  const uint64_t all = std::min(uint64_t{there.logical_bytes} + there.logical_bytes / 2,
                                2 * uint64_t{keyframe.stored_bytes});
  const uint64_t used = there.all_stored_bytes();
  return used < all ? std::min<uint64_t>(all - used, keyframe.stored_bytes / 4 * 3) : 0;
}

// Encodes the chunk as the base's, or as a difference to it. `encoded` stays as it is where neither
// pays, and where the base cannot be read: the chunk is then stored whole.
Status EncodeAgainstBase(const PlannedLeaf& leaf, const ChunkTask& chunk, ConstBytes logical,
                         MutableBytes out, EncodedChunk* encoded) {
  const format::ChunkRecord& there = leaf.base->chunks[chunk.chunk_index];
  if (!there.hash.known() || there.logical_bytes != logical.size()) return OkStatus();
  const bool is_same = there.hash == encoded->hash;
  // A chunk that is stored whole is compared as it is stored (IsInBase).
  if (is_same && there.bases.empty()) return OkStatus();
  const size_t delta_max = std::min(RoomForDelta(there), out.size());
  if (!is_same && delta_max == 0) return OkStatus();
  RecentChunks::Held held;
  std::string read;
  const auto base = leaf.base_step->BytesOf(there, *leaf.recent, &held, &read);
  if (!base.ok()) return OkStatus();
  if (is_same) {
    encoded->same = std::ranges::equal(*base, logical) && leaf.base_step->Refer();
    return OkStatus();
  }
  CountChanged(leaf, *base, logical, encoded);
  STEPWELL_ASSIGN_OR_RETURN(
      const format::Payload payload,
      format::EncodeDelta(format::DeltaTypeOf(*leaf.dtype), *base, logical, out.first(delta_max)));
  if (payload.size_bytes == 0 || !leaf.base_step->Refer()) return OkStatus();
  encoded->delta = true;
  encoded->stored_bytes = static_cast<uint32_t>(payload.size_bytes);
  encoded->crc = payload.crc;
  return OkStatus();
}

// Keeps the chunk's bytes where the next save may want to store a difference to them. Those of the
// base have no further use; nor do those of a chunk that has not changed, such as one of a frozen
// layer, unless the base is a difference: the next save would read all of its chain to compare.
void KeepForNext(const PlannedLeaf& leaf, const ChunkTask& chunk, ConstBytes logical,
                 const format::Hash128& hash) {
  if (leaf.recent == nullptr) return;
  if (leaf.base == nullptr) return leaf.recent->Keep(hash, logical, {});
  const format::ChunkRecord& there = leaf.base->chunks[chunk.chunk_index];
  const format::Hash128& old = there.hash;
  const bool is_frozen = old == hash && there.bases.empty();
  if (is_frozen || (!leaf.as_delta && !TriesDelta(NextDenseSaves(leaf.base->dense_saves)))) {
    return leaf.recent->LetGo(old);
  }
  leaf.recent->Keep(hash, logical, old);
}

}  // namespace

Result<EncodedChunk> EncodeChunk(const PlannedLeaf& leaf, const ChunkTask& chunk, ConstBytes staged,
                                 std::vector<std::byte>* scratch, MutableBytes out) {
  EncodedChunk encoded;
  if (!leaf.input.payloads.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(encoded, CopyPayload(leaf, chunk, scratch, out));
  } else {
    const ConstBytes logical = LogicalBytes(leaf, chunk, staged, scratch, out);
    encoded.hash = format::HashOf(logical);
    TakeStatistics(leaf, chunk, logical, &encoded);
    if (leaf.as_delta) {
      STEPWELL_RETURN_IF_ERROR(EncodeAgainstBase(leaf, chunk, logical, out, &encoded));
    }
    KeepForNext(leaf, chunk, logical, encoded.hash);
    if (encoded.same || encoded.delta) return encoded;
    const size_t item = leaf.dtype != nullptr ? leaf.dtype->item_bytes : 1;
    STEPWELL_ASSIGN_OR_RETURN(const format::Payload payload,
                              format::EncodePayload(leaf.codec, item, logical, out));
    encoded.stored_bytes = static_cast<uint32_t>(payload.size_bytes);
    encoded.crc = payload.crc;
  }
  encoded.same = IsInBase(leaf, chunk, encoded, out.first(encoded.stored_bytes));
  return encoded;
}

// A chunk that is the same as in the base leaves no gap: chunks that were staged behind it, to be
// stored in place, move up.
EncodedBlock EncodeBlock(std::span<const PlannedLeaf> leaves, const BlockTask& task,
                         const std::byte* staged, size_t alignment, MutableBytes out) {
  EncodedBlock result;
  result.chunks.reserve(task.chunks.size());
  std::vector<std::byte> scratch;
  size_t used = 0;
  for (const ChunkTask& chunk : task.chunks) {
    const PlannedLeaf& leaf = leaves[chunk.leaf];
    const size_t payload_max = PayloadBytesMax(leaf, chunk.chunk_index, chunk.logical_bytes);
    size_t offset = AlignUp(used, PayloadAlignment(payload_max));
    const size_t encoded_at = task.in_place ? chunk.offset_bytes : offset;
    ConstBytes bytes;
    if (staged != nullptr) bytes = {staged + chunk.offset_bytes, chunk.logical_bytes};
    Result<EncodedChunk> encoded =
        EncodeChunk(leaf, chunk, bytes, &scratch, out.subspan(encoded_at));
    if (!encoded.ok()) {
      result.status = encoded.status();
      return result;
    }
    if (!encoded->same) {
      if (encoded->delta) offset = AlignUp(used, PayloadAlignment(encoded->stored_bytes));
      if (encoded_at != offset) {
        std::memmove(out.data() + offset, out.data() + encoded_at, encoded->stored_bytes);
      }
      std::memset(out.data() + used, 0, offset - used);
      encoded->offset_bytes = static_cast<uint32_t>(offset);
      used = offset + encoded->stored_bytes;
    }
    result.chunks.push_back(*encoded);
  }
  result.used_bytes = AlignUp(used, alignment);
  std::memset(out.data() + used, 0, result.used_bytes - used);
  return result;
}

}  // namespace stepwell::db
