// SPDX-License-Identifier: Apache-2.0
#include "db/commit/evacuator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "db/commit/engine.h"
#include "io/guard.h"

namespace stepwell::db {

// One step on its way out of `from_`.
struct Evacuator::Move {
  uint64_t step = 0;
  uint64_t commit = 0;
  std::shared_ptr<const LiveStep> live;
  format::StepRecord record;
  std::shared_ptr<std::vector<format::LeafRecord>> records;
  std::vector<format::StoredPayload*> payloads;  // of *records, to be moved, by their old places
  size_t next = 0;
  uint64_t bytes = 0;
  // The block that was read last: payloads [block_begin, next), at these offsets in the buffer.
  size_t block_begin = 0;
  std::vector<uint64_t> offsets;
  uint64_t block_bytes = 0;
  io::AlignedBuffer buffer;
};

struct Evacuator::Write final : SegmentWrite {
  Evacuator* evacuator = nullptr;
  std::shared_ptr<Move> move;
  void OnComplete() override { evacuator->Written(this); }
};

Evacuator::Evacuator(Engine* engine, ReclaimScheduler* scheduler, const EngineOptions* options)
    : engine_(engine), scheduler_(scheduler), options_(options), sources_(options->files) {}

void Evacuator::Start(ReclaimResult* result) {
  if (engine_->closing() || options_->freeze->frozen()) return;
  std::erase_if(result->evacuate,
                [&](uint64_t id) { return unmovable_.contains(id) || moved_into_.contains(id); });
  if (result->evacuate.empty()) return;
  from_ = std::move(result->evacuate);
  for (const auto& [step, commit] : result->steps_to_move) {
    auto move = std::make_shared<Move>();
    move->step = step;
    move->commit = commit;
    moves_.push_back(std::move(move));
  }
  Next();
}

void Evacuator::Next() {
  while (!moves_.empty()) {
    Move* first = moves_.front().get();
    first->live = options_->live->Find(first->step);
    if (!engine_->closing() && first->live != nullptr &&
        first->live->record.commit == first->commit)
      break;
    moves_.pop_front();  // deleted or changed meanwhile
  }
  if (moves_.empty()) {
    from_.clear();
    scheduler_->Continue();
    return;
  }
  ReadThenWrite(moves_.front(), /*first=*/true);
}

void Evacuator::ReadThenWrite(const std::shared_ptr<Move>& move, bool first) {
  options_->environment.reclaim_worker->Run([this, move, first] {
    const Status status = io::Guarded(
        "move a step", [&] { return first ? Load(move.get()) : ReadBlock(move.get()); });
    engine_->Post([this, move, status] {
      if (!status.ok()) {
        End(move, status);
      } else {
        WriteBlock(move);
      }
    });
  });
}

// On the reclaim worker: what the step is, and the first block of it. Only this worker erases, so
// nothing that was live when it is read goes away.
Status Evacuator::Load(Move* move) {
  STEPWELL_ASSIGN_OR_RETURN(
      auto leaves, ReadStepRecords(*options_->files, move->live->place, "", &move->record));
  for (format::LeafRecord& leaf : leaves) {
    for (format::ChunkRecord& chunk : leaf.chunks) {
      format::EachPayload(chunk, [&](format::StoredPayload& payload) {
        if (from_.contains(payload.segment)) move->payloads.push_back(&payload);
      });
    }
  }
  std::sort(move->payloads.begin(), move->payloads.end(), [](const auto* a, const auto* b) {
    return std::pair(a->segment, a->offset_bytes) < std::pair(b->segment, b->offset_bytes);
  });
  move->records = std::make_shared<std::vector<format::LeafRecord>>(std::move(leaves));
  return ReadBlock(move);
}

namespace {

// Two leaves may have one payload.
bool IsSamePlace(const format::StoredPayload& a, const format::StoredPayload& b) {
  return a.segment == b.segment && a.offset_bytes == b.offset_bytes;
}

}  // namespace

// On the reclaim worker: the next payloads, as they are, checked; a damaged one ends the move.
Status Evacuator::ReadBlock(Move* move) {
  move->block_begin = move->next;
  move->offsets.clear();
  move->block_bytes = 0;
  if (move->next == move->payloads.size()) return OkStatus();
  uint64_t used = 0;
  while (move->next < move->payloads.size()) {
    const format::StoredPayload& from = *move->payloads[move->next];
    if (!move->offsets.empty() && IsSamePlace(from, *move->payloads[move->next - 1])) {
      move->offsets.push_back(move->offsets.back());
      ++move->next;
      continue;
    }
    const uint64_t offset = AlignUp(used, PayloadAlignment(from.stored_bytes));
    const uint64_t wanted = AlignUp(offset + from.stored_bytes, engine_->log().block_bytes());
    if (used > 0 && wanted > kBlockBytes) break;
    if (wanted > move->buffer.size()) {
      // The first one, or a chunk that is larger than this version writes.
      if (from.stored_bytes > format::kPayloadLogicalMax + kBlockBytes) {
        return DataLossError("a chunk's record has an impossible size");
      }
      move->buffer = io::AlignedBuffer(std::max<uint64_t>(wanted, kBlockBytes));
      if (!move->buffer) return ResourceExhaustedError("no memory to move chunks");
    }
    const Result<std::string> payload = sources_.Fetch(from, /*part=*/0);
    if (!payload.ok()) {
      return payload.status().WithContext(
          StrCat(options_->files->PathOf(from.segment), ": offset ", from.offset_bytes));
    }
    std::memset(move->buffer.data() + used, 0, offset - used);
    std::memcpy(move->buffer.data() + offset, payload->data(), payload->size());
    move->offsets.push_back(offset);
    used = offset + payload->size();
    ++move->next;
  }
  move->block_bytes = AlignUp(used, engine_->log().block_bytes());
  std::memset(move->buffer.data() + used, 0, move->block_bytes - used);
  Limit(move->block_bytes);
  const io::MutexLock lock(&stop_mutex_);
  if (stop_) return AbortedError("the store is being closed");
  return OkStatus();
}

// Sleeps as long as so many bytes take at the rate that was asked for.
void Evacuator::Limit(uint64_t bytes) {
  if (options_->environment.inline_mode || options_->reclaim_bytes_per_second == 0) return;
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(options_->reclaim_bytes_per_second);
  using Clock = std::chrono::steady_clock;
  const auto end =
      Clock::now() + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(seconds));
  const io::MutexLock lock(&stop_mutex_);
  while (!stop_ && stopped_.WaitUntil(&stop_mutex_, end)) {
  }
}

void Evacuator::WriteBlock(const std::shared_ptr<Move>& move) {
  if (move->block_bytes == 0) {
    Commit(move);
    return;
  }
  auto placement = engine_->log().PlaceBlock(move->block_bytes, /*step_bytes=*/0);
  if (engine_->closing() || options_->freeze->frozen() || !placement.ok()) {
    End(move, placement.ok() ? AbortedError("the store is being closed") : placement.status());
    return;
  }
  into_.insert(placement->segment->id);
  auto write = std::make_unique<Write>();
  write->evacuator = this;
  write->move = move;
  write->BeginWrite(*placement, move->buffer.bytes().first(move->block_bytes));
  options_->disk->Submit(write.get());
  (void)write.release();
}

void Evacuator::Written(Write* raw) {
  const std::unique_ptr<Write> write(raw);
  if (engine_->panicked()) return;
  const std::shared_ptr<Move> move = write->move;
  write->EndWrite();
  if (!write->status.ok()) {
    if (write->status.code() != StatusCode::kResourceExhausted) {
      options_->freeze->Trip(write->status);
    }
    End(move, write->status);
    return;
  }
  options_->instruments->bytes_written += write->vector.iov_len;
  for (size_t i = 0; i < move->offsets.size(); ++i) {
    format::StoredPayload& payload = *move->payloads[move->block_begin + i];
    payload.segment = write->segment->id;
    payload.referenced = false;
    payload.offset_bytes = write->offset_bytes + move->offsets[i];
    move->bytes += payload.stored_bytes;
  }
  ReadThenWrite(move, /*first=*/false);
}

// Every chunk is written: the step is committed again. Should it have been changed or deleted
// meanwhile, this fails and the copies are dead.
void Evacuator::Commit(const std::shared_ptr<Move>& move) {
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kRewrite;
  job->step = move->step;
  job->rewritten = move->live;
  job->is_move = true;
  job->record = std::move(move->record);
  job->records = move->records;
  job->state = std::make_shared<SaveHandle::State>(move->step, options_->environment.callbacks,
                                                   std::function<void()>());
  job->state->on_finish = [this, move, raw = job->state.get()](const auto& mark) {
    if (!mark() || engine_->panicked()) return;
    engine_->Post([this, move, status = raw->Outcome()] { End(move, status); });
  };
  engine_->CommitNext(std::move(job));
}

void Evacuator::End(const std::shared_ptr<Move>& move, const Status& status) {
  scheduler_->MoveEnded(status, into_);
  if (status.ok()) {
    options_->instruments->bytes_moved += move->bytes;
  } else if (status.code() != StatusCode::kAborted) {
    // Not again and again: until reclaim is asked for, or the next open.
    unmovable_.insert(from_.begin(), from_.end());
    Log(options_->log, LogLevel::kWarning,
        StrCat(options_->store_path, ": step ", move->step,
               " was not moved to give space back: ", status.message()));
  }
  into_.clear();
  moves_.pop_front();
  Next();
}

// Nothing moves what a move wrote until something else dies there: where segments are hardly
// larger than steps it would look half empty again, and moves would follow each other for ever.
void Evacuator::NoteMoved(uint64_t frame_segment, const std::vector<format::SegmentExtent>& before,
                          const std::vector<format::SegmentExtent>& after) {
  moved_into_.insert(frame_segment);
  std::set<uint64_t> old;
  for (const auto& extent : before) old.insert(extent.segment);
  for (const auto& extent : after) {
    if (!old.contains(extent.segment)) moved_into_.insert(extent.segment);
  }
}

void Evacuator::ForgetMovedInto(const std::vector<format::SegmentExtent>& extents) {
  for (const auto& extent : extents) moved_into_.erase(extent.segment);
}

void Evacuator::SegmentGone(uint64_t segment) {
  unmovable_.erase(segment);
  moved_into_.erase(segment);
}

void Evacuator::Stop() {
  {
    const io::MutexLock lock(&stop_mutex_);
    stop_ = true;
  }
  stopped_.NotifyAll();
}

}  // namespace stepwell::db
