// SPDX-License-Identifier: Apache-2.0
// Reports the space of a writing store, and gives space back on request.
#include <algorithm>
#include <thread>

#include "db/layout.h"
#include "db/log/footprint.h"
#include "db/log/lock.h"
#include "db/store/writer_store.h"

namespace stepwell::db {
namespace {

// Bounds the wait for writes in flight to segments that exports may link.
constexpr std::chrono::milliseconds kSealWait{10'000};
constexpr std::chrono::milliseconds kSealInterval{2};

// Allocated by segments (and spares).
uint64_t SegmentBytes(io::FileSystem* file_system, const std::string& store_path) {
  uint64_t bytes = 0;
  const std::string segments = SegmentsPath(store_path);
  const auto names = file_system->List(segments);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    const auto info = file_system->Stat(segments + "/" + name);
    if (info.ok()) bytes += info->allocated_bytes;
  }
  return bytes;
}

}  // namespace

StoreStats WriterStore::Stats() {
  StoreStats stats;
  SpaceQuery query;
  query.live = core_->live.Needing();
  query.file_system = environment_.file_system;
  query.store_path = path_;
  query.footprints = core_->footprints.get();
  engine_->FillQuery(&query);
  AccountSpace(query, &stats);
  const auto steps = core_->live.All();
  stats.steps = steps.size();
  for (const auto& live : steps) stats.pinned_steps += live->record.pinned ? 1 : 0;
  stats.space.pinned_by_readers_bytes = instruments_->bytes_pinned;
  if (stats.space.dead_bytes > 0) {
    stats.old_pins = DescribeOldPins(environment_.file_system, path_, core_->live.tip(),
                                     environment_.clock->WallNanos());
  }
  stats.staging_bytes = pool_->block_count() * pool_->block_bytes();
  stats.staging_bytes_max = pool_->block_count_max() * pool_->block_bytes();
  stats.bytes_written = instruments_->bytes_written;
  stats.syncs = instruments_->syncs;
  instruments_->Fill(&stats);
  stats.disk = disk_ == nullptr ? "closed" : disk_->Describe();
  stats.index_state = core_->index->Describe();
  stats.views = views_.Stats();
  stats.saves_in_flight = changes_.SavesInFlight();
  return stats;
}

// After BeginClose: passes end at the next segment, moves at the next block.
void WriterStore::WaitForReclaim() {
  engine_->Post([this] { engine_->reclaim().WhenIdle([this] { changes_.MarkReclaimIdle(); }); });
  changes_.WaitForReclaim([this] { return engine_->panicked(); });
  reclaim_tasks_->Wait();
}

Result<ReclaimReport> WriterStore::Reclaim() {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  const ChangesInFlight::Call call(&changes_);
  if (!call.begun()) return changes_.Closed();
  ReclaimReport report;
  report.bytes_before = SegmentBytes(environment_.file_system, path_);
  report.segments_removed = instruments_->segments_removed;
  report.segments_recycled = instruments_->segments_recycled;
  report.bytes_punched = instruments_->bytes_punched;
  report.bytes_moved = instruments_->bytes_moved;
  // Read and changed with the mutex of changes_ held; of a local, no annotation can say so.
  std::optional<Status> status;
  const auto tell = [&](const Status& outcome) { changes_.Answer([&] { status = outcome; }); };
  engine_->Post([&] {
    try {
      engine_->reclaim().ReclaimAll(tell);
    } catch (const std::bad_alloc&) {
      tell(io::NoMemoryTo("give space back"));
      throw;
    }
  });
  changes_.WaitForAnswer([&] { return status.has_value(); });
  report.bytes_after = SegmentBytes(environment_.file_system, path_);
  report.segments_removed = instruments_->segments_removed - report.segments_removed;
  report.segments_recycled = instruments_->segments_recycled - report.segments_recycled;
  report.bytes_punched = instruments_->bytes_punched - report.bytes_punched;
  report.bytes_moved = instruments_->bytes_moved - report.bytes_moved;
  report.bytes_pinned_by_readers = instruments_->bytes_pinned;
  report.bytes_linked = instruments_->bytes_linked;
  STEPWELL_RETURN_IF_ERROR(status->WithContext(path_));
  return report;
}

Result<bool> WriterStore::SealSegments(const std::set<uint64_t>& segments) {
  STEPWELL_RETURN_IF_ERROR(CheckUsable());
  const ChangesInFlight::Call call(&changes_);
  if (!call.begun()) return changes_.Closed();
  Result<bool> sealed = false;
  for (auto left = kSealWait; left.count() > 0; left -= kSealInterval) {
    STEPWELL_RETURN_IF_ERROR(OnEngine([&] {
      sealed = engine_->SealSegments(segments);
      return OkStatus();
    }));
    if (!sealed.ok() || *sealed || environment_.inline_mode) break;
    std::this_thread::sleep_for(kSealInterval);  // for writes that are in flight
  }
  return sealed;
}

}  // namespace stepwell::db
