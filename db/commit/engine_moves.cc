// SPDX-License-Identifier: Apache-2.0
// Evacuation: live chunks are copied out of segments of which little is left, then each
// step concerned is committed again with their new places; the old segments die by the ordinary
// rules. One step at a time, one block at a time: read and checked on the reclaim worker, written
// by the engine like any other block.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "db/commit/engine.h"
#include "db/commit/engine_internal.h"
#include "io/guard.h"

namespace stepwell::db {

// One step on its way out of `move_from_`.
struct Engine::Move {
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

struct Engine::MoveWrite final : io::Op {
  Engine* engine = nullptr;
  std::shared_ptr<Move> move;
  Segment* segment = nullptr;
  iovec vector{};
  void OnComplete() override { engine->MoveWritten(this); }
};

void Engine::StartMoves(ReclaimResult* result) {
  if (closing_ || options_.freeze->frozen()) return;
  std::erase_if(result->evacuate,
                [&](uint64_t id) { return unmovable_.contains(id) || moved_into_.contains(id); });
  if (result->evacuate.empty()) return;
  move_from_ = std::move(result->evacuate);
  for (const auto& [step, commit] : result->steps_to_move) {
    auto move = std::make_shared<Move>();
    move->step = step;
    move->commit = commit;
    moves_.push_back(std::move(move));
  }
  NextMove();
}

void Engine::NextMove() {
  while (!moves_.empty()) {
    Move* first = moves_.front().get();
    first->live = options_.live->Find(first->step);
    if (!closing_ && first->live != nullptr && first->live->record.commit == first->commit) break;
    moves_.pop_front();  // deleted or changed meanwhile
  }
  if (moves_.empty()) {
    move_from_.clear();
    ReclaimStep();
    return;
  }
  const std::shared_ptr<Move> move = moves_.front();
  OnReclaimWorker([this, move] {
    const Status status = io::Guarded("move a step", [&] { return LoadMove(move.get()); });
    Post([this, move, status] {
      if (!status.ok()) {
        EndMove(move, status);
      } else {
        WriteMoveBlock(move);
      }
    });
  });
}

// On the reclaim worker: what the step is, and the first block of it. Only this worker erases, so
// nothing that was live when it is read goes away.
Status Engine::LoadMove(Move* move) {
  STEPWELL_ASSIGN_OR_RETURN(move->record, RecordWithTexts(*move->live, *options_.files));
  STEPWELL_ASSIGN_OR_RETURN(auto leaves, ReadStepRecords(*options_.files, move->live->place, ""));
  for (size_t i = 0; i < leaves.size(); ++i) {
    for (size_t k = 0; k < leaves[i].chunks.size(); ++k) {
      if (move_from_.contains(leaves[i].chunks[k].segment)) move->chunks.push_back({i, k});
    }
  }
  std::sort(move->chunks.begin(), move->chunks.end(), [&](const auto& a, const auto& b) {
    const auto& first = leaves[a.leaf].chunks[a.chunk];
    const auto& second = leaves[b.leaf].chunks[b.chunk];
    return std::pair(first.segment, first.offset_bytes) <
           std::pair(second.segment, second.offset_bytes);
  });
  move->records = std::make_shared<std::vector<format::LeafRecord>>(std::move(leaves));
  return ReadMoveBlock(move);
}

// On the reclaim worker: the next chunks, as they are, checked; a damaged one ends the move.
Status Engine::ReadMoveBlock(Move* move) {
  move->block_begin = move->next;
  move->offsets.clear();
  move->block_bytes = 0;
  if (move->next == move->chunks.size()) return OkStatus();
  uint64_t used = 0;
  while (move->next < move->chunks.size()) {
    const Move::Chunk& which = move->chunks[move->next];
    const format::ChunkRecord& chunk = (*move->records)[which.leaf].chunks[which.chunk];
    const uint64_t offset = AlignUp(used, PayloadAlignment(chunk.stored_bytes));
    const uint64_t wanted = AlignUp(offset + chunk.stored_bytes, block_bytes());
    if (used > 0 && wanted > kBlockBytes) break;
    if (wanted > move->buffer.size()) {
      // The first one, or a chunk that is larger than this version writes.
      if (chunk.stored_bytes > format::kPayloadLogicalMax + kBlockBytes) {
        return DataLossError("a chunk's record has an impossible size");
      }
      move->buffer = io::AlignedBuffer(std::max<uint64_t>(wanted, kBlockBytes));
      if (!move->buffer) return ResourceExhaustedError("no memory to move chunks");
    }
    STEPWELL_ASSIGN_OR_RETURN(const auto file, options_.files->Get(chunk.segment));
    STEPWELL_ASSIGN_OR_RETURN(const std::string payload,
                              ReadRange(*file, chunk.offset_bytes, chunk.stored_bytes));
    if (Status status = format::CheckPayload(AsBytes(payload), chunk.crc); !status.ok()) {
      return status.WithContext(StrCat(file->path(), ": offset ", chunk.offset_bytes));
    }
    std::memset(move->buffer.data() + used, 0, offset - used);
    std::memcpy(move->buffer.data() + offset, payload.data(), payload.size());
    move->offsets.push_back(offset);
    used = offset + payload.size();
    ++move->next;
  }
  move->block_bytes = AlignUp(used, block_bytes());
  std::memset(move->buffer.data() + used, 0, move->block_bytes - used);
  LimitMoves(move->block_bytes);
  if (stop_reclaim_.load()) return AbortedError("the store is being closed");
  return OkStatus();
}

// Sleeps as long as so many bytes take at the rate that was asked for.
void Engine::LimitMoves(uint64_t bytes) {
  if (options_.environment.inline_mode || options_.reclaim_bytes_per_second == 0) return;
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(options_.reclaim_bytes_per_second);
  std::unique_lock lock(stop_mutex_);
  stopped_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [this] { return stop_reclaim_.load(); });
}

void Engine::WriteMoveBlock(const std::shared_ptr<Move>& move) {
  if (move->block_bytes == 0) {
    CommitMove(move);
    return;
  }
  auto placement = PlaceWithBallast(move->block_bytes, 0, /*may_drop_ballast=*/false);
  if (closing_ || options_.freeze->frozen() || !placement.ok()) {
    EndMove(move, placement.ok() ? AbortedError("the store is being closed") : placement.status());
    return;
  }
  move_segments_.insert(placement->segment->id);
  auto write = std::make_unique<MoveWrite>();
  write->engine = this;
  write->move = move;
  write->kind = io::Op::Kind::kWrite;
  write->segment = placement->segment;
  write->file = placement->segment->file.get();
  write->offset_bytes = placement->offset_bytes;
  write->vector = {move->buffer.data(), move->block_bytes};
  write->vectors = {&write->vector, 1};
  ++write->segment->writes_in_flight;
  options_.disk->Submit(write.get());
  (void)write.release();
}

void Engine::MoveWritten(MoveWrite* raw) {
  const std::unique_ptr<MoveWrite> write(raw);
  if (panicked()) return;
  const std::shared_ptr<Move> move = write->move;
  --write->segment->writes_in_flight;
  write->segment->dirty = true;
  if (!write->status.ok()) {
    if (write->status.code() != StatusCode::kResourceExhausted) {
      options_.freeze->Trip(write->status);
    }
    EndMove(move, write->status);
    return;
  }
  bytes_written_ += write->vector.iov_len;
  for (size_t i = 0; i < move->offsets.size(); ++i) {
    const Move::Chunk& which = move->chunks[move->block_begin + i];
    format::ChunkRecord& chunk = (*move->records)[which.leaf].chunks[which.chunk];
    chunk.segment = write->segment->id;
    chunk.offset_bytes = write->offset_bytes + move->offsets[i];
    move->bytes += chunk.stored_bytes;
  }
  OnReclaimWorker([this, move] {
    const Status status = io::Guarded("move a step", [&] { return ReadMoveBlock(move.get()); });
    Post([this, move, status] {
      if (!status.ok()) {
        EndMove(move, status);
      } else {
        WriteMoveBlock(move);
      }
    });
  });
}

// What a move wrote is not moved again until something else dies there: where segments are hardly
// larger than steps it would look half empty again, and moves would follow each other for ever.
void Engine::NoteMoved(const GroupEntry& entry) {
  moved_into_.insert(entry.place.segment);
  std::set<uint64_t> before;
  for (const auto& extent : entry.job->rewritten->record.extents) before.insert(extent.segment);
  for (const auto& extent : entry.change.added->record.extents) {
    if (!before.contains(extent.segment)) moved_into_.insert(extent.segment);
  }
}

// Every chunk is written: the step is committed again. Should it have been changed or deleted
// meanwhile, this fails and the copies are dead.
void Engine::CommitMove(const std::shared_ptr<Move>& move) {
  auto job = std::make_shared<SaveJob>();
  job->kind = SaveJob::Kind::kRewrite;
  job->step = move->step;
  job->rewritten = move->live;
  job->is_move = true;
  job->record = std::move(move->record);
  job->records = move->records;
  job->state = std::make_shared<SaveHandle::State>(move->step, options_.environment.callbacks,
                                                   std::function<void()>());
  job->state->on_finish = [this, move, raw = job->state.get()](const auto& mark) {
    if (!mark() || panicked()) return;
    Post([this, move, status = raw->status] { EndMove(move, status); });
  };
  if (frozen_reported_) Fail(job.get(), options_.freeze->Check());
  // Before the saves in flight: on a full disk they wait for the space that this gives back.
  jobs_.push_front(std::move(job));
}

void Engine::EndMove(const std::shared_ptr<Move>& move, const Status& status) {
  if (status.ok()) {
    options_.instruments->bytes_moved += move->bytes;
    reclaim_progress_ = true;
  } else {
    suspects_.insert(move_segments_.begin(), move_segments_.end());
    has_failed_writes_ = true;
    if (status.code() != StatusCode::kAborted) {
      // Not again and again: until somebody asks for it, or the next open.
      unmovable_.insert(move_from_.begin(), move_from_.end());
      Log(options_.log, LogLevel::kWarning,
          StrCat(options_.store_path, ": step ", move->step,
                 " was not moved to give space back: ", status.message()));
    }
  }
  move_segments_.clear();
  moves_.pop_front();
  NextMove();
}

}  // namespace stepwell::db
