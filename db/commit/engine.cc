// SPDX-License-Identifier: Apache-2.0
#include "db/commit/engine.h"

#include <algorithm>
#include <utility>

#include "db/commit/abandoned.h"

namespace stepwell::db {

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      thread_(options_.disk, options_.freeze),
      marks_(
          &options_, &thread_, [this] { return log_.MakeRoom(); },
          [this] {
            reclaim_.RoomMayHaveCome();
            reclaim_.Schedule(/*again_left=*/true);
          }),
      log_(&options_, &marks_),
      reclaim_(this, &options_),
      commits_(&options_, &thread_, &log_, &marks_, &reclaim_),
      blocks_(&options_, &thread_, &log_, &reclaim_) {}

// ---- a session's beginning and end -----------------------------------------------------------

// The clean mark goes durably before the first write. One that is gone already may be gone from the
// page cache only, after a kill: a power cut would bring it back, and this epoch with it.
Status Engine::WriteFirstMarks(const LogState& state) {
  format::StoreSlot& slot = marks_.slot();
  slot.durable_commit = state.tip_commit;
  slot.durable_place = state.tip_place;
  slot.clean = false;
  return marks_.Write(/*sync=*/true);
}

Status Engine::Start(const LogState& state) {
  log_.Load(state);
  format::StoreSlot& slot = marks_.slot();
  const std::string tip = TipFrame(*options_.files, state.tip_place);
  // The slot may have the only copy of a damaged frame.
  if (!tip.empty() || slot.durable_place != state.tip_place) {
    slot.tip = format::MakeFrameCopy(tip, format::kSlotTipBytesMax);
  }
  commits_.LoadLosses(state.losses, options_.environment.clock->WallNanos());
  STEPWELL_RETURN_IF_ERROR(WriteFirstMarks(state));
  STEPWELL_RETURN_IF_ERROR(log_.MendHeaders(state));
  STEPWELL_RETURN_IF_ERROR(log_.Start(&commits_.losses()));
  // A killed writer's last frame has no copy yet.
  if (!state.report.clean && !tip.empty()) {
    log_.AddCopy({state.tip_place, format::MakeFrameCopy(tip, format::kCopyBytesMax)});
  }

  // The epoch frame, durable before anything else: older epochs' frames beyond the tip are void.
  format::EpochRecord epoch;
  epoch.epoch = log_.epoch();
  epoch.last_commit = state.tip_commit;
  epoch.last_place = state.tip_place;
  STEPWELL_ASSIGN_OR_RETURN(const format::FramePlace place, commits_.WriteEpoch(epoch));
  log_.NoteCatalog(*log_.current());
  slot.epoch = log_.epoch();
  marks_.NoteCommit(log_.tip_commit(), place, /*killed=*/false);
  slot.tip = log_.tip_copy();
  STEPWELL_RETURN_IF_ERROR(marks_.Write(/*sync=*/true));
  marks_.NoteAllDurable();
  log_.NoteSegments();
  STEPWELL_RETURN_IF_ERROR(
      SettleAbandoned(options_, log_.epoch(), state, /*keep_tails=*/!commits_.losses().empty()));
  started_ = true;
  reclaim_.Begin(slot.store_id);
  return OkStatus();
}

void Engine::BeginClose() {
  closing_ = true;
  reclaim_.Stop();
}

Status Engine::Finish() {
  marks_.FinishSync();
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  STEPWELL_RETURN_IF_ERROR(log_.SyncOpen(/*only=*/nullptr));
  // A full disk may refuse the footers; the next open then scans these segments.
  log_.SealIdle(/*all=*/true).IgnoreError("an unsealed segment is scanned");
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  marks_.slot().clean = true;
  return marks_.Write(/*sync=*/true);
}

// ---- turns -----------------------------------------------------------------------------------

void Engine::Step(bool wait) {
  const bool ran = thread_.RunPosted();
  thread_.PanicOnThrow([this] { Pump(); });
  if (panicked()) EndAll();
  thread_.PanicOnThrow([&] { options_.disk->Poll(wait && !ran && !panicked()); });
  thread_.RunPosted();
  thread_.PanicOnThrow([this] { Pump(); });
  if (panicked()) EndAll();
}

void Engine::Pump() {
  if (panicked()) return;
  if (options_.freeze->frozen() && !frozen_reported_) {
    frozen_reported_ = true;
    commits_.FailAll(options_.freeze->Check());
    options_.pool->Stop();
  }
  blocks_.Run(commits_.jobs());
  commits_.Run();
  if (reclaim_.has_waiters()) reclaim_.Continue();
  if (commits_.batch_in_flight() || !log_.started()) return;
  ForgetFailedWrites();
  // A failed save may have begun one. Reclaim knows the segments that were noted, and no other.
  if (log_.open_segments().size() > 1) log_.NoteSegments();
  if (Status status = log_.SealIdle(/*all=*/false); !status.ok()) {
    options_.freeze->Trip(status);
  }
  reclaim_.AfterFailedSaves();
}

// After a panic: completions do nothing but leave the disk, what is queued is not begun.
void Engine::EndAll() {
  options_.pool->Stop();
  while (options_.disk->in_flight() > 0) {
    thread_.PanicOnThrow([this] { options_.disk->Poll(/*wait=*/true); });
  }
  thread_.PanicOnThrow([this] {
    commits_.EndQueued(options_.freeze->Check());
    reclaim_.EndWaiters(options_.freeze->first_error());
  });
  options_.end_changes();
}

void Engine::Begin(std::shared_ptr<SaveJob> job) {
  if (frozen_reported_) job->Fail(options_.freeze->Check());
  if (job->kind == SaveJob::Kind::kSave) log_.LeaveLinkedSegment();
  commits_.Queue(std::move(job));
}

void Engine::CommitNext(std::shared_ptr<SaveJob> job) {
  if (frozen_reported_) job->Fail(options_.freeze->Check());
  commits_.QueueFirst(std::move(job));
}

void Engine::StagingDone(SaveJob* job, size_t expected, const Status& status) {
  job->staging_done = true;
  job->staged_expected = expected;
  if (!status.ok()) job->Fail(status);
}

void Engine::HeldPlanned(SaveJob* job, const Status& status) {
  job->held_planned = true;
  if (!status.ok()) job->Fail(status);
  if (job->held_blocks.empty()) job->ReleaseHolds();
}

// ---- segments --------------------------------------------------------------------------------

Result<bool> Engine::SealSegments(const std::set<uint64_t>& segments) {
  STEPWELL_RETURN_IF_ERROR(options_.freeze->Check());
  STEPWELL_RETURN_IF_ERROR(log_.LeaveSegments(segments));
  if (!commits_.batch_in_flight()) {  // else they are sealed when it is done
    // A segment of saves in progress would wait for their commits without this.
    STEPWELL_RETURN_IF_ERROR(log_.SyncOpen(&segments));
    STEPWELL_RETURN_IF_ERROR(log_.SealIdle(/*all=*/false));
  }
  return std::none_of(segments.begin(), segments.end(),
                      [this](uint64_t id) { return log_.open_segments().contains(id); });
}

Status Engine::MayErase() {
  if (closing_ || !started_ || log_.current() == nullptr) {
    return FailedPreconditionError("the store is closed");
  }
  STEPWELL_RETURN_IF_ERROR(marks_.CheckWritten());
  if (commits_.losses().empty()) return OkStatus();
  // A lost frame may have kept something alive.
  return FailedPreconditionError(StrCat(
      "nothing is erased while this is not accepted: ", DescribeLoss(commits_.losses().front()),
      ". See `stepwell repair`"));
}

std::set<uint64_t> Engine::InUse() const {
  std::set<uint64_t> in_use = reclaim_.evacuator().segments_in_use();
  commits_.AddInUse(&in_use);
  return in_use;
}

void Engine::ForgetFailedWrites() {
  if (!commits_.batch_in_flight() && log_.has_failed_writes()) log_.ForgetFailedWrites(InUse());
}

std::set<uint64_t> Engine::BusySegments() const {
  std::set<uint64_t> busy = InUse();
  for (const auto& [id, segment] : log_.open_segments()) busy.insert(id);
  return busy;
}

Status Engine::RollSegments(uint64_t guard) {
  STEPWELL_ASSIGN_OR_RETURN(const bool rolled, log_.Roll(guard));
  if (!rolled) return OkStatus();
  ForgetFailedWrites();
  log_.NoteSegments();
  return log_.SealIdle(/*all=*/false);
}

}  // namespace stepwell::db
