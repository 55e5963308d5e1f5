// SPDX-License-Identifier: Apache-2.0
#include "db/read/restore_run.h"

#include <algorithm>
#include <bit>

#include "format/codec.h"
#include "io/guard.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

// Room for a whole read on the strictest device; what a plan of several reads uses.
constexpr uint64_t kBufferBytesFull = kReadBytesMax + (uint64_t{128} << 10);
constexpr uint64_t kBufferBytesMin = uint64_t{64} << 10;
constexpr size_t kBufferCountMax = 16;
constexpr uint64_t kBuffersBytesMax = 12 * kBufferBytesFull;  // all buffers of a context
// Smaller ones are used again while the CPU's caches have them, but keep the disk's queue filled.
constexpr uint64_t kSmallBuffersBytesMax = uint64_t{4} << 20;
constexpr size_t kSmallBufferCountMin = 4;
constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
constexpr uint64_t kSharedBufferBytesMin = uint64_t{256} << 10;

}  // namespace

void ReadContext::Fit(uint64_t bytes) {
  // Few sizes, so that a loop over small leaves keeps its buffer.
  const uint64_t wanted =
      bytes > kBufferBytesFull
          ? AlignUp(bytes, uint64_t{1} << 20)
          : std::min(kBufferBytesFull, std::bit_ceil(std::max(bytes, kBufferBytesMin)));
  if (wanted <= buffer_bytes_) return;
  idle_.clear();
  buffers_.clear();  // registered ones only for buffers of unusual size; see reusable()
  slabs_.clear();
  buffer_bytes_ = wanted;
  buffers_max_ = wanted < kBufferBytesFull
                     ? std::clamp<size_t>(kSmallBuffersBytesMax / wanted, kSmallBufferCountMin,
                                          kBufferCountMax)
                     : std::clamp<size_t>(kBuffersBytesMax / wanted, 1, kBufferCountMax);
}

// Middling buffers share a huge page: the kernel clears it in a tenth of the time that as many
// small pages take. Small ones are often alone, and large ones have several.
MutableBytes ReadContext::NewMemory() {
  const bool shared = buffer_bytes_ >= kSharedBufferBytesMin && buffer_bytes_ <= kSlabBytes / 2;
  if (!shared || slabs_.empty() || slab_used_bytes_ + buffer_bytes_ > slabs_.back().size()) {
    io::AlignedBuffer slab(shared ? kSlabBytes : buffer_bytes_);
    if (!slab) return {};
    slabs_.push_back(std::move(slab));
    slab_used_bytes_ = 0;
  }
  const MutableBytes memory = slabs_.back().bytes().subspan(slab_used_bytes_, buffer_bytes_);
  slab_used_bytes_ += buffer_bytes_;
  return memory;
}

ReadBuffer* ReadContext::Acquire() {
  if (!idle_.empty()) {
    ReadBuffer* buffer = idle_.back();
    idle_.pop_back();
    return buffer;
  }
  if (buffers_.size() >= buffers_max_) return nullptr;
  auto buffer = std::make_unique<ReadBuffer>();
  buffer->memory = NewMemory();
  if (buffer->memory.empty()) return nullptr;
  if (buffer_bytes_ == kBufferBytesFull && disk_ != nullptr) {
    buffer->buffer_index = disk_->RegisterBuffer(buffer->memory);
  }
  idle_.reserve(buffers_.size() + 1);  // so that Release never allocates
  buffers_.push_back(std::move(buffer));
  return buffers_.back().get();
}

void ReadContext::Release(ReadBuffer* buffer) { idle_.push_back(buffer); }

bool ReadContext::reusable() const { return buffer_bytes_ <= kBufferBytesFull; }

// One read on its way: disk, then worker, then back.
struct ReadRun::ReadOp final : io::Op {
  void OnComplete() override {
    if (run->inline_) return run->Process(this);
    try {
      run->executor_->Run([op = this] { op->run->Process(op); });
    } catch (const std::bad_alloc&) {
      run->Process(this);
    }
  }

  ReadRun* run = nullptr;
  const PlannedRead* read = nullptr;
  std::shared_ptr<io::File> held;  // Op::file
  ReadBuffer* buffer = nullptr;
  iovec vector{};
  std::vector<ChunkError> errors;
  Status lost;
};

ReadRun::ReadRun(SegmentFiles* files, const ChunkSources* sources, io::Executor* executor,
                 ReadContext* context, const RestorePlan* plan, bool stop_at_error, TakeChunk take)
    : files_(files),
      sources_(sources),
      executor_(executor),
      context_(context),
      plan_(plan),
      stop_at_error_(stop_at_error),
      take_(std::move(take)),
      inline_(plan->reads.size() == 1) {}

ReadRun::~ReadRun() = default;

uint64_t ReadRun::ReadBytesMax() {
  uint64_t bytes_max = 0;
  std::optional<uint32_t> part;
  uint64_t block = 1;
  for (const PlannedRead& read : plan_->reads) {
    if (read.part != part && OpenSegment(read) && segment_->file != nullptr) {
      part = read.part;
      block = segment_->file->alignment().offset_bytes;
    }
    const uint64_t end = AlignUp(read.offset_bytes + read.length_bytes, block);
    bytes_max = std::max(bytes_max, end - AlignDown(read.offset_bytes, block));
  }
  return bytes_max;
}

bool ReadRun::OpenSegment(const PlannedRead& read) {
  if (segment_ && segment_->Has(read)) return true;
  segment_.reset();  // gives its descriptor back before another is wanted
  auto file = files_->Get(read.part, read.segment);
  if (busy_ > 0 && LacksResources(file.status())) return false;
  segment_ = CurrentSegment{};
  segment_->part = read.part;
  segment_->segment = read.segment;
  segment_->status = file.status();
  if (file.ok()) segment_->file = *std::move(file);
  return true;
}

// Whatever is thrown: nothing of this is in use any more when it leaves.
Status ReadRun::Run(const ReadDone& done) {
  try {
    return RunAll(done);
  } catch (const std::exception&) {
    const auto keep_none = [](const PlannedRead&, std::span<const ChunkError>) { return false; };
    while (busy_ > 0) Collect(keep_none);
    throw;
  }
}

Status ReadRun::RunAll(const ReadDone& done) {
  context_->Fit(ReadBytesMax());
  io::Disk* const disk = context_->disk();
  Status status;
  bool go_on = true;
  size_t next = 0;
  for (;;) {
    while (go_on && next < plan_->reads.size() &&
           (disk == nullptr || disk->in_flight() < disk->depth())) {
      if (stop_at_error_ && lowest_error_.load(std::memory_order_relaxed) != UINT32_MAX) {
        go_on = false;  // every read before the bad one was submitted
        break;
      }
      if (!OpenSegment(plan_->reads[next])) break;
      ReadBuffer* buffer = context_->Acquire();
      if (buffer == nullptr) {
        if (context_->in_use() == 0) {
          status = ResourceExhaustedError("no memory for a read buffer");
          go_on = false;
        }
        break;
      }
      Submit(plan_->reads[next++], buffer);
    }
    if (busy_ == 0) return status.ok() ? lost_ : status;
    if (!Collect(done)) go_on = false;
  }
}

void ReadRun::Submit(const PlannedRead& read, ReadBuffer* buffer) {
  if (free_ops_.empty()) {
    auto made = std::make_unique<ReadOp>();
    {
      const io::MutexLock lock(&mutex_);  // only here is anything allocated
      const size_t room = std::bit_ceil(ops_.size() + 1);
      finished_.reserve(room);
      collected_.reserve(room);
      free_ops_.reserve(room);
    }
    ops_.push_back(std::move(made));
    free_ops_.push_back(ops_.back().get());
  }
  ReadOp* op = free_ops_.back();
  free_ops_.pop_back();
  op->run = this;
  op->read = &read;
  op->buffer = buffer;
  op->file = nullptr;
  op->transferred_bytes = 0;
  op->errors.clear();
  op->lost = OkStatus();
  Status status = segment_->status;
  const uint64_t block = status.ok() ? segment_->file->alignment().offset_bytes : 1;
  op->offset_bytes = AlignDown(read.offset_bytes, block);
  const uint64_t end = AlignUp(read.offset_bytes + read.length_bytes, block);
  if (status.ok() && end - op->offset_bytes > buffer->memory.size()) {
    status = InternalError(segment_->file->path() + ": other segments demand less alignment");
  }
  if (!status.ok()) {  // another source may have what the segment has not
    op->status = status;
    ++busy_;
    return op->OnComplete();
  }
  op->held = segment_->file;
  op->file = op->held.get();
  op->vector = {buffer->memory.data(), end - op->offset_bytes};
  op->vectors = {&op->vector, 1};
  op->buffer_index = buffer->buffer_index;
  op->status = OkStatus();
  if (context_->disk() != nullptr) {
    context_->disk()->Submit(op);
    ++busy_;
    return;
  }
  Result<size_t> count =
      op->file->ReadAt(op->offset_bytes, buffer->memory.first(op->vector.iov_len));
  if (count.ok()) {
    op->transferred_bytes = *count;
  } else {
    op->status = count.status();
  }
  ++busy_;
  op->OnComplete();
}

// Never throws: the op would be waited for for ever.
void ReadRun::Process(ReadOp* op) {
  const Status status = io::Guarded("read chunks", [&] {
    TakeAll(op);
    return OkStatus();
  });
  if (!status.ok()) {
    op->lost = status;  // the failure could not be told chunk by chunk
    lowest_error_ = std::min(lowest_error_.load(), op->read->chunk_begin);
  }
  Finish(op);
}

void ReadRun::TakeAll(ReadOp* op) {
  for (uint32_t i = op->read->chunk_begin; i < op->read->chunk_end; ++i) {
    if (stop_at_error_ && i > lowest_error_.load(std::memory_order_relaxed)) break;
    const Status status =
        io::Guarded("read a chunk", [&] { return TakeOne(op, plan_->chunks[i]); });
    if (!status.ok()) AddError(op, i, status);
  }
}

Status ReadRun::TakeOne(ReadOp* op, const PlannedChunk& chunk) {
  const format::ChunkRecord& record = *chunk.record;
  STEPWELL_DCHECK(record.offset_bytes >= op->offset_bytes, "a chunk lies before its read");
  const uint64_t skip = record.offset_bytes - op->offset_bytes;
  if (op->status.ok() && skip + record.stored_bytes <= op->transferred_bytes) {
    const ConstBytes bytes = op->buffer->memory;
    const ConstBytes payload = bytes.subspan(skip, record.stored_bytes);
    if (format::CheckPayload(payload, record.crc).ok()) {
      return take_(chunk, payload, &op->buffer->scratch);
    }
  }
  // The read failed, met the end of the file or gave other bytes. What lies beside the chunk may be
  // the reason, and another source may have it.
  STEPWELL_ASSIGN_OR_RETURN(const std::string payload, sources_->Fetch(record, record.part));
  return take_(chunk, AsBytes(payload), &op->buffer->scratch);
}

void ReadRun::AddError(ReadOp* op, uint32_t chunk_number, const Status& status) {
  const PlannedChunk& chunk = plan_->chunks[chunk_number];
  op->errors.push_back({chunk_number, status.WithContext(StrCat(
                                          files_->PathOf(chunk.record->part, chunk.record->segment),
                                          ": offset ", chunk.record->offset_bytes, ": leaf ",
                                          LeafName(*chunk.leaf), " chunk ", chunk.chunk_index))});
  uint32_t lowest = lowest_error_.load(std::memory_order_relaxed);
  while (chunk_number < lowest && !lowest_error_.compare_exchange_weak(lowest, chunk_number)) {
  }
}

void ReadRun::Finish(ReadOp* op) {
  // The calling thread may destroy this object as soon as the lock is free: Wake comes before.
  const io::MutexLock lock(&mutex_);
  finished_.push_back(op);
  if (std::this_thread::get_id() != context_->thread()) context_->disk()->Wake();
}

bool ReadRun::Collect(const ReadDone& done) {
  const auto take = [&] {
    if (next_collected_ < collected_.size()) return;  // some are left when `done` has thrown
    collected_.clear();
    next_collected_ = 0;
    const io::MutexLock lock(&mutex_);
    collected_.swap(finished_);
  };
  take();
  if (collected_.empty()) {
    context_->disk()->Poll(/*wait=*/true);
    take();
  }
  bool go_on = true;
  while (next_collected_ < collected_.size()) {
    ReadOp* const op = collected_[next_collected_++];
    --busy_;
    if (!op->lost.ok()) {
      lost_ = op->lost;
      go_on = false;
    }
    if (op->file != nullptr) ++reads_;
    bytes_read_ += op->transferred_bytes;
    op->held.reset();
    context_->Release(op->buffer);
    free_ops_.push_back(op);
    if (!done(*op->read, op->errors)) go_on = false;
  }
  return go_on;
}

}  // namespace stepwell::db
