// SPDX-License-Identifier: Apache-2.0
#include "db/commit/block_pipeline.h"

#include <algorithm>
#include <utility>

#include "io/guard.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

// Held data is encoded only as fast as it is written, into few, warm blocks.
constexpr size_t kEncodesInFlightMax = 8;
// 4 MiB writes: a few of them keep any local drive busy.
constexpr size_t kBlockWritesInFlightMax = 8;

// Lets reclaim have the space that only the bases of saves in flight keep, on a full disk.
void DropBases(const std::deque<std::shared_ptr<SaveJob>>& jobs) {
  for (const auto& job : jobs) {
    if (job->base != nullptr) job->base->Drop();
  }
}

}  // namespace

void BlockPipeline::PostEncoded(std::shared_ptr<SaveJob> job, bool held, const BlockTask* task,
                                io::BufferPool::Block* block, EncodedBlock encoded) {
  if (!held) ++job->staged_ahead;
  auto ready =
      std::make_shared<JobBlock>(JobBlock{std::move(job), held, task, block, std::move(encoded)});
  thread_->Post([this, ready] {
    if (ready->held) {
      STEPWELL_DCHECK(ready->job->held_encoding > 0 && encodes_in_flight_ > 0,
                      "a block was encoded twice");
      --ready->job->held_encoding;
      --encodes_in_flight_;
    }
    ready_.push_back(std::move(*ready));
  });
}

void BlockPipeline::NeedOutput(std::shared_ptr<SaveJob> job, const BlockTask* task,
                               io::BufferPool::Block* staged) {
  pending_outputs_.push_back({std::move(job), /*held=*/false, task, staged, {}});
}

void BlockPipeline::Run(const std::deque<std::shared_ptr<SaveJob>>& jobs) {
  StartEncodes(jobs);
  StartWrites(jobs);
}

// A free block; null when there will be one later, and when the job has failed: where the kernel
// has no memory there may be no block in flight that could come back.
io::BufferPool::Block* BlockPipeline::AcquireOutput(SaveJob* job) {
  bool no_memory = false;
  io::BufferPool::Block* const output = options_->pool->TryAcquire(&no_memory);
  if (no_memory) job->Fail(ResourceExhaustedError("no memory for encoding"));
  return output;
}

// False: they wait for a free block.
bool BlockPipeline::StartPendingEncodes() {
  while (!pending_outputs_.empty()) {
    JobBlock& pending = pending_outputs_.front();
    if (pending.job->failed.load()) {
      options_->pool->Release(pending.block);
      ++pending.job->staged_arrived;
      pending_outputs_.pop_front();
      continue;
    }
    io::BufferPool::Block* output = AcquireOutput(pending.job.get());
    if (output == nullptr && pending.job->failed.load()) continue;
    if (output == nullptr) return false;
    Encode(pending.job, /*held=*/false, pending.task, pending.block, output);
    pending_outputs_.pop_front();
  }
  return true;
}

// Blocks staged for transcoding come first: their staging blocks are what callers wait for.
void BlockPipeline::StartEncodes(const std::deque<std::shared_ptr<SaveJob>>& jobs) {
  if (!StartPendingEncodes()) return;
  for (const auto& job : jobs) {
    if (!job->held_planned || job->kind != SaveJob::Kind::kSave || !job->error.ok()) continue;
    while (job->held_started < job->held_blocks.size()) {
      if (encodes_in_flight_ + ready_.size() >= kEncodesInFlightMax) return;
      io::BufferPool::Block* output = AcquireOutput(job.get());
      if (output == nullptr && job->failed.load()) break;
      if (output == nullptr) return;
      Encode(job, /*held=*/true, &job->held_blocks[job->held_started], nullptr, output);
      ++job->held_started;  // it ends on this thread, so not before
      ++encodes_in_flight_;
      ++job->held_encoding;
    }
  }
}

void BlockPipeline::Encode(std::shared_ptr<SaveJob> job, bool held, const BlockTask* task,
                           io::BufferPool::Block* staged, io::BufferPool::Block* output) {
  const size_t alignment = log_->block_bytes();
  options_->environment.encoders->Run([this, job = std::move(job), held, task, staged, output,
                                       alignment]() mutable {
    EncodedBlock encoded;
    {
      const EncodeTimer timer(options_->instruments, &job->times, job->step, task->logical_bytes());
      encoded.status = io::Guarded("encode a block", [&] {
        encoded =
            EncodeBlock(job->leaves, *task, staged == nullptr ? nullptr : staged->memory.data(),
                        alignment, output->memory.bytes());
        return encoded.status;
      });
    }
    if (staged != nullptr) options_->pool->Release(staged);
    PostEncoded(std::move(job), held, task, output, std::move(encoded));
  });
}

void BlockPipeline::StartWrites(const std::deque<std::shared_ptr<SaveJob>>& jobs) {
  while (!ready_.empty() && writes_in_flight_ < kBlockWritesInFlightMax) {
    JobBlock ready = std::move(ready_.front());
    ready_.pop_front();
    SaveJob* job = ready.job.get();
    if (job->held_planned && job->held_started == job->held_blocks.size() &&
        job->held_encoding == 0) {
      job->ReleaseHolds();
    }
    if (!ready.encoded.status.ok()) job->Fail(ready.encoded.status);
    if (!job->error.ok()) {
      BlockDone(ready);
      continue;
    }
    if (ready.encoded.used_bytes == 0) {  // all of it is in the base
      RecordChunks(ready, /*segment=*/nullptr, 0);
      BlockDone(ready);
      continue;
    }
    auto placement = log_->PlaceBlock(ready.encoded.used_bytes, job->estimated_bytes);
    if (placement.ok()) reclaim_->RoomMayHaveCome();
    const bool is_full = placement.status().code() == StatusCode::kResourceExhausted;
    if (is_full) DropBases(jobs);
    if (is_full && reclaim_->WaitForSpace()) {
      // Space is just being given back: tried again when it has been.
      ready_.push_front(std::move(ready));
      return;
    }
    if (!placement.ok()) {
      job->Fail(placement.status());
      BlockDone(ready);
      continue;
    }
    SubmitWrite(std::move(ready), *placement);
  }
}

void BlockPipeline::SubmitWrite(JobBlock ready, const LogWriter::Placement& place) {
  auto write = std::make_unique<BlockWrite>();
  if (ready.block->buffer_index == -1) {
    ready.block->buffer_index = options_->disk->RegisterBuffer(ready.block->memory.bytes());
    // -2: asked once, not to be had.
    if (ready.block->buffer_index < 0) ready.block->buffer_index = -2;
  }
  write->pipeline = this;
  write->BeginWrite(place, ready.block->memory.bytes().first(ready.encoded.used_bytes));
  write->buffer_index = std::max(ready.block->buffer_index, -1);
  write->ready = std::move(ready);
  ++writes_in_flight_;
  SaveJob* const job = write->ready.job.get();
  write->submitted_ns = options_->instruments->Now();
  if (job->times.first_write_ns == 0) job->times.first_write_ns = write->submitted_ns;
  options_->disk->Submit(write.get());
  (void)write.release();
}

void BlockPipeline::Written(BlockWrite* raw) {
  const std::unique_ptr<BlockWrite> write(raw);
  if (thread_->panicked()) return;
  STEPWELL_DCHECK(writes_in_flight_ > 0, "a write completed twice");
  --writes_in_flight_;
  write->EndWrite();
  SaveJob* job = write->ready.job.get();
  if (write->status.ok()) {
    options_->instruments->bytes_written += write->vector.iov_len;
    options_->instruments->Wrote(&job->times, write->submitted_ns, job->step,
                                 write->vector.iov_len);
    RecordPlaces(*write);
  } else {
    // No space, although the range was reserved, is what file systems say that cannot reserve, or
    // that never write in place (btrfs). Nothing acknowledged lies there: this save fails alone.
    if (write->status.code() != StatusCode::kResourceExhausted) {
      options_->freeze->Trip(write->status);
    }
    job->Fail(write->status);
  }
  BlockDone(write->ready);
}

void BlockPipeline::RecordPlaces(const BlockWrite& write) {
  auto& extent = write.ready.job->extents[write.segment->id];
  extent.segment = write.segment->id;
  extent.end_bytes =
      std::max(extent.end_bytes, write.offset_bytes + write.ready.encoded.used_bytes);
  extent.block_bytes += write.vector.iov_len;
  for (const EncodedChunk& chunk : write.ready.encoded.chunks) {
    if (!chunk.same) extent.stored_bytes += chunk.stored_bytes;
  }
  RecordChunks(write.ready, write.segment, write.offset_bytes);
}

// The places of the block's chunks are known: they go into the records of the leaves.
void BlockPipeline::RecordChunks(const JobBlock& ready, const Segment* segment,
                                 uint64_t offset_bytes) {
  const BlockTask& task = *ready.task;
  STEPWELL_DCHECK(task.chunks.size() == ready.encoded.chunks.size(),
                  "a block has other chunks than its task");
  for (size_t i = 0; i < task.chunks.size(); ++i) {
    const ChunkTask& chunk = task.chunks[i];
    const EncodedChunk& encoded = ready.encoded.chunks[i];
    PlannedLeaf& leaf = ready.job->leaves[chunk.leaf];
    auto& record = leaf.input.record;
    record.chunks.resize(record.chunk_count);
    format::ChunkRecord& stored = record.chunks[chunk.chunk_index];
    STEPWELL_DCHECK(stored.stored_bytes == 0, "a chunk was written twice");
    leaf.near_base = leaf.near_base || encoded.same || encoded.delta;
    if (leaf.base != nullptr && leaf.base->chunks[chunk.chunk_index].hash != encoded.hash) {
      leaf.changed = true;
    }
    if (encoded.statistics) record.statistics->Add(*encoded.statistics);
    if (encoded.same) {
      stored = leaf.base->chunks[chunk.chunk_index];
      stored.SetReferenced();
      continue;
    }
    STEPWELL_DCHECK(encoded.offset_bytes + encoded.stored_bytes <= ready.encoded.used_bytes,
                    "a chunk does not lie in its block");
    stored.segment = segment->id;
    stored.offset_bytes = offset_bytes + encoded.offset_bytes;
    stored.stored_bytes = encoded.stored_bytes;
    stored.logical_bytes = chunk.logical_bytes;
    stored.crc = encoded.crc;
    stored.codec = encoded.delta ? format::CodecId::kDelta : leaf.codec;
    stored.hash = encoded.hash;
    if (!encoded.delta) continue;
    format::ChunkRecord base = leaf.base->chunks[chunk.chunk_index];
    base.SetReferenced();
    stored.bases = std::move(base.bases);
    stored.bases.push_back(base);
  }
}

// The block's bytes are written or given up: its memory is free again.
void BlockPipeline::BlockDone(const JobBlock& ready) {
  options_->pool->Release(ready.block);
  if (!ready.held) --ready.job->staged_ahead;
  ++(ready.held ? ready.job->held_arrived : ready.job->staged_arrived);
}

}  // namespace stepwell::db
