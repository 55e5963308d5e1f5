// SPDX-License-Identifier: Apache-2.0
// When reclaim runs, and over which segments (DESIGN.md, "Reclaim"). The passes themselves run on
// the reclaim worker: unlinking and punching are slow.
#include <algorithm>
#include <utility>

#include "db/commit/engine.h"
#include "db/commit/engine_internal.h"
#include "db/layout.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// Punching and moving pay only where nothing more is going to die soon: under "keep the latest N"
// the rest of a segment follows at once, and a segment that was punched is no good as a spare. So
// they wait until the log has gone on by this many segments since the first death.
constexpr uint64_t kSettleSegments = 2;
// When an earlier session saw that death, by the segment's own age.
constexpr uint64_t kSettleAge = 8;
// In the background less than this is not worth an operation; small segments have lower bounds.
constexpr uint64_t kPunchGainBytes = uint64_t{256} << 10;
constexpr uint64_t kMoveGainBytes = uint64_t{1} << 20;
// A segment has two frames, a footer and a trailer of its own: emptying it for less gives nothing.
constexpr uint64_t kMoveGainBytesMin = uint64_t{64} << 10;
constexpr uint64_t kRollGainBytes = uint64_t{1} << 20;
// Passes of one explicit call. Each moves on what the last one freed; two or three do.
constexpr int kRoundsMax = 8;
// What readers' pins kept is tried again with later commits, but not with each of them.
constexpr int64_t kRetryNanos = 1'000'000'000;

}  // namespace

// The lowest segment that recovery may need: of the second-newest durable catalog and of every
// chain frame after it.
uint64_t Engine::GuardSegment() {
  const CatalogNote* catalog = catalogs_.second_newest();
  if (catalog == nullptr) return 0;
  while (!chain_.empty() && chain_.front().first <= catalog->last_commit) chain_.pop_front();
  // Of the frames in one segment the newest does: there may be very many.
  std::deque<std::pair<uint64_t, uint64_t>> newest;
  uint64_t guard = catalog->place.segment;
  for (const auto& frame : chain_) {
    guard = std::min(guard, frame.second);
    if (!newest.empty() && newest.back().second == frame.second) newest.pop_back();
    newest.push_back(frame);
  }
  chain_ = std::move(newest);
  return guard;
}

// Segments that hold what is not committed yet: of saves, of the group in flight, of moves.
std::set<uint64_t> Engine::InUse() const {
  std::set<uint64_t> in_use = move_segments_;
  for (const auto& job : jobs_) {
    for (const auto& [id, extent] : job->extents) in_use.insert(id);
  }
  if (group_ != nullptr) {
    for (const GroupEntry& entry : group_->entries) {
      for (const auto& step : {entry.change.added, entry.change.prepared}) {
        if (step == nullptr) continue;
        for (const auto& extent : step->record.extents) in_use.insert(extent.segment);
      }
    }
  }
  return in_use;
}

// What failed saves and moves have written needs no flush, and keeps no segment open.
void Engine::ForgetFailedWrites() {
  if (group_ != nullptr || !std::exchange(has_failed_writes_, false)) return;
  const std::set<uint64_t> in_use = InUse();
  for (const auto& [id, segment] : log_->open_segments()) {
    if (in_use.contains(id) || (!segment->dirty && segment->writes_in_flight == 0)) continue;
    if (segment->current || segment->writes_in_flight > 0) {
      has_failed_writes_ = true;  // later
    } else {
      segment->dirty = false;
    }
  }
}

void Engine::NoteDead(const std::vector<format::SegmentExtent>& extents) {
  for (const auto& extent : extents) {
    suspects_.insert(extent.segment);
    if (log_->current() != nullptr) {
      first_death_.try_emplace(extent.segment, log_->current()->id);
    }
  }
}

bool Engine::IsSettled(uint64_t segment) {
  const uint64_t newest = log_->current()->id;
  const uint64_t noticed = first_death_.try_emplace(segment, newest).first->second;
  return newest >= noticed + kSettleSegments ||
         (segment < log_->first_id() && newest >= segment + kSettleAge);
}

void Engine::PinReleased() {
  if (!left_.empty()) ScheduleReclaim(/*again_left=*/true);
}

// Cheap when nothing died: looks at suspects only. With `again_left`, at what earlier passes left,
// too.
void Engine::ScheduleReclaim(bool again_left) {
  if (closing_ || !started_ || options_.freeze->frozen() || log_->current() == nullptr) return;
  if (!losses_.empty()) return;  // what a lost frame kept alive is not known
  if (pass_running_ || !moves_.empty()) {
    pass_again_ = true;  // what is under way may have looked already
    return;
  }
  const int64_t now = options_.environment.clock->MonotonicNanos();
  if (std::exchange(guard_moved_, false) || again_left || now - last_pass_ns_ >= kRetryNanos) {
    suspects_.merge(left_);
    left_.clear();
  }
  if (!suspects_.empty()) StartPass(/*thorough=*/false);
}

void Engine::StartPass(bool thorough) {
  const uint64_t guard = GuardSegment();
  const std::set<uint64_t> in_use = InUse();
  ReclaimRequest request;
  const auto add = [&](uint64_t id) {
    if (log_->open_segments().contains(id) || in_use.contains(id)) return;
    request.segments.insert(id);
    if (thorough || IsSettled(id)) request.settled.insert(id);
  };
  if (thorough) {
    for (auto it = segments_.begin(); it != segments_.lower_bound(guard); ++it) add(it->first);
  } else {
    for (auto it = suspects_.begin(); it != suspects_.lower_bound(guard); ++it) {
      if (segments_.contains(*it)) add(*it);
    }
  }
  request.unwanted_spares = log_->TakeExcessSpares();
  if (request.segments.empty() && request.unwanted_spares.empty() && !thorough) return;
  for (const uint64_t id : request.segments) {
    suspects_.erase(id);
    left_.erase(id);
  }
  request.catalogs = catalogs_.Needed();
  request.published = durable_mark_;
  request.old_tip = old_tip_;
  request.first_id = log_->first_id();
  request.spare_bytes_max = log_->spare_bytes_wanted();
  const uint64_t small = options_.segment_bytes_max / 16;
  request.punch_gain_min = thorough ? 1 : std::min(kPunchGainBytes, small);
  request.evacuate_gain_min =
      thorough ? std::min(kMoveGainBytesMin, small) : std::min(kMoveGainBytes, 2 * small);
  last_pass_ns_ = options_.environment.clock->MonotonicNanos();
  pass_running_ = true;
  OnReclaimWorker([this, request = std::move(request)] {
    const TraceSpan span(options_.instruments->trace.get(), Trace::Lane::kReclaim, "reclaim");
    auto result = std::make_shared<ReclaimResult>();
    result->status = io::Guarded("look for space to give back", [&] {
      *result = reclaimer_->Run(request);
      return result->status;
    });
    if (!result->gone.empty() && !options_.freeze->frozen()) {
      // A delete may have used it.
      MakeBallast(options_.environment.file_system, options_.store_path);
    }
    Post([this, result] { PassDone(std::move(*result)); });
  });
}

// On a full disk: whether a pass is under way that may change that. One is begun, without waiting
// for segments to settle, where none was since there was room.
bool Engine::WaitForSpace() {
  // What died just now may go once the slot that says so is on the device.
  if (slot_sync_ != nullptr && (slot_sync_->killed || killed_unmarked_)) return true;
  if (!pass_running_ && moves_.empty() && !closing_ && started_ && losses_.empty() &&
      !std::exchange(space_asked_, true)) {
    StartPass(/*thorough=*/true);
  }
  return pass_running_ || !moves_.empty();  // moves soon end where there is no room
}

void Engine::OnReclaimWorker(std::function<void()> task) {
  options_.environment.reclaim_worker->Run(std::move(task));
}

void Engine::PassDone(ReclaimResult result) {
  pass_running_ = false;
  if (!result.status.ok()) {
    Log(options_.log, LogLevel::kWarning,
        StrCat(options_.store_path, ": space was not given back: ", result.status.message()));
    for (const auto& waiter : std::exchange(reclaim_waiters_, {})) waiter(result.status);
  }
  for (const uint64_t id : result.gone) {
    catalogs_.NoteSegment(id);
    segments_.erase(id);
    first_death_.erase(id);
    unmovable_.erase(id);
    moved_into_.erase(id);
  }
  for (const uint64_t id : result.foreign) {
    catalogs_.NoteSegment(id);
    segments_.erase(id);
    Log(options_.log, LogLevel::kWarning,
        StrCat(options_.files->PathOf(id), " is not of this store; it is left alone"));
  }
  options_.instruments->segments_recycled += result.spares.size();
  for (auto& spare : result.spares) log_->AddSpare(std::move(spare));
  left_.merge(result.later);
  options_.instruments->bytes_punched += result.bytes_punched;
  options_.instruments->segments_removed += result.segments_removed;
  reclaim_counters_.bytes_pinned = result.bytes_pinned;
  reclaim_counters_.bytes_linked = result.bytes_linked;
  reclaim_progress_ = reclaim_progress_ || !result.gone.empty() || result.bytes_punched > 0;
  StartMoves(&result);
  ReclaimStep();
}

// What comes next when a pass or the moves after it are done.
void Engine::ReclaimStep() {
  if (pass_running_ || !moves_.empty()) return;
  for (const auto& done : std::exchange(idle_waiters_, {})) done();
  if (!reclaim_waiters_.empty()) {
    if (closing_ || !started_ || log_->current() == nullptr) {
      FinishReclaimAll(FailedPreconditionError(options_.store_path + ": the store is closed"));
    } else if (options_.freeze->frozen()) {
      FinishReclaimAll(options_.freeze->Check());
    } else if (!losses_.empty()) {
      FinishReclaimAll(FailedPreconditionError(
          StrCat(options_.store_path, ": nothing is erased while this is not accepted: ",
                 DescribeLoss(losses_.front()), ". See `stepwell repair`")));
    } else if (group_ == nullptr && slot_sync_ == nullptr) {  // else again when they are done
      if (reclaim_rounds_ > 0 && (!reclaim_progress_ || reclaim_rounds_ >= kRoundsMax)) {
        FinishReclaimAll(OkStatus());
        return;
      }
      reclaim_progress_ = false;
      ++reclaim_rounds_;
      if (Status status = RollForReclaim(); !status.ok()) {
        FinishReclaimAll(status);
        return;
      }
      StartPass(/*thorough=*/true);
    }
    return;
  }
  if (std::exchange(pass_again_, false)) ScheduleReclaim(/*again_left=*/true);
}

void Engine::ReclaimAll(std::function<void(const Status&)> done) {
  if (reclaim_waiters_.empty()) {
    reclaim_rounds_ = 0;
    unmovable_.clear();
  }
  reclaim_waiters_.push_back(std::move(done));
  ReclaimStep();
}

void Engine::FinishReclaimAll(const Status& status) {
  for (const auto& done : std::exchange(reclaim_waiters_, {})) done(status);
}

// Dead bytes in the newest segments can go only behind two newer catalogs: where that is
// worth two nearly empty segments, they are begun now. No group is in flight.
Status Engine::RollForReclaim() {
  const uint64_t guard = GuardSegment();
  // Frames, too, are more than payloads: nothing is gained where nothing died.
  if (suspects_.lower_bound(guard) == suspects_.end()) return OkStatus();
  uint64_t used = 0;
  for (const auto& [id, segment] : segments_) {
    if (id < guard) continue;
    const auto open = log_->open_segments().find(id);
    if (open != log_->open_segments().end()) {
      const uint64_t own = open->second->catalog.end_bytes;
      used += open->second->end_bytes - std::min(open->second->end_bytes, own);
    } else if (const auto info = options_.environment.file_system->Stat(options_.files->PathOf(id));
               info.ok()) {
      used += info->allocated_bytes;
    }
  }
  const uint64_t live = options_.live->StoredBytesFrom(guard);
  if (used < live + std::min(kRollGainBytes, options_.segment_bytes_max / 4)) return OkStatus();
  for (int i = 0; i < 2; ++i) {
    Status status = log_->StartNext();
    if (status.code() == StatusCode::kResourceExhausted) return OkStatus();  // then without
    STEPWELL_RETURN_IF_ERROR(status);
    Segment* segment = log_->current();
    STEPWELL_RETURN_IF_ERROR(segment->file->Sync());
    segment->dirty = false;
    NoteCatalog(*segment);
    if (status = WriteSlot(/*sync=*/false); !status.ok()) options_.freeze->Trip(status);
  }
  ForgetFailedWrites();
  NoteSegments();
  return log_->SealIdle(/*all=*/false);
}

void Engine::BeginClose() {
  closing_ = true;
  StopReclaim();
}

void Engine::StopReclaim() {
  {
    const std::lock_guard lock(stop_mutex_);
    stop_reclaim_ = true;
  }
  stopped_.notify_all();
}

void Engine::WhenReclaimIdle(std::function<void()> done) {
  idle_waiters_.push_back(std::move(done));
  ReclaimStep();
}

std::map<uint64_t, ByteRange> Engine::CatalogRanges() const {
  const std::lock_guard lock(ends_mutex_);
  return catalog_ranges_;
}

std::map<uint64_t, uint64_t> Engine::OpenEnds() const {
  const std::lock_guard lock(ends_mutex_);
  return open_ends_;
}

}  // namespace stepwell::db
