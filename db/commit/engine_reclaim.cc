// SPDX-License-Identifier: Apache-2.0
// What reclaim asks of the engine: what may be erased, and what is still in use.
#include <algorithm>
#include <utility>

#include "db/commit/engine.h"
#include "db/commit/engine_internal.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

constexpr uint64_t kRollGainBytes = uint64_t{1} << 20;

}  // namespace

Status Engine::MayErase() const {
  if (closing_ || !started_ || log_->current() == nullptr) {
    return FailedPreconditionError(options_.store_path + ": the store is closed");
  }
  if (options_.freeze->frozen()) return options_.freeze->Check();
  if (losses_.empty()) return OkStatus();
  // What a lost frame kept alive is not known.
  return FailedPreconditionError(StrCat(options_.store_path,
                                        ": nothing is erased while this is not accepted: ",
                                        DescribeLoss(losses_.front()), ". See `stepwell repair`"));
}

bool Engine::DeathsAwaitSlot() const {
  return slot_sync_ != nullptr && (slot_sync_->killed || killed_unmarked_);
}

uint64_t Engine::newest_segment() const {
  return log_ == nullptr || log_->current() == nullptr ? 0 : log_->current()->id;
}

void Engine::SegmentGone(uint64_t segment) {
  catalogs_.NoteSegment(segment);
  segments_.erase(segment);
}

// Of the second-newest durable catalog and of every chain frame after it.
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

std::set<uint64_t> Engine::InUse() const {
  std::set<uint64_t> in_use = reclaim_.evacuator().segments_in_use();
  for (const auto& job : jobs_) {
    for (const auto& [id, extent] : job->extents) in_use.insert(id);
  }
  if (batch_ != nullptr) {
    for (const BatchEntry& entry : batch_->entries) {
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
  if (batch_ != nullptr || !std::exchange(has_failed_writes_, false)) return;
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

std::set<uint64_t> Engine::BusySegments() const {
  std::set<uint64_t> busy = InUse();
  for (const auto& [id, segment] : log_->open_segments()) busy.insert(id);
  return busy;
}

ReclaimRequest Engine::NewReclaimRequest() {
  ReclaimRequest request;
  request.catalogs = catalogs_.Needed();
  request.published = durable_mark_;
  request.old_tip = old_tip_;
  request.first_id = log_->first_id();
  request.spare_bytes_max = log_->spare_bytes_wanted();
  request.unwanted_spares = log_->TakeExcessSpares();
  return request;
}

Result<LogWriter::Placement> Engine::PlaceBlock(uint64_t bytes) {
  return PlaceWithBallast(bytes, /*step_bytes=*/0, /*may_drop_ballast=*/false);
}

void Engine::CommitNext(std::shared_ptr<SaveJob> job) {
  if (frozen_reported_) Fail(job.get(), options_.freeze->Check());
  jobs_.push_front(std::move(job));
}

Status Engine::RollSegments(uint64_t guard) {
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
  reclaim_.Stop();
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
