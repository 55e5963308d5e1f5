// SPDX-License-Identifier: Apache-2.0
// From the bytes of a block's chunks to what is stored of them. Pure, but for what SaveBase reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "db/save/plan.h"

namespace stepwell::db {

struct EncodedChunk {
  uint32_t offset_bytes = 0;  // in the block
  uint32_t stored_bytes = 0;
  uint32_t crc = 0;
  format::Hash128 hash;                              // of the chunk's bytes
  bool same = false;                                 // as in the base: nothing is stored
  bool delta = false;                                // a difference to the base's chunk is stored
  std::optional<format::LeafStatistics> statistics;  // where the leaf's are taken
};
// Encodes one chunk of a leaf to the beginning of `out`, which has room for the payload. The
// chunk's bytes are `staged`, or where that is empty the leaf's own memory. What is stored of a
// chunk is decided here alone; the offset of the result is 0.
Result<EncodedChunk> EncodeChunk(const PlannedLeaf& leaf, const ChunkTask& chunk, ConstBytes staged,
                                 std::vector<std::byte>* scratch, MutableBytes out);

struct EncodedBlock {
  Status status;
  std::vector<EncodedChunk> chunks;  // as BlockTask::chunks
  size_t used_bytes = 0;             // a multiple of `alignment`, the rest of it zeros
};
// Encodes a block into `out` (kBlockBytes). The chunks come from `staged` (== out.data() for
// in_place tasks), or from the leaves' own memory where it is null.
EncodedBlock EncodeBlock(std::span<const PlannedLeaf> leaves, const BlockTask& task,
                         const std::byte* staged, size_t alignment, MutableBytes out);

}  // namespace stepwell::db
