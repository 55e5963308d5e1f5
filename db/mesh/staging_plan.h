// SPDX-License-Identifier: Apache-2.0
// Boxes of arrays on their way into memory that the engine cannot write to itself, such as a GPU's:
// pieces of them arrive in staging memory, batch after batch, and are copied on from there. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/grid.h"
#include "format/records.h"

namespace stepwell::db {

// What one memory is to hold, in C order. The box has elements and lies in the leaf, an array.
struct StagedTarget {
  const format::LeafRecord* leaf = nullptr;
  format::Box box;
  uint32_t near = 0;  // which staging memory is fast from there
};

struct StagedPiece {
  const format::LeafRecord* leaf = nullptr;
  format::Box box;
  uint32_t near = 0;                   // the staging memory that it is in: its first target's
  uint64_t offset_bytes = 0;           // there; C order
  std::vector<uint32_t> targets = {};  // whose boxes have all of it; ascending
};

struct StagedBatch {
  std::vector<StagedPiece> pieces;
  std::vector<uint64_t> bytes;  // of each staging memory
};

// Batches that need at most `batch_bytes` of each staging memory, or hold what is wanted of one
// chunk. Together the pieces of a target make its box, each element once. A chunk is in one batch
// alone, and boxes that several targets want of it are one piece.
std::vector<StagedBatch> PlanStaging(std::span<const StagedTarget> targets, uint64_t batch_bytes);

// Equal rows that follow each other in the piece and lie `to_pitch_bytes` apart in the target.
struct RowsCopy {
  uint64_t from_bytes = 0;
  uint64_t to_bytes = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
  uint64_t to_pitch_bytes = 0;  // row_bytes or more
};
// The copies from `piece` to its place in `target`, which has all of it; both in C order.
std::vector<RowsCopy> CopiesInto(const format::Box& piece, const format::Box& target,
                                 uint64_t item_bytes);

}  // namespace stepwell::db
