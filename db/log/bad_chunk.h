// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "format/records.h"
#include "io/status.h"

namespace stepwell::db {

// A chunk whose bytes could not be read or were wrong.
struct BadChunk {
  const format::LeafRecord* leaf = nullptr;
  uint64_t chunk_index = 0;
  const format::ChunkRecord* record = nullptr;  // null: the leaf's record itself is damaged
  Status status;                                // kDataLoss with file and offset
};

}  // namespace stepwell::db
