// SPDX-License-Identifier: Apache-2.0
#include "db/commit/reclaim_scheduler.h"

#include <algorithm>
#include <utility>

#include "db/commit/ballast.h"
#include "db/commit/engine.h"
#include "io/guard.h"
#include "io/invariant.h"

namespace stepwell::db {
namespace {

// Punching and moving pay only where nothing more is going to die soon: under "keep the latest N"
// the rest of a segment follows at once, and a segment that was punched is useless as a spare. So
// they wait until the log has gone on by this many segments since the first death that no pass has
// looked at yet.
constexpr uint64_t kSettleSegments = 2;
// When an earlier session saw that death: until it has gone on by this many since the segment.
constexpr uint64_t kSettleAge = 8;
// In the background less than this is not worth an operation; small segments have lower bounds.
constexpr uint64_t kPunchGainBytes = uint64_t{256} << 10;
constexpr uint64_t kMoveGainBytes = uint64_t{1} << 20;
// A segment has two frames, a footer and a trailer of its own: emptying it for less gives nothing.
constexpr uint64_t kMoveGainBytesMin = uint64_t{64} << 10;
// Passes of one explicit call. Each moves on what the last one freed; two or three do.
constexpr int kRoundsMax = 8;
// Later commits try again to reclaim what readers' pins kept, but not each of them.
constexpr int64_t kRetryNanos = 1'000'000'000;

}  // namespace

ReclaimScheduler::ReclaimScheduler(Engine* engine, const EngineOptions* options)
    : engine_(engine), options_(options), evacuator_(engine, this, options) {}

void ReclaimScheduler::Begin(const format::Id128& store_id) {
  reclaimer_ = std::make_unique<Reclaimer>(options_, store_id, &stop_);
  TakeSuspects();
  for (const uint64_t id : suspects_) {
    first_death_.try_emplace(id, id + kSettleAge - kSettleSegments);
  }
  Schedule(/*again_left=*/true);
}

void ReclaimScheduler::AddSuspects(const std::vector<format::SegmentExtent>& extents) {
  const uint64_t newest = engine_->log().newest_segment();
  for (const auto& extent : extents) {
    // Nothing became needless where another step refers to the same.
    if (extent.owns_nothing() && options_->live->HasReferrer(extent.segment, extent.places))
      continue;
    suspects_.insert(extent.segment);
    if (newest != 0) first_death_.try_emplace(extent.segment, newest);
  }
}

void ReclaimScheduler::SaveFailed(const std::vector<format::SegmentExtent>& extents) {
  AddSuspects(extents);
  save_failed_ = true;
}

void ReclaimScheduler::AfterFailedSaves() {
  if (!save_failed_ || engine_->CommitInFlight()) return;
  save_failed_ = false;
  if (options_->freeze->frozen() || !engine_->MayErase().ok()) return;
  RollPastSuspects().IgnoreError("what must not fail freezes the store; reclaim tries again");
  Schedule(/*again_left=*/false);
}

// Dead bytes in the newest segments can go only behind two newer catalogs. Frames, too, are more
// than payloads: nothing is gained where nothing died.
Status ReclaimScheduler::RollPastSuspects() {
  TakeSuspects();
  const uint64_t guard = engine_->log().GuardSegment();
  if (suspects_.lower_bound(guard) == suspects_.end()) return OkStatus();
  return engine_->RollSegments(guard);
}

bool ReclaimScheduler::IsSettled(uint64_t segment) {
  const uint64_t newest = engine_->log().newest_segment();
  return newest >= first_death_.try_emplace(segment, newest).first->second + kSettleSegments;
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
  const int64_t now = options_->environment.clock->MonotonicNanos();
  // A pass would leave them, too, and it asks for all that lives there: thousands of steps, where
  // they are small, at each commit that retires one.
  const bool leaves_unsettled = now - last_pass_ns_ < kRetryNanos;
  std::set<uint64_t> unsettled;
  const auto add = [&](uint64_t id) {
    if (busy.contains(id)) return;
    const bool settled = thorough || IsSettled(id);
    if (leaves_unsettled && !settled && options_->live->HasLive(id)) {
      unsettled.insert(id);
      return;
    }
    request.segments.insert(id);
    if (settled) request.settled.insert(id);
  };
  const auto& all = engine_->log().segments();
  if (thorough) {
    for (auto it = all.begin(); it != all.lower_bound(guard); ++it) add(it->first);
  } else {
    for (auto it = suspects_.begin(); it != suspects_.lower_bound(guard); ++it) {
      if (all.contains(*it)) add(*it);
    }
  }
  for (const uint64_t id : unsettled) suspects_.erase(id);
  left_.merge(unsettled);
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
  last_pass_ns_ = now;
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
  for (const uint64_t id : result.looked_at) {
    if (!result.later.contains(id)) first_death_.erase(id);
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
  if (Status status = RollPastSuspects(); !status.ok()) return Finish(status);
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

}  // namespace stepwell::db
