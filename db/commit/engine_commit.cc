// SPDX-License-Identifier: Apache-2.0
// Commit batches: frames, one fdatasync per touched segment, publication (DESIGN.md, "Save").
#include <algorithm>
#include <utility>

#include "db/commit/engine.h"
#include "db/layout.h"

namespace stepwell::db {
namespace {

using format::FrameKind;
using format::FramePlace;

std::string StepsText(const std::vector<uint64_t>& steps) {
  if (steps.size() == 1) return StrCat("step ", steps[0], " was");
  return StrCat(steps.size(), " steps (", steps.front(), " to ", steps.back(), ") were");
}

std::string WhatOf(const SaveJob& job) {
  switch (job.kind) {
    case SaveJob::Kind::kSave:
      return StrCat("step ", job.step, " was saved");
    case SaveJob::Kind::kDelete:
      return StepsText(job.steps) + " deleted";
    case SaveJob::Kind::kPin:
      return StepsText(job.steps) + (job.pinned ? " pinned" : " unpinned");
    case SaveJob::Kind::kDecide:
      return StrCat("step ", job.step, job.decision.commit ? " was committed" : " was aborted");
    case SaveJob::Kind::kAccept:
      return "the loss was accepted";
    case SaveJob::Kind::kRewrite:
      break;
  }
  return StrCat("step ", job.step, " was changed");
}

Status Unknown(const SaveJob& job, const Status& cause) {
  return OutcomeUnknownError(
      StrCat("whether ", WhatOf(job), " is not known: ", cause.message(),
             "; close the store and open it again, which settles it, then look at its steps"),
      cause.os_error());
}

}  // namespace

// Jobs at the head that failed are over; nothing of them is in the log's chain.
void Engine::FailReadyHeads() {
  while (!jobs_.empty() && jobs_.front()->Ready() && !jobs_.front()->error.ok()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    Drop(job.get(), job->error);
  }
}

void Engine::Drop(SaveJob* job, const Status& status) {
  std::vector<format::SegmentExtent> lost;
  for (const auto& [id, extent] : job->extents) lost.push_back(extent);
  reclaim_.NoteDead(lost);
  has_failed_writes_ = has_failed_writes_ || !lost.empty();
  ReleaseHolds(job);
  job->state->Finish(status);
}

void Engine::StartBatch() {
  if (batch_ != nullptr || jobs_.empty() || !jobs_.front()->Ready()) return;
  const int64_t started_ns = options_.instruments->Now();
  const TraceSpan span(options_.instruments->trace.get(), Trace::Lane::kEngine, "frames");
  LeaveLinkedSegment();
  batch_ = std::make_unique<CommitBatch>();
  while (!jobs_.empty() && jobs_.front()->Ready()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    Status status = job->error;
    if (status.ok()) status = AddToBatch(job);
    if (!status.ok()) Drop(job.get(), status);
  }
  if (batch_->entries.empty() && batch_->frames.empty()) {
    for (const auto& job : batch_->repeated) job->state->Finish(OkStatus());
    batch_.reset();
    return;
  }
  batch_->writes_left = batch_->frames.size();
  batch_->times.start_ns = started_ns;
  // Submitted together: whatever lands first, recovery believes a commit frame only when its
  // records and, until a flush is known, its payloads are all there.
  for (auto& frame : batch_->frames) {
    frame->submitted_ns = options_.instruments->Now();
    options_.disk->Submit(frame.get());
  }
}

// `taken` (may be null) receives where it lies with the copies behind it.
Result<FramePlace> Engine::AppendFrame(FrameKind kind, const std::string& payload,
                                       uint64_t step_bytes, bool may_drop_ballast, Run* taken) {
  STEPWELL_ASSIGN_OR_RETURN(const Run run,
                            PlaceRun(kind, payload.size(), step_bytes, may_drop_ballast));
  if (taken != nullptr) *taken = run;
  return SubmitFrame(kind, payload, run);
}

// Room for a frame with what lies behind it: chain frames take copies of those before along, where
// the disk has room for them. Copies that come up later wait for the next frame. A frame of records
// has its own copy behind it.
Result<Engine::Run> Engine::PlaceRun(FrameKind kind, size_t payload_bytes, uint64_t step_bytes,
                                     bool may_drop_ballast) {
  const size_t frame_bytes = format::kFrameHeaderBytes + payload_bytes;
  Run run;
  run.bytes = AlignUp(kind == FrameKind::kRecords ? format::BytesWithCopy(frame_bytes) : frame_bytes,
                      log_->block_bytes());
  if (format::IsChainFrame(kind) && log_->CopySpace(frame_bytes) > 0) {
    const size_t with_copies =
        AlignUp(frame_bytes + log_->CopySpace(frame_bytes), log_->block_bytes());
    auto spot = log_->Place(with_copies, step_bytes, /*may_use_reserve=*/false);
    if (spot.ok()) return Run{*spot, with_copies};
    if (spot.status().code() != StatusCode::kResourceExhausted) return spot.status();
  }
  auto spot = log_->Place(run.bytes, step_bytes, /*may_use_reserve=*/may_drop_ballast);
  // A delete must work on a full disk: that is how space comes back.
  if (may_drop_ballast && spot.status().code() == StatusCode::kResourceExhausted) {
    MakeRoom();
    spot = log_->Place(run.bytes, step_bytes, /*may_use_reserve=*/true);
  }
  STEPWELL_ASSIGN_OR_RETURN(run.spot, std::move(spot));
  return run;
}

// Queues the frame for the batch; chain frames take the next number.
Result<FramePlace> Engine::SubmitFrame(FrameKind kind, const std::string& payload, const Run& run) {
  STEPWELL_RETURN_IF_ERROR(CheckFrameSize(payload));
  Segment* segment = run.spot.segment;
  format::FrameHeader header;
  header.kind = kind;
  header.nonce = segment->nonce;
  header.epoch = epoch_;
  header.commit = tip_commit_;
  header.durable_through = slot_.durable_commit;
  if (format::IsChainFrame(kind)) {
    header.commit = tip_commit_ + 1;
    header.previous = tip_place_;
    header.previous_commit = tip_commit_;
  }
  FramePlace place;
  auto write = std::make_unique<FrameWrite>();
  write->buffer = io::AlignedBuffer(run.bytes);
  if (!write->buffer) return ResourceExhaustedError("no memory for a frame");
  format::EncodeFrameTo(header, payload, write->buffer.bytes(), &place.crc);
  place.segment = segment->id;
  place.offset_bytes = run.spot.offset_bytes;
  place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  write->engine = this;
  write->BeginWrite(run.spot, write->buffer.bytes());
  batch_->touched.insert(segment);
  batch_->frames.push_back(std::move(write));
  segment->frames.push_back({static_cast<uint16_t>(kind), header.commit, place});
  if (kind == FrameKind::kRecords) {
    format::EncodeOwnCopy(place, segment->nonce, batch_->frames.back()->buffer.bytes());
  }
  if (format::IsChainFrame(kind)) {
    io::AlignedBuffer& buffer = batch_->frames.back()->buffer;
    log_->PutCopies(segment->nonce, place.length_bytes, buffer.bytes());
    const std::string_view frame(reinterpret_cast<const char*>(buffer.data()), place.length_bytes);
    log_->AddCopy({place, format::MakeFrameCopy(frame, format::kCopyBytesMax)});
    tip_copy_ = format::MakeFrameCopy(frame, format::kSlotTipBytesMax);
    tip_commit_ = header.commit;
    tip_place_ = place;
    chain_.push_back({header.commit, segment->id});
  }
  return place;
}

// Spares first: they make writes faster, the ballast makes them possible.
bool Engine::MakeRoom() {
  if (log_ != nullptr && log_->DropSpares()) return true;
  return options_.environment.file_system->Remove(BallastFilePath(options_.store_path)).ok();
}

void Engine::FrameWritten(FrameWrite* write) {
  if (panicked()) return;
  write->EndWrite();
  bytes_written_ += write->vector.iov_len;
  options_.instruments->DiskSpan("write frame", write->submitted_ns, Trace::kNoStep,
                                 write->vector.iov_len);
  // kAborted: the log was frozen before the write began. A full disk may have taken a part, which
  // counts also when the second try finds the log frozen.
  if (write->status.code() != StatusCode::kAborted || write->transferred_bytes > 0) {
    batch_->reached_disk = true;
  }
  if (write->status.code() == StatusCode::kResourceExhausted && MakeRoom()) {
    // The chain goes through this frame: it is written once more, where that was.
    ++write->segment->writes_in_flight;
    options_.disk->Submit(write);
    return;
  }
  if (!write->status.ok()) {
    options_.freeze->Trip(write->status);
    if (batch_->error.ok()) batch_->error = write->status;
  }
  if (--batch_->writes_left == 0) SyncBatch();
}

void Engine::SyncBatch() {
  if (!batch_->error.ok()) return FailBatch(batch_->error);
  batch_->syncs_left = batch_->touched.size();
  batch_->times.frames_ns = options_.instruments->Now();
  for (Segment* segment : batch_->touched) {
    auto sync = std::make_unique<SegmentSync>();
    sync->engine = this;
    sync->kind = io::Op::Kind::kSync;
    sync->file = segment->file.get();
    sync->segment = segment;
    segment->dirty = false;  // writes that complete from here on set it again
    ++segment->writes_in_flight;
    ++syncs_;
    sync->submitted_ns = batch_->times.frames_ns;
    batch_->sync_ops.push_back(std::move(sync));
    options_.disk->Submit(batch_->sync_ops.back().get());
  }
}

void Engine::SegmentSynced(SegmentSync* sync) {
  if (panicked()) return;
  --sync->segment->writes_in_flight;
  options_.instruments->DiskSpan("fdatasync", sync->submitted_ns, Trace::kNoStep, 0);
  if (!sync->status.ok()) {
    options_.freeze->Trip(sync->status);
    if (batch_->error.ok()) batch_->error = sync->status;
  } else {
    NoteCatalog(*sync->segment);
  }
  if (--batch_->syncs_left > 0) return;
  // Every segment of the batch is flushed: without an error, its changes are durable from here on.
  if (batch_->error.ok()) {
    batch_->error = CheckNotRemoved();
    if (!batch_->error.ok()) options_.freeze->Trip(batch_->error);
  }
  if (batch_->error.ok()) {
    Publish();
  } else {
    FailBatch(batch_->error);
  }
}

// Publishes the batch, updates the slot, completes the handles.
void Engine::Publish() {
  const TraceSpan span(options_.instruments->trace.get(), Trace::Lane::kEngine, "publish");
  const std::unique_ptr<CommitBatch> batch = std::move(batch_);
  bool killed = false;
  for (BatchEntry& entry : batch->entries) {
    const auto& decided = entry.change.decided;
    const bool aborted = decided != nullptr && entry.change.added == nullptr;
    killed = killed || aborted || !entry.change.killed.empty();
    const bool is_move = entry.job->is_move;
    if (aborted) reclaim_.NoteDead(decided->record.extents);
    for (const auto& dead : entry.change.killed) {
      reclaim_.NoteDead(dead->record.extents);
      if (!is_move) reclaim_.evacuator().NoteDead(dead->record.extents);
    }
    if (is_move) {
      reclaim_.evacuator().NoteMoved(entry.place.segment, entry.job->rewritten->record.extents,
                                     entry.change.added->record.extents);
    }
    options_.live->Commit(entry.change);
    catalogs_.Note(entry.change);
    if (entry.change.losses) losses_ = *entry.change.losses;
    slot_.durable_commit = entry.change.commit;
    slot_.durable_place = entry.place;
  }
  slot_.tip = tip_copy_;
  killed_unmarked_ = killed_unmarked_ || killed;
  MarkDurable();
  NoteSegments();
  reclaim_.AfterCommit();
  for (BatchEntry& entry : batch->entries) {
    options_.index->Note(entry.change);
    NoteCommitted(*batch, entry);
    entry.job->state->Finish(OkStatus());
  }
  for (const auto& job : batch->repeated) job->state->Finish(OkStatus());
}

// The slot, for other processes now, and on the device soon: what recovery then takes for durable
// without looking, and so what may be erased on the strength of it. No handle waits for
// this sync.
void Engine::MarkDurable() {
  if (!UpdateSlot()) return;
  if (slot_sync_ != nullptr) {
    slot_sync_again_ = true;
    return;
  }
  slot_sync_ = std::make_unique<SlotSync>();
  slot_sync_->engine = this;
  slot_sync_->kind = io::Op::Kind::kSync;
  slot_sync_->file = options_.slot_file->file();
  slot_sync_->commit = slot_.durable_commit;
  slot_sync_->killed = std::exchange(killed_unmarked_, false);
  options_.slot_file->BeginSync();
  ++syncs_;
  options_.disk->Submit(slot_sync_.get());
}

void Engine::SlotSynced() {
  if (panicked()) return;
  const std::unique_ptr<SlotSync> sync = std::move(slot_sync_);
  options_.slot_file->EndSync(sync->status.ok());
  if (!sync->status.ok()) {
    options_.freeze->Trip(sync->status);
    return;
  }
  durable_mark_ = sync->commit;
  if (std::exchange(slot_sync_again_, false) && !options_.freeze->frozen()) MarkDurable();
  if (!sync->killed) return;
  // What died by that commit may go now, for a full disk at once.
  reclaim_.RoomMayHaveCome();
  reclaim_.Schedule(/*again_left=*/true);
}

// The store is frozen. Frames that reached the disk may be found there, flushed or not, so only
// recovery can say what became of these changes; without one they were not done. Nor is a prepared
// step, found or not: it takes a decision, which does not come.
void Engine::FailBatch(const Status& status) {
  const std::unique_ptr<CommitBatch> batch = std::move(batch_);
  const Status& cause = options_.freeze->frozen() ? options_.freeze->first_error() : status;
  for (const BatchEntry& entry : batch->entries) {
    const bool unknown = batch->reached_disk && !entry.job->group;
    entry.job->state->Finish(unknown ? Unknown(*entry.job, cause) : status);
  }
  for (const auto& job : batch->repeated) job->state->Finish(Unknown(*job, cause));
}

}  // namespace stepwell::db
