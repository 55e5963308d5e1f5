// SPDX-License-Identifier: Apache-2.0
// Commit frames: of saves, and of steps whose chunks or items changed.
#include <algorithm>
#include <utility>

#include "db/commit/batch_builder.h"
#include "db/commit/content_checks.h"
#include "db/commit/frame_records.h"
#include "db/commit/retention_report.h"
#include "io/invariant.h"

namespace stepwell::db {

using format::FrameKind;
using format::FramePlace;
using format::LeafRecord;

namespace {

// Makes the chunks of an earlier leaf of the save those of this one, too.
void TakeTwin(const PlannedLeaf& twin, const LeafRecord& record, PlannedLeaf* leaf) {
  STEPWELL_DCHECK(twin.grid == leaf->grid, "a leaf has the chunks of one of another grid");
  leaf->input.record.chunks = record.chunks;
  leaf->near_base = twin.near_base;
  if (leaf->base == nullptr) return;
  leaf->changed = !std::ranges::equal(record.chunks, leaf->base->chunks, {},
                                      &format::ChunkRecord::hash, &format::ChunkRecord::hash);
}

}  // namespace

Status BatchBuilder::AddSave(SaveJob* job, BatchEntry* entry) {
  STEPWELL_RETURN_IF_ERROR(CheckFinite(*options_, *job));
  const bool is_new = FindAsOf(job->step) == nullptr;
  std::vector<LeafRecord> records;
  records.reserve(job->leaves.size());
  auto live = std::make_shared<LiveStep>();
  format::StepRecord& step = live->record;
  step.step = job->step;
  step.time_ns = options_->environment.clock->WallNanos();
  step.save_ns = options_->instruments->Now() - job->times.start_ns;
  live->age_time_ns = AgeTime(step.time_ns);
  step.items = job->items;
  step.taint = job->taint;
  step.group = job->group;
  const auto texts = std::make_shared<StepTexts>();
  texts->metadata_json = job->metadata_json;
  texts->metrics_json = live->metrics_json = job->metrics_json;
  for (PlannedLeaf& leaf : job->leaves) {
    LeafRecord& record = leaf.input.record;
    record.partial = leaf.input.partial;
    if (leaf.twin) TakeTwin(job->leaves[*leaf.twin], records[*leaf.twin], &leaf);
    Count(record, &step.items[leaf.item], &step);
    records.push_back(std::move(record));
  }
  SumItems(&step);
  auto extents = job->extents;
  AddReferenced(records, log_->block_bytes(), &extents);
  const auto add = [&](std::shared_ptr<LiveStep> added) {
    return AddCommit(std::move(extents), job->estimated_bytes, std::move(added), records, texts,
                     entry);
  };
  if (job->group) {
    STEPWELL_RETURN_IF_ERROR(add(std::move(live)));
    entry->change.prepared = std::move(entry->change.added);
  } else {
    if (auto replaced = FindAsOf(job->step)) {
      if (replaced->record.pinned) return Pinned(job->step, "replace");
      entry->change.killed.push_back(std::move(replaced));
    }
    AddRetired(*live, job->steps, &entry->change);
    STEPWELL_RETURN_IF_ERROR(add(std::move(live)));
  }
  const LiveStep& added = job->group ? *entry->change.prepared : *entry->change.added;
  auto base = std::make_shared<BaseRecords>();
  base->step = added.record.step;
  base->commit = added.record.commit;
  base->ticket = job->ticket;
  base->of_session = true;
  base->leaves.reserve(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].chunks.empty()) continue;
    const PlannedLeaf& leaf = job->leaves[i];
    uint8_t dense_saves = 0;
    if (leaf.recent != nullptr && leaf.base != nullptr && !leaf.near_base && !leaf.unchanged) {
      dense_saves = NextDenseSaves(leaf.base->dense_saves);
    }
    base->leaves.push_back({.key = std::move(records[i].key),
                            .grid = leaf.grid,
                            .dense_saves = dense_saves,
                            .changed_saves = ChangedSaves(leaf),
                            .statistics = records[i].statistics,
                            .chunks = std::move(records[i].chunks)});
  }
  job->committed = std::move(base);
  if (is_new) WarnIfStale(*options_, *job);
  job->ReleaseHolds();
  job->leaves.clear();
  return OkStatus();
}

Status BatchBuilder::AddRewrite(const SaveJob& job, BatchEntry* entry) {
  std::shared_ptr<const LiveStep> old = FindAsOf(job.record.step);
  if (old == nullptr || old->record.commit != job.rewritten->record.commit) {
    return AbortedError(StrCat("step ", job.record.step, " was changed or deleted meanwhile"));
  }
  auto live = std::make_shared<LiveStep>();
  live->age_time_ns = old->age_time_ns;
  live->is_old = old->is_old;
  live->first_commit = old->first_commit;
  live->record = job.record;
  TakeState(old->record, &live->record);
  entry->change.killed.push_back(std::move(old));
  return AddRecords(job, std::move(live), entry);
}

// A commit frame of a step whose chunks are where they were.
Status BatchBuilder::AddRecords(const SaveJob& job, std::shared_ptr<LiveStep> live,
                                BatchEntry* entry) {
  format::StepRecord& step = live->record;
  step.leaf_count = step.chunk_count = step.logical_bytes = step.stored_bytes = 0;
  std::map<std::string, format::ItemRecord*, std::less<>> items;  // by key prefix
  for (auto& item : step.items) {
    item.leaf_count = item.logical_bytes = item.stored_bytes = item.nonfinite = 0;
    items[format::EncodeItem(item.name)] = &item;
  }
  for (const LeafRecord& record : *job.records) {
    auto it = items.upper_bound(record.key);
    if (it == items.begin() || !record.key.starts_with((--it)->first)) {
      return InternalError("a rewritten leaf belongs to no item of its step");
    }
    Count(record, it->second, &step);
  }
  SumItems(&step);
  const auto texts = std::make_shared<StepTexts>();
  texts->metadata_json = std::exchange(step.metadata_json, {});
  texts->metrics_json = std::exchange(step.metrics_json, {});
  live->metrics_json = texts->metrics_json;
  return AddCommit(ExtentsOf(*job.records, log_->block_bytes()), job.estimated_bytes,
                   std::move(live), *job.records, texts, entry);
}

// Records frames and the commit frame of a step whose payloads are written, at `extents`.
Status BatchBuilder::AddCommit(std::map<uint64_t, format::SegmentExtent> extents,
                               uint64_t step_bytes, std::shared_ptr<LiveStep> live,
                               std::span<const LeafRecord> records,
                               const std::shared_ptr<StepTexts>& texts, BatchEntry* entry) {
  format::Commit commit;
  for (const auto& killed : entry->change.killed) commit.kills.push_back(killed->record.commit);
  const std::vector<RecordsRun> runs = SplitRecords(records);
  if (runs.size() == 1) {
    commit.records.assign(runs[0].records().begin(), runs[0].records().end());
  }
  for (size_t i = 0; runs.size() > 1 && i < runs.size(); ++i) {
    const std::span<const LeafRecord> run = runs[i].records();
    LogEnd::Run taken;
    STEPWELL_ASSIGN_OR_RETURN(
        const FramePlace place,
        AppendFrame(FrameKind::kRecords, format::EncodeRecords(run), step_bytes,
                    /*may_drop_ballast=*/false, &taken));
    auto& extent = extents[place.segment];
    extent.segment = place.segment;
    extent.end_bytes = std::max(extent.end_bytes, place.offset_bytes + taken.bytes);
    extent.frame_bytes += taken.bytes;
    extent.places = {};
    commit.blocks.push_back({place, run.front().key, run.front().first_chunk});
  }
  STEPWELL_DCHECK(HoldsAll(extents, records), "a step's extents do not hold its chunks");
  live->record.referenced_bytes = 0;
  uint64_t stored_bytes = 0;  // payloads that two leaves have count once
  for (const auto& [id, extent] : extents) {
    stored_bytes += extent.stored_bytes;
    live->record.referenced_bytes += extent.referenced_bytes;
  }
  for (const LeafRecord& record : records) stored_bytes += record.inline_value.size();
  STEPWELL_DCHECK(stored_bytes <= live->record.stored_bytes,
                  "a step's payloads are not its leaves'");
  live->record.stored_bytes = stored_bytes;
  live->record.commit = log_->tip_commit() + 1;
  if (live->first_commit == 0) live->first_commit = live->record.commit;
  commit.step = live->record;
  commit.step.metadata_json = texts->metadata_json;
  commit.step.metrics_json = texts->metrics_json;
  STEPWELL_RETURN_IF_ERROR(AddCommitFrame(extents, step_bytes, &commit, entry));
  live->record.extents = std::move(commit.step.extents);
  live->place = entry->place;
  texts->step = live->record.step;
  texts->commit = live->record.commit;
  entry->change.texts = texts;
  entry->change.commit = live->record.commit;
  entry->change.added = std::move(live);
  return OkStatus();
}

// The frame names the segments of its step, its own included, so its place is decided first.
Status BatchBuilder::AddCommitFrame(const std::map<uint64_t, format::SegmentExtent>& extents,
                                    uint64_t step_bytes, format::Commit* commit,
                                    BatchEntry* entry) {
  const bool prepared =
      commit->step.group && commit->step.group->state == format::GroupState::kPrepared;
  const FrameKind kind = prepared ? FrameKind::kPrepared : FrameKind::kCommit;
  const format::CommitEncoder encoder(commit->records);
  for (int attempt = 0;; ++attempt) {
    Segment* segment = log_->current();
    auto with_frame = extents;
    with_frame[segment->id].segment = segment->id;
    const auto set_extents = [&](uint64_t end, uint64_t frame_bytes) {
      with_frame[segment->id].end_bytes = end;
      with_frame[segment->id].frame_bytes += frame_bytes;
      with_frame[segment->id].places = {};
      commit->step.extents.clear();
      for (const auto& [id, extent] : with_frame) commit->step.extents.push_back(extent);
    };
    set_extents(0, 0);
    STEPWELL_ASSIGN_OR_RETURN(const LogEnd::Run run,
                              log_->PlaceFrame(kind, encoder.Encode(*commit).size(), step_bytes,
                                               /*may_drop_ballast=*/false));
    if (run.spot.segment != segment) {  // rolled: name the new one instead
      if (attempt == 3) return InternalError("a commit frame found no place");
      log_->GiveBack(run);
      continue;
    }
    set_extents(run.spot.offset_bytes + run.bytes, run.bytes);
    STEPWELL_ASSIGN_OR_RETURN(entry->place, QueueFrame(kind, encoder.Encode(*commit), run));
    break;
  }
  for (const auto& extent : commit->step.extents) {
    const auto it = log_->open_segments().find(extent.segment);
    if (it != log_->open_segments().end() && (it->second->dirty || it->second->writes_in_flight)) {
      batch_->touched.insert(it->second.get());
    }
  }
  return OkStatus();
}

Result<FramePlace> BatchBuilder::AppendFrame(FrameKind kind, const std::string& payload,
                                             uint64_t step_bytes, bool may_drop_ballast,
                                             LogEnd::Run* taken) {
  STEPWELL_ASSIGN_OR_RETURN(const LogEnd::Run run,
                            log_->PlaceFrame(kind, payload.size(), step_bytes, may_drop_ballast));
  if (taken != nullptr) *taken = run;
  return QueueFrame(kind, payload, run);
}

Result<FramePlace> BatchBuilder::QueueFrame(FrameKind kind, const std::string& payload,
                                            const LogEnd::Run& run) {
  batch_->touched.insert(run.spot.segment);
  BatchFrame* write = batch_->frames.emplace_back(std::make_unique<BatchFrame>()).get();
  write->committer = committer_;
  Result<FramePlace> place = log_->EncodeFrame(kind, payload, run, write);
  if (!place.ok()) batch_->frames.pop_back();
  return place;
}

}  // namespace stepwell::db
