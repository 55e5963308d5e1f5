// SPDX-License-Identifier: Apache-2.0
#include "db/commit/committer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/invariant.h"

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
    case SaveJob::Kind::kMeta:
      if (job.meta.taint)
        return StepsText(job.steps) + (job.meta.taint->empty() ? " untainted" : " tainted");
      if (job.meta.verified) return StepsText(job.steps) + " verified";
      return StepsText(job.steps) + (*job.meta.pinned ? " pinned" : " unpinned");
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

void BatchFrame::OnComplete() { committer->FrameWritten(this); }
void BatchSync::OnComplete() { committer->SegmentSynced(this); }

Committer::Committer(const EngineOptions* options, EngineThread* thread, LogEnd* log,
                     SlotMarks* marks, ReclaimScheduler* reclaim)
    : options_(options),
      thread_(thread),
      log_(log),
      marks_(marks),
      reclaim_(reclaim),
      builder_(options, log, &losses_) {}

void Committer::Queue(std::shared_ptr<SaveJob> job) {
  size_t at = jobs_.size();
  if (job->kind == SaveJob::Kind::kDecide) {
    at = 0;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      const SaveJob& other = *jobs_[i];
      const bool is_its_step = other.group && other.group->save_id == job->decision.save_id;
      if (is_its_step || other.kind == SaveJob::Kind::kDecide) at = i + 1;
    }
  }
  jobs_.insert(jobs_.begin() + static_cast<ptrdiff_t>(at), std::move(job));
}

void Committer::FailAll(const Status& status) {
  for (auto& job : jobs_) job->Fail(status);
  if (batch_ != nullptr && batch_->error.ok()) batch_->error = status;
}

void Committer::EndQueued(const Status& status) {
  while (!jobs_.empty()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    job->state->Finish(status);  // no frame of it was made
  }
}

void Committer::Run() {
  FailReadyHeads();
  StartBatch();
}

void Committer::AddInUse(std::set<uint64_t>* segments) const {
  for (const auto& job : jobs_) {
    for (const auto& [id, extent] : job->extents) segments->insert(id);
  }
  if (batch_ == nullptr) return;
  for (const BatchEntry& entry : batch_->entries) {
    for (const auto& step : {entry.change.added, entry.change.prepared}) {
      if (step == nullptr) continue;
      for (const auto& extent : step->record.extents) segments->insert(extent.segment);
    }
  }
}

// Jobs at the head that failed are over; nothing of them is in the log's chain.
void Committer::FailReadyHeads() {
  while (!jobs_.empty() && jobs_.front()->Ready() && !jobs_.front()->error.ok()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    Drop(job.get(), job->error);
  }
}

void Committer::Drop(SaveJob* job, const Status& status) {
  std::vector<format::SegmentExtent> lost;
  for (const auto& [id, extent] : job->extents) lost.push_back(extent);
  if (!lost.empty()) {
    reclaim_->SaveFailed(lost);
    log_->NoteFailedWrites();
  }
  job->ReleaseHolds();
  job->state->Finish(status);
}

void Committer::StartBatch() {
  if (batch_ != nullptr || jobs_.empty() || !jobs_.front()->Ready()) return;
  const int64_t started_ns = options_->instruments->Now();
  const TraceSpan span(options_->instruments->trace.get(), Trace::Lane::kEngine, "frames");
  log_->LeaveLinkedSegment();
  batch_ = std::make_unique<CommitBatch>();
  while (!jobs_.empty() && jobs_.front()->Ready()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    Status status = job->error;
    if (status.ok()) status = builder_.Add(job, this, batch_.get());
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
    frame->submitted_ns = options_->instruments->Now();
    options_->disk->Submit(frame.get());
  }
}

void Committer::FrameWritten(BatchFrame* write) {
  if (thread_->panicked()) return;
  write->EndWrite();
  options_->instruments->bytes_written += write->vector.iov_len;
  options_->instruments->DiskSpan("write frame", write->submitted_ns, Trace::kNoStep,
                                  write->vector.iov_len);
  // kAborted: the log was frozen before the write began. A full disk may have taken a part, which
  // counts also when the second try finds the log frozen.
  if (write->status.code() != StatusCode::kAborted || write->transferred_bytes > 0) {
    batch_->reached_disk = true;
  }
  if (write->status.code() == StatusCode::kResourceExhausted && log_->MakeRoom()) {
    // The chain goes through this frame: it is written once more, where that was.
    ++write->segment->writes_in_flight;
    options_->disk->Submit(write);
    return;
  }
  if (!write->status.ok()) {
    options_->freeze->Trip(write->status);
    if (batch_->error.ok()) batch_->error = write->status;
  }
  if (--batch_->writes_left == 0) SyncBatch();
}

void Committer::SyncBatch() {
  if (!batch_->error.ok()) return FailBatch(batch_->error);
  batch_->syncs_left = batch_->touched.size();
  batch_->times.frames_ns = options_->instruments->Now();
  for (Segment* segment : batch_->touched) {
    auto sync = std::make_unique<BatchSync>();
    sync->committer = this;
    sync->kind = io::Op::Kind::kSync;
    sync->file = segment->file.get();
    sync->segment = segment;
    segment->dirty = false;  // writes that complete from here on set it again
    ++segment->writes_in_flight;
    ++options_->instruments->syncs;
    sync->submitted_ns = batch_->times.frames_ns;
    batch_->sync_ops.push_back(std::move(sync));
    options_->disk->Submit(batch_->sync_ops.back().get());
  }
}

void Committer::SegmentSynced(BatchSync* sync) {
  if (thread_->panicked()) return;
  --sync->segment->writes_in_flight;
  options_->instruments->DiskSpan("fdatasync", sync->submitted_ns, Trace::kNoStep, 0);
  if (!sync->status.ok()) {
    options_->freeze->Trip(sync->status);
    if (batch_->error.ok()) batch_->error = sync->status;
  } else {
    log_->NoteCatalog(*sync->segment);
  }
  if (--batch_->syncs_left > 0) return;
  // Every segment of the batch is flushed: without an error, its changes are durable from here on.
  if (batch_->error.ok()) {
    batch_->error = CheckNotRemoved();
    if (!batch_->error.ok()) options_->freeze->Trip(batch_->error);
  }
  if (batch_->error.ok()) {
    Publish();
  } else {
    FailBatch(batch_->error);
  }
}

// Publishes the batch, updates the slot, completes the handles.
void Committer::Publish() {
  const TraceSpan span(options_->instruments->trace.get(), Trace::Lane::kEngine, "publish");
  const std::unique_ptr<CommitBatch> batch = std::move(batch_);
  for (const BatchEntry& entry : batch->entries) Apply(entry);
  marks_->slot().tip = log_->tip_copy();
  marks_->MarkDurable();
  log_->NoteSegments();
  reclaim_->AfterCommit();
  for (BatchEntry& entry : batch->entries) {
    if (entry.job->committed != nullptr) options_->bases->Add(std::move(entry.job->committed));
    options_->index->Note(entry.change);
    NoteSaved(*batch, entry);
    entry.job->state->Finish(OkStatus());
  }
  for (const auto& job : batch->repeated) job->state->Finish(OkStatus());
}

void Committer::Apply(const BatchEntry& entry) {
  const auto& decided = entry.change.decided;
  const bool aborted = decided != nullptr && entry.change.added == nullptr;
  const bool is_move = entry.job->is_move;
  options_->live->Commit(entry.change);
  if (aborted) reclaim_->AddSuspects(decided->record.extents);
  for (const auto& dead : entry.change.killed) {
    reclaim_->AddSuspects(dead->record.extents);
    if (!is_move) reclaim_->evacuator().ForgetMovedInto(dead->record.extents);
  }
  if (is_move) {
    reclaim_->evacuator().NoteMoved(entry.place.segment, entry.job->rewritten->record.extents,
                                    entry.change.added->record.extents);
  }
  log_->NoteChange(entry.change);
  if (entry.change.losses) losses_ = *entry.change.losses;
  marks_->NoteCommit(entry.change.commit, entry.place, aborted || !entry.change.killed.empty());
}

void Committer::NoteSaved(const CommitBatch& batch, const BatchEntry& entry) {
  if (entry.job->kind != SaveJob::Kind::kSave) return;
  const auto& saved = entry.job->group ? entry.change.prepared : entry.change.added;
  std::vector<uint64_t> retired;
  for (const auto& killed : entry.change.killed) {
    if (killed->record.step != entry.job->step) retired.push_back(killed->record.step);
  }
  const auto row = static_cast<size_t>(&entry - batch.entries.data());
  options_->instruments->Committed(entry.job->times, batch.times, row, entry.job->step,
                                   saved->record.logical_bytes, retired);
  const SaveTimes& times = entry.job->times;
  SaveStats stats;
  stats.logical_bytes = saved->record.logical_bytes;
  stats.stored_bytes = saved->record.stored_bytes;
  stats.referenced_bytes = saved->record.referenced_bytes;
  stats.chunks = saved->record.chunk_count;
  stats.snapshot_time = std::chrono::nanoseconds(times.snapshot_end_ns - times.start_ns);
  stats.durable_time = std::chrono::nanoseconds(options_->instruments->Now() - times.start_ns);
  const io::MutexLock lock(&entry.job->state->mutex);
  entry.job->state->stats = stats;
}

// The store is frozen. Frames that reached the disk may be found there, flushed or not, so only
// recovery can say what became of these changes; without one they were not done. Nor is a prepared
// step, found or not: it takes a decision, which does not come.
void Committer::FailBatch(const Status& status) {
  const std::unique_ptr<CommitBatch> batch = std::move(batch_);
  const Status& cause = options_->freeze->frozen() ? options_->freeze->first_error() : status;
  for (const BatchEntry& entry : batch->entries) {
    const bool unknown = batch->reached_disk && !entry.job->group;
    entry.job->state->Finish(unknown ? Unknown(*entry.job, cause) : status);
  }
  for (const auto& job : batch->repeated) job->state->Finish(Unknown(*job, cause));
}

// Files that were removed take writes and syncs without an error, until they are closed: that would
// acknowledge steps that can never be opened.
Status Committer::CheckNotRemoved() {
  std::vector<io::File*> files = {options_->slot_file->file()};
  for (const Segment* segment : batch_->touched) files.push_back(segment->file.get());
  for (io::File* file : files) {
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
    if (info.link_count > 0) continue;
    return NotFoundError(StrCat(file->path(), " was removed while the store is open for writing: ",
                                "what is saved now would be lost"));
  }
  return OkStatus();
}

void Committer::LoadLosses(const std::vector<format::LossRecord>& losses, int64_t found_ns) {
  losses_ = losses;
  for (format::LossRecord& loss : losses_) {
    if (loss.found_ns == 0) loss.found_ns = found_ns;
  }
}

Result<FramePlace> Committer::WriteEpoch(const format::EpochRecord& epoch) {
  CommitBatch batch;
  const auto append = [&](FrameKind kind, const std::string& payload) {
    return builder_.AddFrame(kind, payload, this, &batch);
  };
  STEPWELL_ASSIGN_OR_RETURN(auto place, append(FrameKind::kEpoch, format::EncodeEpoch(epoch)));
  // Losses are a part of what this epoch begins with, and said from here on.
  for (const format::LossRecord& loss : losses_) {
    STEPWELL_ASSIGN_OR_RETURN(place, append(FrameKind::kLoss, format::EncodeLoss(loss)));
  }
  for (const auto& frame : batch.frames) {
    STEPWELL_RETURN_IF_ERROR(frame->segment->file->WriteAt(
        frame->offset_bytes, ConstBytes(frame->buffer.data(), frame->buffer.size())));
    --frame->segment->writes_in_flight;
  }
  for (Segment* touched : batch.touched) {
    STEPWELL_RETURN_IF_ERROR(touched->file->Sync());
    touched->dirty = false;
  }
  return place;
}

}  // namespace stepwell::db
