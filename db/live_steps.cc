// SPDX-License-Identifier: Apache-2.0
#include "db/live_steps.h"

#include <algorithm>

namespace stepwell::db {

void LiveSteps::Load(const LogState& state) {
  const std::lock_guard lock(mutex_);
  for (const auto& [step, live] : state.live) {
    steps_[step] =
        std::make_shared<const LiveStep>(LiveStep{live.record, false, live.place, nullptr});
  }
  dead_ = state.dead;
  tip_ = state.tip_commit;
}

std::vector<std::shared_ptr<const LiveStep>> LiveSteps::All() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const LiveStep>> all;
  all.reserve(steps_.size());
  for (const auto& [step, live] : steps_) all.push_back(live);
  return all;
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

void LiveSteps::Unpin(uint64_t commit) {
  const std::lock_guard lock(mutex_);
  pins_.erase(pins_.find(commit));
}

void LiveSteps::Commit(std::shared_ptr<const LiveStep> added, const std::vector<uint64_t>& killed,
                       uint64_t commit) {
  const std::lock_guard lock(mutex_);
  if (!killed.empty()) {
    std::erase_if(steps_, [&](const auto& entry) {
      const format::StepRecord& record = entry.second->record;
      if (std::find(killed.begin(), killed.end(), record.commit) == killed.end()) return false;
      dead_.push_back({record.commit, commit, record.extents});
      return true;
    });
  }
  if (added != nullptr) steps_[added->record.step] = std::move(added);
  tip_ = commit;
}

void LiveSteps::DropOverlay(uint64_t commit) {
  const std::lock_guard lock(mutex_);
  for (auto& [step, live] : steps_) {
    if (live->record.commit != commit || live->records == nullptr) continue;
    auto without = std::make_shared<LiveStep>(*live);
    without->records = nullptr;
    live = std::move(without);
  }
}

void LiveSteps::DropOverlays() {
  const std::lock_guard lock(mutex_);
  for (auto& [step, live] : steps_) {
    if (live->records == nullptr) continue;
    auto without = std::make_shared<LiveStep>(*live);
    without->records = nullptr;
    live = std::move(without);
  }
}

std::set<uint64_t> LiveSteps::NeededSegments(std::optional<uint64_t> other_pin) {
  const std::lock_guard lock(mutex_);
  std::optional<uint64_t> lowest = other_pin;
  if (!pins_.empty()) lowest = std::min(lowest.value_or(*pins_.begin()), *pins_.begin());
  std::set<uint64_t> needed;
  for (const auto& [step, live] : steps_) {
    for (const auto& extent : live->record.extents) needed.insert(extent.segment);
  }
  std::erase_if(dead_, [&](const DeadCommit& dead) {
    if (!lowest || dead.killer <= *lowest) return true;
    for (const auto& extent : dead.extents) needed.insert(extent.segment);
    return false;
  });
  return needed;
}

uint64_t LiveSteps::tip() const {
  const std::lock_guard lock(mutex_);
  return tip_;
}

}  // namespace stepwell::db
