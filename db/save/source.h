// SPDX-License-Identifier: Apache-2.0
// The bytes of a planned leaf's chunks, wherever the caller has them: one array, shards, a value.
#pragma once

#include <cstddef>
#include <cstdint>

#include "db/save/plan.h"

namespace stepwell::db {

// Values longer than this are cut into several LZ4 frames.
inline constexpr uint64_t kValueChunkBytes = uint64_t{1} << 20;

uint32_t LogicalChunkBytes(const PlannedLeaf& leaf, uint64_t chunk_index);
// The bytes of a chunk where they already lie in memory as the codec wants them, else empty.
ConstBytes InSource(const PlannedLeaf& leaf, const ChunkTask& chunk);
void GatherTo(const PlannedLeaf& leaf, const ChunkTask& chunk, std::byte* out);
// format::SampleRatio of four small pieces spread over the array (over its shards, if it comes in
// some), or of its middle chunk where it is not contiguous. The array has at least 16 KiB.
double Sample(const PlannedLeaf& leaf);

}  // namespace stepwell::db
