// SPDX-License-Identifier: Apache-2.0
#include "db/commit/reclaim_scheduler.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "db/commit/ballast.h"
#include "db/commit/engine.h"
#include "io/guard.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

// Punching and moving pay only where nothing more is going to die soon: under "keep the latest N"
// the rest of a segment follows at once, and a segment that was punched is useless as a spare. So
// they wait until the log has gone on by this many segments since the first death.
constexpr uint64_t kSettleSegments = 2;
// When an earlier session saw that death, by the segment's own age.
constexpr uint64_t kSettleAge = 8;
// In the background less than this is not worth an operation; small segments have lower bounds.
constexpr uint64_t kPunchGainBytes = uint64_t{256} << 10;
constexpr uint64_t kMoveGainBytes = uint64_t{1} << 20;
// A segment has two frames, a footer and a trailer of its own: emptying it for less gives nothing.
constexpr uint64_t kMoveGainBytesMin = uint64_t{64} << 10;
// Passes of one explicit call. Each moves on what the last one freed; two or three do.
constexpr int kRoundsMax = 8;
// What readers' pins kept is tried again with later commits, but not with each of them.
constexpr int64_t kRetryNanos = 1'000'000'000;

}  // namespace

ReclaimScheduler::ReclaimScheduler(Engine* engine, const EngineOptions* options)
    : engine_(engine), options_(options), evacuator_(engine, this, options) {}

void ReclaimScheduler::Begin(const format::Id128& store_id) {
  reclaimer_ = std::make_unique<Reclaimer>(options_, store_id, &stop_);
  Schedule(/*again_left=*/true);
}

void ReclaimScheduler::NoteDead(const std::vector<format::SegmentExtent>& extents) {
  const uint64_t newest = engine_->log().newest_segment();
  for (const auto& extent : extents) {
    suspects_.insert(extent.segment);
    if (newest != 0) first_death_.try_emplace(extent.segment, newest);
  }
}

bool ReclaimScheduler::IsSettled(uint64_t segment) {
  const uint64_t newest = engine_->log().newest_segment();
  const uint64_t noticed = first_death_.try_emplace(segment, newest).first->second;
  return newest >= noticed + kSettleSegments ||
         (segment < engine_->log().first_segment() && newest >= segment + kSettleAge);
}

void ReclaimScheduler::PinReleased() {
  if (!left_.empty()) Schedule(/*again_left=*/true);
}

void ReclaimScheduler::TakeSuspects() {
  if (engine_->log().TakeSuspects(&suspects_)) guard_moved_ = true;
}

void ReclaimScheduler::AfterCommit() {
  TakeSuspects();
  if (guard_moved_ || !left_.empty()) Schedule(/*again_left=*/false);
}

void ReclaimScheduler::Schedule(bool again_left) {
  if (!engine_->MayErase().ok()) return;
  TakeSuspects();
  if (pass_running_ || !evacuator_.idle()) {
    pass_again_ = true;  // what is under way may have looked already
    return;
  }
  const int64_t now = options_->environment.clock->MonotonicNanos();
  const bool has_new_segment = std::exchange(guard_moved_, false);
  if (has_new_segment) GrowBallast();
  if (has_new_segment || again_left || now - last_pass_ns_ >= kRetryNanos) {
    suspects_.merge(left_);
    left_.clear();
  }
  if (!suspects_.empty()) StartPass(/*thorough=*/false);
}

void ReclaimScheduler::GrowBallast() {
  options_->environment.reclaim_worker->Run([options = options_] {
    if (options->freeze->frozen()) return;
    io::Quietly([options] {
      KeepBallast(options->environment.file_system, options->store_path, /*anew=*/false);
    });
  });
}

void ReclaimScheduler::StartPass(bool thorough) {
  TakeSuspects();
  const uint64_t guard = engine_->log().GuardSegment();
  ReclaimRequest request = engine_->log().NewReclaimRequest();
  const std::set<uint64_t> busy = engine_->BusySegments();
  const auto add = [&](uint64_t id) {
    if (busy.contains(id)) return;
    request.segments.insert(id);
    if (thorough || IsSettled(id)) request.settled.insert(id);
  };
  const auto& all = engine_->log().segments();
  if (thorough) {
    for (auto it = all.begin(); it != all.lower_bound(guard); ++it) add(it->first);
  } else {
    for (auto it = suspects_.begin(); it != suspects_.lower_bound(guard); ++it) {
      if (all.contains(*it)) add(*it);
    }
  }
  if (request.segments.empty() && request.unwanted_spares.empty() && !thorough) return;
  for (const uint64_t id : request.segments) {
    STEPWELL_DCHECK(id < guard && !busy.contains(id), "reclaim takes a segment that is needed");
    suspects_.erase(id);
    left_.erase(id);
  }
  const uint64_t small = options_->segment_bytes_max / 16;
  request.punch_gain_min = thorough ? 1 : std::min(kPunchGainBytes, small);
  request.evacuate_gain_min =
      thorough ? std::min(kMoveGainBytesMin, small) : std::min(kMoveGainBytes, 2 * small);
  last_pass_ns_ = options_->environment.clock->MonotonicNanos();
  pass_running_ = true;
  options_->environment.reclaim_worker->Run([this, request = std::move(request)] {
    const TraceSpan span(options_->instruments->trace.get(), Trace::Lane::kReclaim, "reclaim");
    auto result = std::make_shared<ReclaimResult>();
    result->status = io::Guarded("look for space to give back", [&] {
      *result = reclaimer_->Run(request);
      return result->status;
    });
    if (!result->gone.empty() && !options_->freeze->frozen()) {
      // A delete may have used it.
      KeepBallast(options_->environment.file_system, options_->store_path, /*anew=*/true);
    }
    engine_->Post([this, result] { PassDone(std::move(*result)); });
  });
}

bool ReclaimScheduler::WaitForSpace() {
  if (engine_->DeathsAwaitSlot()) return true;  // they may be erased then
  if (!pass_running_ && evacuator_.idle() && engine_->MayErase().ok() &&
      !std::exchange(space_asked_, true)) {
    StartPass(/*thorough=*/true);
  }
  return pass_running_ || !evacuator_.idle();  // moves soon end where there is no room
}

void ReclaimScheduler::PassDone(ReclaimResult result) {
  pass_running_ = false;
  if (!result.status.ok()) {
    Log(options_->log, LogLevel::kWarning,
        StrCat(options_->store_path, ": space was not given back: ", result.status.message()));
    Finish(result.status);
  }
  for (const uint64_t id : result.gone) {
    engine_->log().SegmentGone(id);
    first_death_.erase(id);
    evacuator_.SegmentGone(id);
  }
  for (const uint64_t id : result.foreign) {
    engine_->log().SegmentGone(id);
    Log(options_->log, LogLevel::kWarning,
        StrCat(options_->files->PathOf(id), " is not of this store; it is left alone"));
  }
  options_->instruments->segments_recycled += result.spares.size();
  for (auto& spare : result.spares) engine_->log().AddSpare(std::move(spare));
  left_.merge(result.later);
  options_->instruments->bytes_punched += result.bytes_punched;
  options_->instruments->segments_removed += result.segments_removed;
  options_->instruments->bytes_pinned = result.bytes_pinned;
  options_->instruments->bytes_linked = result.bytes_linked;
  progress_ = progress_ || !result.gone.empty() || result.bytes_punched > 0;
  evacuator_.Start(&result);
  Continue();
}

void ReclaimScheduler::MoveEnded(const Status& status, const std::set<uint64_t>& segments) {
  if (status.ok()) {
    progress_ = true;
  } else {
    suspects_.insert(segments.begin(), segments.end());
    engine_->log().NoteFailedWrites();
  }
}

void ReclaimScheduler::Continue() {
  if (pass_running_ || !evacuator_.idle()) return;
  for (const auto& done : std::exchange(idle_waiters_, {})) done();
  if (waiters_.empty()) {
    if (std::exchange(pass_again_, false)) Schedule(/*again_left=*/true);
    return;
  }
  if (Status status = engine_->MayErase(); !status.ok()) return Finish(status);
  if (engine_->CommitInFlight()) return;  // again when it is done
  if (rounds_ > 0 && (!progress_ || rounds_ >= kRoundsMax)) return Finish(OkStatus());
  progress_ = false;
  ++rounds_;
  // Dead bytes in the newest segments can go only behind two newer catalogs. Frames, too, are more
  // than payloads: nothing is gained where nothing died.
  TakeSuspects();
  const uint64_t guard = engine_->log().GuardSegment();
  if (suspects_.lower_bound(guard) != suspects_.end()) {
    if (Status status = engine_->RollSegments(guard); !status.ok()) return Finish(status);
  }
  StartPass(/*thorough=*/true);
}

void ReclaimScheduler::ReclaimAll(std::function<void(const Status&)> done) {
  if (waiters_.empty()) {
    rounds_ = 0;
    evacuator_.TryAllAgain();
  }
  waiters_.push_back(std::move(done));
  Continue();
}

void ReclaimScheduler::WhenIdle(std::function<void()> done) {
  idle_waiters_.push_back(std::move(done));
  Continue();
}

void ReclaimScheduler::Finish(const Status& status) {
  for (const auto& done : std::exchange(waiters_, {})) done(status);
}

void ReclaimScheduler::EndWaiters(const Status& status) {
  for (const auto& done : std::exchange(idle_waiters_, {})) done();
  Finish(status);
}

void ReclaimScheduler::Stop() {
  stop_ = true;
  evacuator_.Stop();
}

// One step on its way out of `from_`.
struct Evacuator::Move {
  struct Chunk {
    size_t leaf = 0;   // in *records
    size_t chunk = 0;  // in its chunks
  };
  uint64_t step = 0;
  uint64_t commit = 0;
  std::shared_ptr<const LiveStep> live;
  format::StepRecord record;
  std::shared_ptr<std::vector<format::LeafRecord>> records;
  std::vector<Chunk> chunks;  // to be moved, by their old places
  size_t next = 0;
  uint64_t bytes = 0;
  // The block that was read last: chunks [block_begin, next), at these offsets in the buffer.
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
  for (size_t i = 0; i < leaves.size(); ++i) {
    for (size_t k = 0; k < leaves[i].chunks.size(); ++k) {
      if (from_.contains(leaves[i].chunks[k].segment)) move->chunks.push_back({i, k});
    }
  }
  std::sort(move->chunks.begin(), move->chunks.end(), [&](const auto& a, const auto& b) {
    const auto& first = leaves[a.leaf].chunks[a.chunk];
    const auto& second = leaves[b.leaf].chunks[b.chunk];
    return std::pair(first.segment, first.offset_bytes) <
           std::pair(second.segment, second.offset_bytes);
  });
  move->records = std::make_shared<std::vector<format::LeafRecord>>(std::move(leaves));
  return ReadBlock(move);
}

// On the reclaim worker: the next chunks, as they are, checked; a damaged one ends the move.
Status Evacuator::ReadBlock(Move* move) {
  move->block_begin = move->next;
  move->offsets.clear();
  move->block_bytes = 0;
  if (move->next == move->chunks.size()) return OkStatus();
  uint64_t used = 0;
  while (move->next < move->chunks.size()) {
    const Move::Chunk& which = move->chunks[move->next];
    const format::ChunkRecord& chunk = (*move->records)[which.leaf].chunks[which.chunk];
    const uint64_t offset = AlignUp(used, PayloadAlignment(chunk.stored_bytes));
    const uint64_t wanted = AlignUp(offset + chunk.stored_bytes, engine_->log().block_bytes());
    if (used > 0 && wanted > kBlockBytes) break;
    if (wanted > move->buffer.size()) {
      // The first one, or a chunk that is larger than this version writes.
      if (chunk.stored_bytes > format::kPayloadLogicalMax + kBlockBytes) {
        return DataLossError("a chunk's record has an impossible size");
      }
      move->buffer = io::AlignedBuffer(std::max<uint64_t>(wanted, kBlockBytes));
      if (!move->buffer) return ResourceExhaustedError("no memory to move chunks");
    }
    const Result<std::string> payload = sources_.Fetch(chunk);
    if (!payload.ok()) {
      return payload.status().WithContext(
          StrCat(options_->files->PathOf(chunk.segment), ": offset ", chunk.offset_bytes));
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
    const Move::Chunk& which = move->chunks[move->block_begin + i];
    format::ChunkRecord& chunk = (*move->records)[which.leaf].chunks[which.chunk];
    chunk.segment = write->segment->id;
    chunk.offset_bytes = write->offset_bytes + move->offsets[i];
    move->bytes += chunk.stored_bytes;
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

// What a move wrote is not moved again until something else dies there: where segments are hardly
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

void Evacuator::NoteDead(const std::vector<format::SegmentExtent>& extents) {
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
