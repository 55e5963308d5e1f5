// SPDX-License-Identifier: Apache-2.0
// The leaf records of one committed step, as the log has them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "db/log/segment_files.h"
#include "format/records.h"
#include "io/mutex.h"

namespace stepwell::db {

// A step's commit frame, and the record blocks that it names, read as they are needed: a range of
// keys costs the blocks that it lies in. Thread-safe. Errors are kDataLoss with file and offset, or
// kNotFound when a segment is gone.
class StepRecords {
 public:
  // Reads the commit frame. `files` outlives the result.
  static Result<std::shared_ptr<StepRecords>> Open(SegmentFiles* files,
                                                   const format::FramePlace& commit_place);

  // With metadata texts.
  const format::StepRecord& step() const { return head_.commit.step; }
  // The places of its record blocks.
  const std::vector<format::RecordsBlock>& blocks() const { return head_.commit.blocks; }
  // Records with keys in `range`, in key order, the chunks of each all there.
  Result<std::vector<format::LeafRecord>> In(const format::KeyRange& range);
  // Bytes of frames read so far.
  uint64_t bytes_read() const;

 private:
  using Block = std::shared_ptr<const std::string>;  // a frame's payload

  StepRecords(SegmentFiles* files, const format::FramePlace& place)
      : files_(files), place_(place), bytes_read_(place.length_bytes) {}
  Result<Block> ReadBlock(size_t number);
  Status CheckCounts(const format::KeyRange& range,
                     const std::vector<format::LeafRecord>& leaves) const;
  std::string Where(const format::FramePlace& place) const;

  SegmentFiles* const files_;
  const format::FramePlace place_;
  std::string payload_;  // of the commit frame
  format::CommitHead head_;
  mutable io::Mutex mutex_;
  // (Number in the head, block).
  std::deque<std::pair<size_t, Block>> recent_ STEPWELL_GUARDED_BY(mutex_);
  uint64_t bytes_read_ STEPWELL_GUARDED_BY(mutex_);  // with the commit frame
};

}  // namespace stepwell::db
