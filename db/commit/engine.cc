// SPDX-License-Identifier: Apache-2.0
// Blocks: from posted tasks to the log. Commit batches are in engine_commit.cc, the beginning and
// the end of a session in engine_session.cc.
#include "db/commit/engine.h"

#include <algorithm>
#include <utility>

#include "io/guard.h"

namespace stepwell::db {
namespace {

// Held data is encoded only as fast as it is written, into few, warm blocks.
constexpr size_t kEncodesInFlightMax = 8;
// 4 MiB writes: a few of them keep any local drive busy.
constexpr size_t kBlockWritesInFlightMax = 8;

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      slot_(options_.slot),
      retention_(options_.keep),
      catalogs_(options_.live, options_.segment_bytes_max),
      reclaim_(this, &options_) {}

void Engine::Post(std::function<void()> task) {
  // Woken under the lock: once the engine can take the task, the poster has left the disk and
  // the engine alone, and Close may end both.
  const std::lock_guard lock(posted_mutex_);
  posted_.push_back(std::move(task));
  if (options_.disk != nullptr) options_.disk->Wake();
}

void Engine::LeaveDisk() {
  const std::lock_guard lock(posted_mutex_);
  options_.disk = nullptr;
}

void Engine::PostEncoded(std::shared_ptr<SaveJob> job, bool held, size_t index,
                         io::BufferPool::Block* block, EncodedBlock encoded) {
  if (!held) ++job->staged_ahead;
  auto ready =
      std::make_shared<JobBlock>(JobBlock{std::move(job), held, index, block, std::move(encoded)});
  Post([this, ready] {
    if (ready->held) {
      --ready->job->held_encoding;
      --encodes_in_flight_;
    }
    ready_.push_back(std::move(*ready));
  });
}

// The engine has no operation to blame for an exception (there is no memory): the store freezes, as
// after a failed write, and the training goes on.
template <typename Work>
void Engine::PanicOnThrow(Work work) {
  const Status status = io::Guarded("go on in the engine", [&] {
    work();
    return OkStatus();
  });
  if (!status.ok()) Panic(status);
}

void Engine::Panic(const Status& why) noexcept {
  options_.freeze->Trip(why);
  panicked_ = true;
  const std::lock_guard lock(posted_mutex_);
  if (options_.disk != nullptr) options_.disk->Wake();
}

// After a panic: completions do nothing but leave the disk, what is queued is not begun.
void Engine::EndAll() {
  options_.pool->Stop();
  while (options_.disk->in_flight() > 0) {
    PanicOnThrow([this] { options_.disk->Poll(/*wait=*/true); });
  }
  PanicOnThrow([this] {
    while (!jobs_.empty()) {
      const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
      jobs_.pop_front();
      job->state->Finish(options_.freeze->Check());  // no frame of it was made
    }
    reclaim_.EndWaiters(options_.freeze->first_error());
  });
  options_.end_changes();
}

bool Engine::RunPosted() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(posted_mutex_);
    tasks.swap(posted_);
  }
  for (auto& task : tasks) {
    PanicOnThrow([&] { task(); });
  }
  return !tasks.empty();
}

void Engine::Step(bool wait) {
  const bool ran = RunPosted();
  PanicOnThrow([this] { Pump(); });
  if (panicked()) EndAll();
  PanicOnThrow([&] { options_.disk->Poll(wait && !ran && !panicked()); });
  RunPosted();
  PanicOnThrow([this] { Pump(); });
  if (panicked()) EndAll();
}

void Engine::Pump() {
  if (panicked()) return;
  if (options_.freeze->frozen() && !frozen_reported_) {
    frozen_reported_ = true;
    FailAll(options_.freeze->Check());
    options_.pool->Stop();
  }
  StartEncodes();
  StartWrites();
  FailReadyHeads();
  StartBatch();
  if (reclaim_.has_waiters()) reclaim_.Continue();
  if (batch_ == nullptr && log_ != nullptr) {
    ForgetFailedWrites();
    // A failed save may have begun one. Reclaim knows the segments that were noted, and no other.
    if (log_->open_segments().size() > 1) NoteSegments();
    if (Status status = log_->SealIdle(/*all=*/false); !status.ok()) {
      options_.freeze->Trip(status);
    }
  }
}

void Engine::Begin(std::shared_ptr<SaveJob> job) {
  if (frozen_reported_) Fail(job.get(), options_.freeze->Check());
  if (job->kind == SaveJob::Kind::kSave) LeaveLinkedSegment();
  if (job->kind == SaveJob::Kind::kDecide) return BeginDecision(std::move(job));
  jobs_.push_back(std::move(job));
}

// A decision does not wait for the bytes of later steps: it comes behind earlier decisions, and
// behind its own step should that still be on its way.
void Engine::BeginDecision(std::shared_ptr<SaveJob> job) {
  size_t at = 0;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const SaveJob& other = *jobs_[i];
    const bool is_its_step = other.group && other.group->save_id == job->decision.save_id;
    if (is_its_step || other.kind == SaveJob::Kind::kDecide) at = i + 1;
  }
  jobs_.insert(jobs_.begin() + static_cast<ptrdiff_t>(at), std::move(job));
}

Result<bool> Engine::SealSegments(const std::set<uint64_t>& segments) {
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  if (log_->current() != nullptr && segments.contains(log_->current()->id)) {
    STEPWELL_RETURN_IF_ERROR(log_->StartNext());
    NoteSegments();
  }
  if (batch_ == nullptr) {  // else they are sealed when it is done
    for (const auto& [id, segment] : log_->open_segments()) {
      // Of saves in progress: without this it would wait for their commits.
      if (!segments.contains(id) || !segment->dirty || segment->writes_in_flight > 0) continue;
      STEPWELL_RETURN_IF_ERROR(segment->file->Sync());
      segment->dirty = false;
    }
    STEPWELL_RETURN_IF_ERROR(log_->SealIdle(/*all=*/false));
  }
  return std::none_of(segments.begin(), segments.end(),
                      [this](uint64_t id) { return log_->open_segments().contains(id); });
}

// The segment that is being written has another name: a copy of the store was made by links. What
// is there already stays as it is; what follows goes elsewhere, so that the copy does not grow with
// it.
void Engine::LeaveLinkedSegment() {
  const Segment* current = log_ == nullptr ? nullptr : log_->current();
  if (current == nullptr || options_.freeze->frozen()) return;
  const auto info = current->file->Info();
  if (!info.ok() || info->link_count < 2) return;
  // On a full disk it grows.
  const Status status = log_->StartNext();
  if (status.ok()) return NoteSegments();
  Log(options_.log, LogLevel::kWarning,
      StrCat(options_.files->PathOf(current->id),
             " has another name, but no new segment can be begun: ", status.message()));
}

void Engine::StagingDone(SaveJob* job, size_t expected, const Status& status) {
  job->staging_done = true;
  job->staged_expected = expected;
  if (!status.ok()) Fail(job, status);
}

void Engine::HeldPlanned(SaveJob* job, const Status& status) {
  job->held_planned = true;
  if (!status.ok()) Fail(job, status);
  if (job->held_blocks.empty()) ReleaseHolds(job);
}

void Engine::NeedOutput(std::shared_ptr<SaveJob> job, size_t index, io::BufferPool::Block* staged) {
  pending_outputs_.push_back({std::move(job), /*held=*/false, index, staged, {}});
}

// The first error, but for writes that were not done because another one had failed: that one says
// more, and may be told later.
void Engine::Fail(SaveJob* job, const Status& status) {
  const bool says_more =
      job->error.code() == StatusCode::kAborted && status.code() != StatusCode::kAborted;
  if (!job->error.ok() && !says_more) return;
  job->error = status;
  job->failed.store(true);
}

void Engine::FailAll(const Status& status) {
  for (auto& job : jobs_) Fail(job.get(), status);
  if (batch_ != nullptr && batch_->error.ok()) batch_->error = status;
}

void Engine::ReleaseHolds(SaveJob* job) {
  // The arrays' memory was read for the last time; the trainer may donate it again.
  for (PlannedLeaf& leaf : job->leaves) leaf.input.hold.reset();
}

// A free block; null when there will be one later, and when the job has failed: where the kernel
// has no memory there may be no block in flight that could come back.
io::BufferPool::Block* Engine::AcquireOutput(SaveJob* job) {
  bool no_memory = false;
  io::BufferPool::Block* const output = options_.pool->TryAcquire(&no_memory);
  if (no_memory) Fail(job, ResourceExhaustedError("no memory for encoding"));
  return output;
}

// Blocks staged for transcoding come first: their staging blocks are what callers wait for.
void Engine::StartEncodes() {
  while (!pending_outputs_.empty()) {
    JobBlock& pending = pending_outputs_.front();
    if (pending.job->failed.load()) {
      options_.pool->Release(pending.block);
      ++pending.job->staged_arrived;
      pending_outputs_.pop_front();
      continue;
    }
    io::BufferPool::Block* output = AcquireOutput(pending.job.get());
    if (output == nullptr && pending.job->failed.load()) continue;
    if (output == nullptr) return;
    Encode(pending.job, /*held=*/false, pending.index, pending.block, output);
    pending_outputs_.pop_front();
  }
  for (auto& job : jobs_) {
    if (!job->held_planned || job->kind != SaveJob::Kind::kSave || !job->error.ok()) continue;
    while (job->held_started < job->held_blocks.size()) {
      if (encodes_in_flight_ + ready_.size() >= kEncodesInFlightMax) return;
      io::BufferPool::Block* output = AcquireOutput(job.get());
      if (output == nullptr && job->failed.load()) break;
      if (output == nullptr) return;
      Encode(job, /*held=*/true, job->held_started, nullptr, output);
      ++job->held_started;  // it ends on this thread, so not before
      ++encodes_in_flight_;
      ++job->held_encoding;
    }
  }
}

void Engine::Encode(std::shared_ptr<SaveJob> job, bool held, size_t index,
                    io::BufferPool::Block* staged, io::BufferPool::Block* output) {
  const size_t alignment = block_bytes();
  options_.environment.workers->Run([this, job = std::move(job), held, index, staged, output,
                                     alignment]() mutable {
    const BlockTask& task = held ? job->held_blocks[index] : job->staged_blocks[index];
    EncodedBlock encoded;
    {
      const EncodeTimer timer(options_.instruments, &job->times, job->step, task.logical_bytes());
      encoded.status = io::Guarded("encode a block", [&] {
        encoded =
            EncodeBlock(job->leaves, task, staged == nullptr ? nullptr : staged->memory.data(),
                        alignment, output->memory.bytes());
        return encoded.status;
      });
    }
    if (staged != nullptr) options_.pool->Release(staged);
    PostEncoded(std::move(job), held, index, output, std::move(encoded));
  });
}

void Engine::StartWrites() {
  while (!ready_.empty() && writes_in_flight_ < kBlockWritesInFlightMax) {
    JobBlock ready = std::move(ready_.front());
    ready_.pop_front();
    SaveJob* job = ready.job.get();
    if (job->held_planned && job->held_started == job->held_blocks.size() &&
        job->held_encoding == 0) {
      ReleaseHolds(job);
    }
    if (!ready.encoded.status.ok()) Fail(job, ready.encoded.status);
    if (!job->error.ok()) {
      BlockDone(ready);
      continue;
    }
    auto placement = PlaceBlock(ready.encoded.used_bytes, job->estimated_bytes);
    if (placement.ok()) reclaim_.RoomMayHaveCome();
    if (placement.status().code() == StatusCode::kResourceExhausted && reclaim_.WaitForSpace()) {
      // Space is just being given back: tried again when it has been.
      ready_.push_front(std::move(ready));
      return;
    }
    if (!placement.ok()) {
      Fail(job, placement.status());
      BlockDone(ready);
      continue;
    }
    auto write = std::make_unique<BlockWrite>();
    if (ready.block->buffer_index == -1) {
      ready.block->buffer_index = options_.disk->RegisterBuffer(ready.block->memory.bytes());
      // -2: asked once, not to be had.
      if (ready.block->buffer_index < 0) ready.block->buffer_index = -2;
    }
    write->engine = this;
    write->BeginWrite(*placement, ready.block->memory.bytes().first(ready.encoded.used_bytes));
    write->buffer_index = std::max(ready.block->buffer_index, -1);
    write->ready = std::move(ready);
    ++writes_in_flight_;
    write->submitted_ns = options_.instruments->Now();
    if (job->times.first_write_ns == 0) job->times.first_write_ns = write->submitted_ns;
    options_.disk->Submit(write.get());
    (void)write.release();
  }
}

void Engine::BlockWritten(BlockWrite* raw) {
  const std::unique_ptr<BlockWrite> write(raw);
  if (panicked()) return;
  --writes_in_flight_;
  write->EndWrite();
  Segment* segment = write->segment;
  SaveJob* job = write->ready.job.get();
  if (!write->status.ok()) {
    // No space, although the range was reserved, is what file systems say that cannot reserve, or
    // that never write in place (btrfs). Nothing acknowledged lies there: this save fails alone.
    if (write->status.code() != StatusCode::kResourceExhausted) {
      options_.freeze->Trip(write->status);
    }
    Fail(job, write->status);
  } else {
    bytes_written_ += write->vector.iov_len;
    options_.instruments->Wrote(&job->times, write->submitted_ns, job->step, write->vector.iov_len);
    auto& extent = job->extents[segment->id];
    extent.segment = segment->id;
    extent.end_bytes =
        std::max(extent.end_bytes, write->offset_bytes + write->ready.encoded.used_bytes);
    extent.block_bytes += write->vector.iov_len;
    const BlockTask& task = write->ready.held ? job->held_blocks[write->ready.index]
                                              : job->staged_blocks[write->ready.index];
    for (size_t i = 0; i < task.chunks.size(); ++i) {
      const ChunkTask& chunk = task.chunks[i];
      const EncodedChunk& encoded = write->ready.encoded.chunks[i];
      auto& record = job->leaves[chunk.leaf].input.record;
      record.chunks.resize(record.chunk_count);
      format::ChunkRecord& stored = record.chunks[chunk.chunk_index];
      stored.segment = segment->id;
      stored.offset_bytes = write->offset_bytes + encoded.offset_bytes;
      stored.stored_bytes = encoded.stored_bytes;
      stored.logical_bytes = chunk.logical_bytes;
      stored.crc = encoded.crc;
      stored.codec = job->leaves[chunk.leaf].codec;
      extent.stored_bytes += encoded.stored_bytes;
    }
  }
  BlockDone(write->ready);
}

void Engine::NoteCommitted(const CommitBatch& batch, const BatchEntry& entry) {
  if (entry.job->kind != SaveJob::Kind::kSave) return;
  const auto& saved = entry.job->group ? entry.change.prepared : entry.change.added;
  std::vector<uint64_t> retired;
  for (const auto& killed : entry.change.killed) {
    if (killed->record.step != entry.job->step) retired.push_back(killed->record.step);
  }
  const auto row = static_cast<size_t>(&entry - batch.entries.data());
  options_.instruments->Committed(entry.job->times, batch.times, row, entry.job->step,
                                  saved->record.logical_bytes, retired);
}

// The block's bytes are written or given up: its memory is free again.
void Engine::BlockDone(const JobBlock& ready) {
  options_.pool->Release(ready.block);
  if (!ready.held) --ready.job->staged_ahead;
  ++(ready.held ? ready.job->held_arrived : ready.job->staged_arrived);
}

}  // namespace stepwell::db
