// SPDX-License-Identifier: Apache-2.0
// Brings arrays in memory from what one step has of them to what another one has. Of the log only
// that is read by which the two steps differ; where a chunk is stored as differences that lead
// through its content in the first step, the memory takes the place of that content.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "db/read/compare.h"
#include "db/read/restore.h"
#include "io/buffer.h"

namespace stepwell::db {

// A box of an array, in memory of the caller's.
struct MemoryBox {
  format::Box box;
  std::byte* data = nullptr;           // element box.start
  std::vector<int64_t> strides_bytes;  // any sign; as many as axes
};

// An array that both steps have, and the memory that holds it: boxes that do not overlap. They need
// not be all of the array, as where other processes have the rest.
struct LeafMemory {
  LeafPair leaf;
  std::vector<MemoryBox> boxes;
};

class StepUpdate {
 public:
  // Reads what Apply() needs, checks it and tries it, and writes no array. What is kept in memory
  // until then is as large as it is stored. The steps' readers and records, and the arrays, outlive
  // the result. kInvalidArgument: an array does not hold what `before` has, or is of another dtype
  // or shape in `after`. Errors of reading as StepReader::Load.
  static Result<std::unique_ptr<StepUpdate>> Read(const ComparedStep& before,
                                                  const ComparedStep& after,
                                                  std::span<const LeafMemory> leaves);
  ~StepUpdate();
  StepUpdate(const StepUpdate&) = delete;
  StepUpdate& operator=(const StepUpdate&) = delete;

  // Writes the arrays. The caller has not changed them since Read. Fails only if there is no memory
  // for a decoder; the arrays then hold neither step.
  Status Apply();
  const LoadStats& stats() const { return stats_; }

 private:
  struct Grid;
  struct Chunk;

  StepUpdate(const ComparedStep& before, const ComparedStep& after);
  Status Plan(const LeafMemory& leaf);
  Status PlanChunk(const Grid& grid, uint64_t index, const format::ChunkRecord* before);
  MutableBytes ScratchFor(const Chunk& chunk, size_t thread);
  // Checks that the arrays hold `before` in the chunks that it asks for.
  Status CheckHeld(const std::function<bool(const Chunk&)>& asked);
  Status ReadPayloads();
  Status Take(Chunk* chunk, size_t number, ConstBytes payload, io::AlignedBuffer* scratch) const;

  const ComparedStep before_;
  const ComparedStep after_;
  Restorer* const restorer_;
  std::deque<Grid> grids_;
  std::deque<Chunk> chunks_;                  // that differ
  std::vector<io::AlignedBuffer> scratches_;  // for each thread of ForEach
  LoadStats stats_;
};

}  // namespace stepwell::db
