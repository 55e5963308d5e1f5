// SPDX-License-Identifier: Apache-2.0
// Tells pushes and pulls which leaves' chunks correspond, and what each payload of a chunk decodes
// to.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "db/log/chunk_source.h"
#include "format/hash.h"
#include "format/pushed.h"
#include "format/records.h"

namespace stepwell::db::transfer {

// Returns true if chunk i of one leaf is the same part of it as chunk i of the other.
bool AreOnOneGrid(const format::LeafRecord& a, const format::LeafRecord& b);

// A chunk in the list of a pushed step.
struct ListedChunk {
  const format::PushedStep* step = nullptr;
  const format::ChunkRecord* chunk = nullptr;
  std::span<const format::Hash128> base_hashes;  // of its bases

  // Returns the hash of what payload `i` decodes to; the last one is the chunk's own.
  const format::Hash128& hash(size_t i) const {
    return i < base_hashes.size() ? base_hashes[i] : chunk->hash;
  }
  const format::StoredPayload& payload(size_t i) const {
    return i < chunk->bases.size() ? chunk->bases[i] : *chunk;
  }
  size_t payloads() const { return chunk->bases.size() + 1; }
};

// The chunks of a list, by leaf.
class ListedChunks {
 public:
  // `step` outlives this.
  explicit ListedChunks(const format::PushedStep& step);

  const format::PushedStep& step() const { return *step_; }
  // Returns the leaf of this key; null: there is none.
  const format::LeafRecord* Find(std::string_view key) const;
  // `leaf`: of the list.
  ListedChunk At(const format::LeafRecord& leaf, size_t chunk) const;

 private:
  const format::PushedStep* step_;
  std::vector<std::vector<size_t>> first_base_;  // by leaf and chunk: index in base_hashes
  std::unordered_map<std::string_view, size_t> by_key_;
};

// Decodes one payload after the other, the bases first, into `out`, which has the chunk's length.
// Calls `decoded(i, hash)` after each.
template <typename PayloadOf, typename Decoded>
Status DecodePayloads(const format::ChunkRecord& chunk, size_t first, PayloadOf payload_of,
                      Decoded decoded, MutableBytes out) {
  for (size_t i = first; i <= chunk.bases.size(); ++i) {
    const format::StoredPayload& record = i < chunk.bases.size() ? chunk.bases[i] : chunk;
    STEPWELL_ASSIGN_OR_RETURN(const std::string payload, payload_of(i, record));
    STEPWELL_RETURN_IF_ERROR(format::DecodePayload(record.codec, AsBytes(payload), out));
    decoded(i, format::HashOf(out));
  }
  return OkStatus();
}

}  // namespace stepwell::db::transfer
