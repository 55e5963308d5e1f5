// SPDX-License-Identifier: Apache-2.0
// Reads chunks that are differences to chunks of earlier commits. All payloads of a group of chunks
// are read at once, in the order of their places; a chunk is decoded when its last one is there.
#pragma once

#include <functional>
#include <span>

#include "db/read/restore_run.h"

namespace stepwell::db {

class DeltaRead {
 public:
  // Takes a chunk's decoded bytes, on a worker.
  using TakeLogical = std::function<Status(const PlannedChunk&, ConstBytes logical)>;
  // Called on the calling thread after each group, with its chunks and what failed in it (`chunk`
  // is an index into the group); false: read no more.
  using GroupDone = std::function<bool(std::span<const PlannedChunk>, std::span<const ChunkError>)>;

  // Gives `run` a context for the plan, and takes it back.
  using WithContext =
      std::function<Status(const RestorePlan&, const std::function<Status(ReadContext*)>& run)>;

  DeltaRead(SegmentFiles* files, const ChunkSources* sources, io::Executor* executor,
            WithContext with_context, TakeLogical take)
      : files_(files),
        sources_(sources),
        executor_(executor),
        with_context_(std::move(with_context)),
        take_(std::move(take)) {}

  // `chunks` were checked with CheckChunk.
  Status Run(std::span<const PlannedChunk> chunks, const GroupDone& done);
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t reads() const { return reads_; }

 private:
  struct Group;

  Status ReadGroup(Group* group);

  SegmentFiles* const files_;
  const ChunkSources* const sources_;
  io::Executor* const executor_;
  const WithContext with_context_;
  const TakeLogical take_;
  uint64_t bytes_read_ = 0;
  uint64_t reads_ = 0;
};

}  // namespace stepwell::db
