// SPDX-License-Identifier: Apache-2.0
// Reads chunks that are differences to chunks of earlier commits. All payloads of a group of chunks
// are read at once, in the order of their places. A keyframe is decoded as it comes, and the
// differences are applied to it when the last of them is there.
#pragma once

#include <functional>
#include <span>

#include "db/read/restore_run.h"

namespace stepwell::db {

class DeltaRead {
 public:
  // Returns memory of exactly the chunk's decoded bytes, where it is decoded; empty: there is none,
  // and it is decoded in memory of its own. What is there after an error is of no meaning.
  using PlaceOf = std::function<MutableBytes(const PlannedChunk&)>;
  // Takes the decoded bytes of a chunk without such memory, on a worker.
  using TakeLogical = std::function<Status(const PlannedChunk&, ConstBytes logical)>;
  // Called on the calling thread after each group, with its chunks and what failed in it (`chunk`
  // is an index into the group); false: read no more.
  using GroupDone = std::function<bool(std::span<const PlannedChunk>, std::span<const ChunkError>)>;

  // Gives `run` a context for the plan, and takes it back.
  using WithContext =
      std::function<Status(const RestorePlan&, const std::function<Status(ReadContext*)>& run)>;

  DeltaRead(SegmentFiles* files, const ChunkSources* sources, io::Executor* executor,
            WithContext with_context, PlaceOf place_of, TakeLogical take)
      : files_(files),
        sources_(sources),
        executor_(executor),
        with_context_(std::move(with_context)),
        place_of_(std::move(place_of)),
        take_(std::move(take)) {}

  // `chunks` were checked with CheckChunk.
  Status Run(std::span<const PlannedChunk> chunks, const GroupDone& done);
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t reads() const { return reads_; }

 private:
  struct Group;
  struct GroupChunk;

  size_t GroupSize(std::span<const PlannedChunk> chunks) const;
  Status ReadGroup(Group* group);
  Status Take(GroupChunk* chunk, uint32_t number, ConstBytes payload) const;

  SegmentFiles* const files_;
  const ChunkSources* const sources_;
  io::Executor* const executor_;
  const WithContext with_context_;
  const PlaceOf place_of_;
  const TakeLogical take_;
  uint64_t bytes_read_ = 0;
  uint64_t reads_ = 0;
};

}  // namespace stepwell::db
