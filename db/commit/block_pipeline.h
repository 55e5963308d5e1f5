// SPDX-License-Identifier: Apache-2.0
// Blocks in flight: from the staged or held bytes of a save through encoding to the log. Engine
// thread only, where nothing else is said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "db/commit/engine_options.h"
#include "db/commit/engine_thread.h"
#include "db/commit/log_end.h"
#include "db/commit/reclaim_scheduler.h"
#include "db/commit/save_job.h"
#include "db/save/encode.h"
#include "io/buffer.h"

namespace stepwell::db {

class BlockPipeline {
 public:
  BlockPipeline(const EngineOptions* options, EngineThread* thread, LogEnd* log,
                ReclaimScheduler* reclaim)
      : options_(options), thread_(thread), log_(log), reclaim_(reclaim) {}

  // Any thread: a block of the job's, held or staged, was encoded (or the encoding failed) into
  // `block`, which this takes over.
  void PostEncoded(std::shared_ptr<SaveJob> job, bool held, const BlockTask* task,
                   io::BufferPool::Block* block, EncodedBlock encoded);
  // A staged block that must be encoded into another one.
  void NeedOutput(std::shared_ptr<SaveJob> job, const BlockTask* task,
                  io::BufferPool::Block* staged);
  // Begins the encodes and the writes that can begin now; `jobs` are in commit order.
  void Run(const std::deque<std::shared_ptr<SaveJob>>& jobs);

 private:
  // A block of a job: encoded, or staged and to be encoded into another one.
  struct JobBlock {
    std::shared_ptr<SaveJob> job;
    bool held = false;
    const BlockTask* task = nullptr;  // the job's
    io::BufferPool::Block* block = nullptr;
    EncodedBlock encoded;
  };
  struct BlockWrite final : SegmentWrite {
    BlockPipeline* pipeline = nullptr;
    JobBlock ready;
    int64_t submitted_ns = 0;
    void OnComplete() override { pipeline->Written(this); }
  };

  io::BufferPool::Block* AcquireOutput(SaveJob* job);
  void StartEncodes(const std::deque<std::shared_ptr<SaveJob>>& jobs);
  bool StartPendingEncodes();
  void StartWrites(const std::deque<std::shared_ptr<SaveJob>>& jobs);
  void Encode(std::shared_ptr<SaveJob> job, bool held, const BlockTask* task,
              io::BufferPool::Block* staged, io::BufferPool::Block* output);
  void SubmitWrite(JobBlock ready, const LogWriter::Placement& place);
  void Written(BlockWrite* write);
  void RecordPlaces(const BlockWrite& write);
  static void RecordChunks(const JobBlock& ready, const Segment* segment, uint64_t offset_bytes);
  void BlockDone(const JobBlock& ready);

  const EngineOptions* const options_;
  EngineThread* const thread_;
  LogEnd* const log_;
  ReclaimScheduler* const reclaim_;
  std::deque<JobBlock> ready_;            // encoded, to be written
  std::deque<JobBlock> pending_outputs_;  // staged, to be encoded
  size_t encodes_in_flight_ = 0;          // of held blocks
  size_t writes_in_flight_ = 0;
};

}  // namespace stepwell::db
