// SPDX-License-Identifier: Apache-2.0
#include "db/live_steps.h"

#include <algorithm>

#include "db/step_records.h"

namespace stepwell::db {

Result<format::StepRecord> RecordWithTexts(const LiveStep& live, SegmentFiles& files) {
  if (live.texts_known) return live.record;
  STEPWELL_ASSIGN_OR_RETURN(const auto records, StepRecords::Open(&files, live.place));
  format::StepRecord record = records->step();
  TakeState(live.record, &record);
  return record;
}

void LiveSteps::Load(const LogState& state) {
  const std::lock_guard lock(mutex_);
  const LogStep* newest = nullptr;
  for (const auto& [step, live] : state.live) {
    if (newest == nullptr || live.record.commit > newest->record.commit) newest = &live;
  }
  const auto load = [&](const LogStep& live) {
    LiveStep loaded;
    // As old as they were when the last session ended; never newer than what this one commits.
    if (newest != nullptr) {
      loaded.age_time_ns = std::min<int64_t>(live.record.time_ns - newest->record.time_ns, 0);
    }
    loaded.record = live.record;
    loaded.place = live.place;
    return std::make_shared<const LiveStep>(std::move(loaded));
  };
  for (const auto& [step, live] : state.live) steps_[step] = load(live);
  for (const auto& [commit, live] : state.undecided) undecided_[commit] = load(live);
  dead_ = state.dead;
  losses_ = state.losses;
  tip_ = state.tip_commit;
}

std::vector<std::shared_ptr<const LiveStep>> LiveSteps::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const LiveStep>> all;
  all.reserve(steps_.size());
  for (const auto& [step, live] : steps_) all.push_back(live);
  return all;
}

std::vector<std::shared_ptr<const LiveStep>> LiveSteps::Undecided() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const LiveStep>> all;
  for (const auto& [commit, live] : undecided_) all.push_back(live);
  return all;
}

std::vector<std::shared_ptr<const LiveStep>> LiveSteps::Needing() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const LiveStep>> all;
  all.reserve(steps_.size() + undecided_.size());
  for (const auto& [step, live] : steps_) all.push_back(live);
  for (const auto& [commit, live] : undecided_) all.push_back(live);
  return all;
}

size_t LiveSteps::CountNeeding() const {
  const std::lock_guard lock(mutex_);
  return steps_.size() + undecided_.size();
}

std::shared_ptr<const LiveStep> LiveSteps::Find(uint64_t step) const {
  const std::lock_guard lock(mutex_);
  const auto it = steps_.find(step);
  return it == steps_.end() ? nullptr : it->second;
}

LiveSteps::Pinned LiveSteps::FindAndPin(uint64_t step) {
  const std::lock_guard lock(mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) return {};
  pins_.insert(tip_);
  return {it->second, std::make_shared<Pin>(this, tip_)};
}

std::pair<std::vector<std::shared_ptr<const LiveStep>>, std::shared_ptr<LiveSteps::Pin>>
LiveSteps::AllAndPin() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const LiveStep>> all;
  all.reserve(steps_.size());
  for (const auto& [step, live] : steps_) all.push_back(live);
  pins_.insert(tip_);
  return {std::move(all), std::make_shared<Pin>(this, tip_)};
}

void LiveSteps::Unpin(uint64_t commit) {
  const std::lock_guard lock(mutex_);
  pins_.erase(pins_.find(commit));
  if (!dead_.empty() && on_release_) on_release_();
}

// Readers share the old one; guarded by mutex_.
template <typename Edit>
void LiveSteps::EditStep(std::shared_ptr<const LiveStep>* live, Edit edit) {
  auto edited = std::make_shared<LiveStep>(**live);
  edit(edited.get());
  *live = std::move(edited);
}

void LiveSteps::Commit(const Change& change) {
  const std::lock_guard lock(mutex_);
  for (const auto& killed : change.killed) {
    const format::StepRecord& record = killed->record;
    dead_.push_back({record.commit, change.commit, record.extents});
    steps_.erase(record.step);
  }
  if (change.prepared != nullptr) undecided_[change.prepared->record.commit] = change.prepared;
  if (change.decided != nullptr) {
    const format::StepRecord& record = change.decided->record;
    undecided_.erase(record.commit);
    if (change.added == nullptr) dead_.push_back({record.commit, change.commit, record.extents});
  }
  if (change.added != nullptr) steps_[change.added->record.step] = change.added;
  for (const auto& [step, pinned] : change.pins) {
    const auto it = steps_.find(step);
    if (it == steps_.end()) continue;
    EditStep(&it->second, [pinned = pinned](LiveStep* edited) { edited->record.pinned = pinned; });
  }
  tip_ = change.commit;
  if (change.losses) losses_ = *change.losses;
  for (const auto& [owner, callback] : on_commit_) callback();
}

void LiveSteps::SetMetrics(uint64_t commit, const std::string& metrics_json) {
  const std::lock_guard lock(mutex_);
  for (auto* steps : {&steps_, &undecided_}) {
    for (auto& [number, live] : *steps) {
      if (live->record.commit != commit) continue;
      EditStep(&live, [&](LiveStep* edited) { edited->metrics_json = metrics_json; });
    }
  }
}

void LiveSteps::DropOverlay(uint64_t step, uint64_t commit) {
  const std::lock_guard lock(mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end() || it->second->record.commit != commit) return;
  if (it->second->records == nullptr) return;
  EditStep(&it->second, [](LiveStep* edited) { edited->records = nullptr; });
}

void LiveSteps::DropOverlays() {
  const std::lock_guard lock(mutex_);
  for (auto& [step, live] : steps_) {
    if (live->records == nullptr) continue;
    EditStep(&live, [](LiveStep* edited) { edited->records = nullptr; });
  }
}

LiveSteps::Needed LiveSteps::NeededBy(std::optional<uint64_t> other_pin, uint64_t published) {
  const std::lock_guard lock(mutex_);
  uint64_t lowest = std::min(published, other_pin.value_or(published));
  if (!pins_.empty()) lowest = std::min(lowest, *pins_.begin());
  Needed needed;
  std::erase_if(dead_, [&](const DeadCommit& dead) {
    if (dead.killer <= lowest) return true;
    for (const auto& extent : dead.extents) {
      needed.pinned_segments.insert(extent.segment);
      needed.pinned_bytes += extent.stored_bytes;
    }
    return false;
  });
  return needed;
}

void LiveSteps::OnRelease(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  on_release_ = std::move(callback);
}

void LiveSteps::OnCommit(const void* owner, std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  if (callback) {
    on_commit_[owner] = std::move(callback);
  } else {
    on_commit_.erase(owner);
  }
}

std::vector<format::LossRecord> LiveSteps::Losses() const {
  const std::lock_guard lock(mutex_);
  return losses_;
}

uint64_t LiveSteps::tip() const {
  const std::lock_guard lock(mutex_);
  return tip_;
}

}  // namespace stepwell::db
