// SPDX-License-Identifier: Apache-2.0
// Private to the restore executor: one pass over the reads of a plan.
//
// The calling thread submits reads, in the plan's order, and polls; each finished read becomes one
// task on the executor, which hands its chunks on, in order; then the buffer comes back.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "db/log/chunk_source.h"
#include "db/log/segment_files.h"
#include "db/read/restore_plan.h"
#include "io/buffer.h"
#include "io/disk.h"
#include "io/executor.h"
#include "io/mutex.h"

namespace stepwell::db {

struct ReadBuffer {
  MutableBytes memory;        // of a slab
  int buffer_index = -1;      // of Disk::RegisterBuffer
  io::AlignedBuffer scratch;  // for decoding, made when first needed
};

// A Disk and buffers for it; used by one thread at a time, with a Disk by the one that made it.
class ReadContext {
 public:
  // Null until there is more than one read to do at a time: making a ring takes longer than one.
  io::Disk* disk() { return disk_.get(); }
  void SetDisk(std::unique_ptr<io::Disk> disk) { disk_ = std::move(disk); }
  // The thread that uses it; with a disk always the same one.
  std::thread::id thread() const { return thread_; }
  void SetThread() { thread_ = std::this_thread::get_id(); }

  // Call while no buffer is out: from now on they have room for reads of `bytes`.
  void Fit(uint64_t bytes);
  // Null when all are out, or when there is no memory (then in_use() is 0).
  ReadBuffer* Acquire();
  void Release(ReadBuffer* buffer);
  size_t in_use() const { return buffers_.size() - idle_.size(); }
  // False after a plan with reads of unusual size: such buffers are not worth keeping.
  bool reusable() const;

 private:
  MutableBytes NewMemory();

  std::unique_ptr<io::Disk> disk_;
  std::thread::id thread_ = std::this_thread::get_id();
  uint64_t buffer_bytes_ = 0;
  size_t buffers_max_ = 0;
  std::vector<io::AlignedBuffer> slabs_;
  size_t slab_used_bytes_ = 0;  // of the last one
  std::vector<std::unique_ptr<ReadBuffer>> buffers_;
  std::vector<ReadBuffer*> idle_;
};

struct ChunkError {
  uint32_t chunk = 0;  // in RestorePlan::chunks
  Status status;       // names file, offset and leaf
};

class ReadRun {
 public:
  // Takes one chunk's payload, which has the CRC of its record, on a worker. `scratch` is this
  // read's alone.
  using TakeChunk =
      std::function<Status(const PlannedChunk&, ConstBytes payload, io::AlignedBuffer* scratch)>;
  // Called on the calling thread after each read, with what failed in it; false: submit no more.
  using ReadDone = std::function<bool(const PlannedRead&, std::span<const ChunkError>)>;

  // With `stop_at_error`, chunks behind a failed one may be skipped.
  ReadRun(SegmentFiles* files, const ChunkSources* sources, io::Executor* executor,
          ReadContext* context, const RestorePlan* plan, bool stop_at_error, TakeChunk take);
  ~ReadRun();

  // Returns when every read that was submitted is done. kResourceExhausted without memory.
  Status Run(const ReadDone& done);
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t reads() const { return reads_; }

 private:
  struct ReadOp;
  struct CurrentSegment {
    uint32_t part = 0;
    uint64_t segment = 0;
    bool Has(const PlannedRead& read) const { return part == read.part && segment == read.segment; }
    Status status;
    std::shared_ptr<io::File> file;
  };

  // The length of the longest read, widened to what the files of its part demand.
  uint64_t ReadBytesMax();
  // Opens the segment of the next read, which stays open until the first read of another one; false
  // when that has to wait for reads in flight, which hold all descriptors there are.
  bool OpenSegment(const PlannedRead& read);
  void Submit(const PlannedRead& read, ReadBuffer* buffer);
  void Process(ReadOp* op);
  void TakeAll(ReadOp* op);
  Status RunAll(const ReadDone& done);
  Status TakeOne(ReadOp* op, const PlannedChunk& chunk);
  void Finish(ReadOp* op);
  // Takes back what the workers have finished; false when `done` said so.
  bool Collect(const ReadDone& done);
  void AddError(ReadOp* op, uint32_t chunk, const Status& status);

  SegmentFiles* const files_;
  const ChunkSources* const sources_;
  io::Executor* const executor_;
  ReadContext* const context_;
  const RestorePlan* const plan_;
  const bool stop_at_error_;
  const TakeChunk take_;
  const bool inline_;  // too little work to wake a worker for

  std::optional<CurrentSegment> segment_;  // of the newest read
  std::vector<std::unique_ptr<ReadOp>> ops_;
  std::vector<ReadOp*> free_ops_;
  size_t busy_ = 0;  // ops submitted and not collected
  uint64_t bytes_read_ = 0;
  uint64_t reads_ = 0;

  std::atomic<uint32_t> lowest_error_{UINT32_MAX};  // chunk
  io::Mutex mutex_;
  std::vector<ReadOp*> finished_ STEPWELL_GUARDED_BY(mutex_);
  std::vector<ReadOp*> collected_;
  size_t next_collected_ = 0;
  Status lost_;  // the error of a read whose chunks' errors could not be kept
};

}  // namespace stepwell::db
