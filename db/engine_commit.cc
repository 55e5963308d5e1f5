// SPDX-License-Identifier: Apache-2.0
// Commit groups: frames, one flush a touched segment, publication (DESIGN.md, "Commit").
#include <algorithm>
#include <cstring>
#include <utility>

#include "db/engine.h"
#include "db/engine_internal.h"
#include "db/layout.h"

namespace stepwell::db {
namespace {

using format::FrameKind;
using format::FramePlace;
using format::LeafRecord;

// Records of large steps go to frames of about this size ahead of the commit frame (rule 10).
constexpr size_t kRecordsFrameBytes = size_t{1} << 20;
constexpr uint64_t kUnappliedMax = 256;

size_t EstimatedRecordBytes(const LeafRecord& record) {
  return 192 + record.key.size() + record.inline_value.size() + record.sharding_json.size() +
         record.type_name.size() + 16 * record.shape.size();
}
constexpr size_t kChunkRecordBytes = 64;

// Cuts leaf records into runs of about kRecordsFrameBytes; a leaf with very many chunks goes on in
// the next run with records that have only key and chunks.
std::vector<std::vector<LeafRecord>> SplitRecords(const std::vector<LeafRecord>& records) {
  std::vector<std::vector<LeafRecord>> runs(1);
  size_t used = 0;
  for (const LeafRecord& record : records) {
    uint64_t done = 0;
    do {
      if (used >= kRecordsFrameBytes) {
        runs.emplace_back();
        used = 0;
      }
      LeafRecord part;
      if (done == 0) {
        part = record;
        part.chunks.clear();
      } else {
        part.key = record.key;
        part.kind = record.kind;
        part.dtype = record.dtype;
      }
      used += EstimatedRecordBytes(part);
      const uint64_t room =
          used < kRecordsFrameBytes ? (kRecordsFrameBytes - used) / kChunkRecordBytes + 1 : 1;
      const uint64_t count = std::min<uint64_t>(room, record.chunks.size() - done);
      part.first_chunk = done;
      part.chunk_count = record.chunk_count;
      part.chunks.assign(record.chunks.begin() + static_cast<int64_t>(done),
                         record.chunks.begin() + static_cast<int64_t>(done + count));
      used += count * kChunkRecordBytes;
      done += count;
      runs.back().push_back(std::move(part));
    } while (done < record.chunks.size());
  }
  return runs;
}

}  // namespace

// Jobs at the head that failed are over; nothing of them is in the log's chain.
void Engine::FailReadyHeads() {
  while (!jobs_.empty() && jobs_.front()->Ready() && !jobs_.front()->error.ok()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    ReleaseHolds(job.get());
    job->state->Finish(job->error);
  }
}

void Engine::StartGroup() {
  if (group_ != nullptr || jobs_.empty() || !jobs_.front()->Ready()) return;
  if (unapplied_ > kUnappliedMax) return;
  group_ = std::make_unique<Group>();
  while (!jobs_.empty() && jobs_.front()->Ready()) {
    const std::shared_ptr<SaveJob> job = std::move(jobs_.front());
    jobs_.pop_front();
    Status status = job->error;
    if (status.ok()) status = AddToGroup(job);
    if (!status.ok()) {
      ReleaseHolds(job.get());
      job->state->Finish(status);
    }
  }
  if (group_->entries.empty() && group_->frames.empty()) {
    group_.reset();
    return;
  }
  group_->writes_left = group_->frames.size();
  // Submitted together: whatever lands first, recovery believes a commit frame only when its
  // records and, until a flush is known, its payloads are all there.
  for (auto& frame : group_->frames) options_.disk->Submit(frame.get());
}

Status Engine::AddToGroup(const std::shared_ptr<SaveJob>& job) {
  GroupEntry entry;
  entry.job = job;
  STEPWELL_RETURN_IF_ERROR(job->is_delete ? AddDelete(job, &entry) : AddSave(job, &entry));
  group_->entries.push_back(std::move(entry));
  return OkStatus();
}

// What the commit of `step` retires: the step it replaces, and what retention no longer keeps.
// Steps that this group already killed or added count.
std::vector<uint64_t> Engine::KillsFor(uint64_t step) const {
  std::map<uint64_t, uint64_t> steps;  // step -> commit, as of this frame
  for (const auto& live : options_.live->All()) steps[live->record.step] = live->record.commit;
  for (const GroupEntry& entry : group_->entries) {
    std::erase_if(steps, [&](const auto& one) {
      return std::find(entry.kills.begin(), entry.kills.end(), one.second) != entry.kills.end();
    });
    if (entry.added) steps[entry.added->record.step] = entry.commit;
  }
  std::vector<uint64_t> kills;
  if (const auto it = steps.find(step); it != steps.end()) {
    kills.push_back(it->second);
    steps.erase(it);
  }
  (void)0;  // rules: next commit
  return kills;
}

Status Engine::AddSave(const std::shared_ptr<SaveJob>& job, GroupEntry* entry) {
  auto records = std::make_shared<std::vector<LeafRecord>>();
  records->reserve(job->leaves.size());
  format::StepRecord step;
  step.step = job->step;
  step.time_ns = options_.environment.clock->WallNanos();
  step.metadata_json = job->metadata_json;
  step.metrics_json = job->metrics_json;
  step.items = job->items;
  for (PlannedLeaf& leaf : job->leaves) {
    LeafRecord& record = leaf.input.record;
    auto& item = step.items[leaf.item];
    for (const auto& chunk : record.chunks) item.stored_bytes += chunk.stored_bytes;
    item.stored_bytes += record.inline_value.size();
    if (record.kind != format::LeafKind::kNode) {
      ++item.leaf_count;
      item.logical_bytes += record.logical_bytes;
    }
    step.chunk_count += record.chunk_count;
    records->push_back(std::move(record));
  }
  for (const auto& item : step.items) {
    step.leaf_count += item.leaf_count;
    step.logical_bytes += item.logical_bytes;
    step.stored_bytes += item.stored_bytes;
  }
  entry->kills = KillsFor(job->step);
  step.commit = tip_commit_ + 1;

  format::Commit commit;
  commit.kills = entry->kills;
  std::vector<std::vector<LeafRecord>> runs = SplitRecords(*records);
  for (size_t i = 0; i + 1 < runs.size(); ++i) {
    STEPWELL_ASSIGN_OR_RETURN(
        const FramePlace place,
        AppendFrame(FrameKind::kRecords, format::EncodeRecords(runs[i]), job->estimated_bytes));
    auto& extent = job->extents[place.segment];
    extent.segment = place.segment;
    extent.end_bytes = std::max(
        extent.end_bytes, AlignUp(place.offset_bytes + place.length_bytes, log_->block_bytes()));
    commit.blocks.push_back({place, runs[i].front().key, runs[i].front().first_chunk});
  }
  commit.records = std::move(runs.back());

  // The frame names the segments of its step, its own included, so its place is decided first.
  commit.step = step;
  FramePlace place;
  for (int attempt = 0;; ++attempt) {
    Segment* segment = log_->current();
    auto extents = job->extents;
    extents[segment->id].segment = segment->id;
    const auto set_extents = [&](uint64_t end) {
      extents[segment->id].end_bytes = end;
      commit.step.extents.clear();
      for (const auto& [id, extent] : extents) commit.step.extents.push_back(extent);
    };
    set_extents(0);
    const size_t length = AlignUp(format::kFrameHeaderBytes + format::EncodeCommit(commit).size(),
                                  log_->block_bytes());
    STEPWELL_ASSIGN_OR_RETURN(const auto spot,
                              PlaceWithBallast(length, job->estimated_bytes, /*may_drop=*/false));
    if (spot.segment != segment && attempt < 3) continue;  // rolled: name the new one instead
    if (spot.segment != segment) return InternalError("a commit frame found no place");
    set_extents(spot.offset_bytes + length);
    STEPWELL_ASSIGN_OR_RETURN(place,
                              SubmitFrame(FrameKind::kCommit, format::EncodeCommit(commit), spot));
    break;
  }
  for (const auto& extent : commit.step.extents) {
    const auto it = log_->open_segments().find(extent.segment);
    if (it != log_->open_segments().end() && (it->second->dirty || it->second->writes_in_flight)) {
      group_->touched.insert(it->second.get());
    }
  }
  auto live = std::make_shared<LiveStep>();
  live->record = std::move(commit.step);
  live->place = place;
  live->records = std::move(records);
  live->texts_known = true;
  entry->commit = live->record.commit;
  entry->place = place;
  entry->added = std::move(live);
  ReleaseHolds(job.get());
  job->leaves.clear();
  return OkStatus();
}

Status Engine::AddDelete(const std::shared_ptr<SaveJob>& job, GroupEntry* entry) {
  format::Delete deletion;
  for (const uint64_t step : job->delete_steps) {
    // KillsFor without retention: what stands under this number as of this frame.
    uint64_t commit = 0;
    if (const auto live = options_.live->Find(step)) commit = live->record.commit;
    for (const GroupEntry& earlier : group_->entries) {
      if (std::find(earlier.kills.begin(), earlier.kills.end(), commit) != earlier.kills.end()) {
        commit = 0;
      }
      if (earlier.added && earlier.added->record.step == step) commit = earlier.commit;
    }
    if (commit == 0) return NotFoundError(StrCat("step ", step, " is not in the store"));
    deletion.kills.push_back(commit);
    deletion.steps.push_back(step);
  }
  const std::string payload = format::EncodeDelete(deletion);
  const size_t length = AlignUp(format::kFrameHeaderBytes + payload.size(), log_->block_bytes());
  STEPWELL_ASSIGN_OR_RETURN(const auto spot, PlaceWithBallast(length, 0, /*may_drop=*/true));
  STEPWELL_ASSIGN_OR_RETURN(entry->place, SubmitFrame(FrameKind::kDelete, payload, spot));
  entry->commit = tip_commit_;
  entry->kills = std::move(deletion.kills);
  entry->removed_steps = std::move(deletion.steps);
  return OkStatus();
}

Result<FramePlace> Engine::AppendFrame(FrameKind kind, const std::string& payload,
                                       uint64_t step_bytes) {
  const size_t length = AlignUp(format::kFrameHeaderBytes + payload.size(), log_->block_bytes());
  STEPWELL_ASSIGN_OR_RETURN(const auto spot,
                            PlaceWithBallast(length, step_bytes, /*may_drop=*/false));
  return SubmitFrame(kind, payload, spot);
}

// Queues the frame for the group; chain frames take the next number.
Result<FramePlace> Engine::SubmitFrame(FrameKind kind, const std::string& payload,
                                       const LogWriter::Placement& spot) {
  Segment* segment = spot.segment;
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
  const std::string bytes = format::EncodeFrame(header, payload, log_->block_bytes(), &place.crc);
  place.segment = segment->id;
  place.offset_bytes = spot.offset_bytes;
  place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  auto write = std::make_unique<FrameWrite>();
  write->buffer = io::AlignedBuffer(bytes.size());
  if (!write->buffer) return ResourceExhaustedError("no memory for a frame");
  std::memcpy(write->buffer.data(), bytes.data(), bytes.size());
  write->engine = this;
  write->kind = io::Op::Kind::kWrite;
  write->file = segment->file.get();
  write->offset_bytes = spot.offset_bytes;
  write->segment = segment;
  write->vector = {write->buffer.data(), bytes.size()};
  write->vectors = {&write->vector, 1};
  ++segment->writes_in_flight;
  group_->touched.insert(segment);
  group_->frames.push_back(std::move(write));
  segment->frames.push_back({static_cast<uint16_t>(kind), header.commit, place});
  if (format::IsChainFrame(kind)) {
    tip_commit_ = header.commit;
    tip_place_ = place;
    chain_.emplace_back(header.commit, segment->id);
  }
  return place;
}

Result<LogWriter::Placement> Engine::PlaceWithBallast(uint64_t length, uint64_t step_bytes,
                                                      bool may_drop_ballast) {
  auto placement = log_->Place(length, step_bytes);
  if (placement.ok() || !may_drop_ballast ||
      placement.status().code() != StatusCode::kResourceExhausted) {
    return placement;
  }
  // A delete must work on a full disk: that is how space comes back.
  options_.environment.file_system->Remove(BallastFilePath(options_.store_path))
      .IgnoreError("it may be gone already");
  return log_->Place(length, step_bytes);
}

void Engine::FrameWritten(FrameWrite* write) {
  --write->segment->writes_in_flight;
  write->segment->dirty = true;
  bytes_written_ += write->vector.iov_len;
  if (!write->status.ok()) {
    options_.freeze->Trip(write->status);
    if (group_->error.ok()) group_->error = write->status;
  }
  if (--group_->writes_left == 0) SyncGroup();
}

void Engine::SyncGroup() {
  if (!group_->error.ok()) return FailGroup(group_->error);
  group_->syncs_left = group_->touched.size();
  for (Segment* segment : group_->touched) {
    auto sync = std::make_unique<SegmentSync>();
    sync->engine = this;
    sync->kind = io::Op::Kind::kSync;
    sync->file = segment->file.get();
    sync->segment = segment;
    segment->dirty = false;  // writes that complete from here on set it again
    ++segment->writes_in_flight;
    ++syncs_;
    options_.disk->Submit(sync.get());
    group_->sync_ops.push_back(std::move(sync));
  }
}

void Engine::SegmentSynced(SegmentSync* sync) {
  --sync->segment->writes_in_flight;
  if (!sync->status.ok()) {
    options_.freeze->Trip(sync->status);
    if (group_->error.ok()) group_->error = sync->status;
  } else {
    const Segment* segment = sync->segment;
    const std::pair<uint64_t, uint64_t> catalog{segment->id, segment->catalog_commit};
    if (catalogs_.empty() || catalogs_.back().first < catalog.first) {
      catalogs_.push_back(catalog);
      slot_.catalog_place = segment->catalog_place;
    }
  }
  if (--group_->syncs_left > 0) return;
  if (group_->error.ok()) {
    Publish();
  } else {
    FailGroup(group_->error);
  }
}

// Durable: now visible, marked, and told.
void Engine::Publish() {
  const std::unique_ptr<Group> group = std::move(group_);
  bool killed = false;
  for (GroupEntry& entry : group->entries) {
    for (const auto& live : options_.live->All()) {
      if (entry.job->is_delete) break;
      if (std::find(entry.kills.begin(), entry.kills.end(), live->record.commit) !=
          entry.kills.end()) {
        entry.removed_steps.push_back(live->record.step);
      }
    }
    killed = killed || !entry.kills.empty();
    options_.live->Commit(entry.added, entry.kills, entry.commit);
    slot_.durable_commit = entry.commit;
    slot_.durable_place = entry.place;
  }
  if (Status status = WriteSlot(/*sync=*/false); !status.ok()) options_.freeze->Trip(status);
  NoteSegments();
  // Before anybody is told: who waits for the last handle may close the store, and closing waits
  // for what was queued on the index worker until then.
  if (killed) ScheduleReclaim();
  for (GroupEntry& entry : group->entries) {
    ++unapplied_;
    options_.index->Apply(entry.added, entry.removed_steps, entry.commit);
    entry.job->state->Finish(OkStatus());
  }
}

// The frames may or may not be on the disk: the store is frozen, recovery will decide.
void Engine::FailGroup(const Status& status) {
  const std::unique_ptr<Group> group = std::move(group_);
  for (const GroupEntry& entry : group->entries) entry.job->state->Finish(status);
}

}  // namespace stepwell::db
