// SPDX-License-Identifier: Apache-2.0
#include "db/log/live_steps.h"

#include <algorithm>
#include <iterator>

#include "db/log/step_records.h"
#include "io/invariant.h"

namespace stepwell::db {

namespace {

template <typename Steps>
LiveSteps::List Listed(const Steps& steps) {
  LiveSteps::List list;
  list.reserve(steps.size());
  for (const auto& [number, live] : steps) list.push_back(live);
  return list;
}

// Readers share the old one.
template <typename Edit>
void EditStep(std::shared_ptr<const LiveStep>* live, Edit edit) {
  auto edited = std::make_shared<LiveStep>(**live);
  edit(edited.get());
  *live = std::move(edited);
}

}  // namespace

StepTexts TextsInLog(const LiveStep& live, SegmentFiles& files) {
  StepTexts texts{live.record.step, live.record.commit, {}, {}, {}};
  const auto records = StepRecords::Open(&files, live.place);
  texts.status = records.status();
  if (!records.ok()) return texts;
  texts.metadata_json = (*records)->step().metadata_json;
  texts.metrics_json = (*records)->step().metrics_json;
  return texts;
}

int64_t AgeTimeOf(const format::StepRecord& step, const format::StepRecord& newest) {
  // The year 2116: differences do not overflow.
  static constexpr int64_t kTimeMax = int64_t{1} << 62;
  const auto time = [](const format::StepRecord& record) {
    return std::clamp<int64_t>(record.time_ns, 0, kTimeMax);
  };
  return std::min<int64_t>(time(step) - time(newest), 0);
}

void LiveSteps::Load(const LogState& state) {
  const io::MutexLock lock(&mutex_);
  const LiveStep* newest = nullptr;
  for (const auto& [step, live] : state.live) {
    if (newest == nullptr || live.record.commit > newest->record.commit) newest = &live;
  }
  const auto load = [&](const LiveStep& live) {
    LiveStep loaded = live;
    loaded.is_old = true;
    loaded.first_commit = live.record.commit;
    if (newest != nullptr) loaded.age_time_ns = AgeTimeOf(live.record, newest->record);
    return std::make_shared<const LiveStep>(std::move(loaded));
  };
  for (const auto& [step, live] : state.live) Insert(load(live));
  for (const auto& [commit, live] : state.undecided) {
    undecided_[commit] = load(live);
    Count(*undecided_[commit], /*added=*/true);
  }
  dead_.assign(state.dead.begin(), state.dead.end());
  losses_ = state.losses;
  tip_ = state.tip_commit;
}

std::optional<uint64_t> LiveSteps::HighestStep() const {
  const io::MutexLock lock(&mutex_);
  return steps_.empty() ? std::nullopt : std::optional(steps_.rbegin()->first);
}

std::optional<uint64_t> LiveSteps::NewestStep() const {
  const io::MutexLock lock(&mutex_);
  const auto newest = NewestOf(steps_);
  return newest == steps_.end() ? std::nullopt : std::optional(newest->first);
}

std::vector<uint64_t> LiveSteps::Numbers(size_t last, bool with_tainted) const {
  const io::MutexLock lock(&mutex_);
  return LastNumbers(steps_, last, with_tainted);
}

LiveSteps::List LiveSteps::All() const {
  const io::MutexLock lock(&mutex_);
  return Listed(steps_);
}

LiveSteps::List LiveSteps::Undecided() const {
  const io::MutexLock lock(&mutex_);
  return Listed(undecided_);
}

LiveSteps::List LiveSteps::Needing() const {
  const io::MutexLock lock(&mutex_);
  List all = Listed(steps_);
  for (const auto& [commit, live] : undecided_) all.push_back(live);
  return all;
}

size_t LiveSteps::CountNeeding() const {
  const io::MutexLock lock(&mutex_);
  return steps_.size() + undecided_.size();
}

std::shared_ptr<const LiveStep> LiveSteps::Find(uint64_t step) const {
  const io::MutexLock lock(&mutex_);
  const auto it = steps_.find(step);
  return it == steps_.end() ? nullptr : it->second;
}

LiveSteps::Pinned LiveSteps::FindAndPin(uint64_t step) {
  const io::MutexLock lock(&mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) return {};
  pins_.insert(tip_);
  return {it->second, std::make_shared<Pin>(this, tip_)};
}

LiveSteps::Pinned LiveSteps::FindNewestAndPin() {
  const io::MutexLock lock(&mutex_);
  const auto newest = NewestOf(steps_);
  if (newest == steps_.end()) return {};
  pins_.insert(tip_);
  return {newest->second, std::make_shared<Pin>(this, tip_)};
}

LiveSteps::Pinned LiveSteps::FindNewestCommitAndPin() {
  const io::MutexLock lock(&mutex_);
  const auto newest =
      std::max_element(steps_.begin(), steps_.end(), [](const auto& a, const auto& b) {
        return a.second->record.commit < b.second->record.commit;
      });
  if (newest == steps_.end()) return {};
  pins_.insert(tip_);
  return {newest->second, std::make_shared<Pin>(this, tip_)};
}

std::pair<LiveSteps::List, std::shared_ptr<LiveSteps::Pin>> LiveSteps::AllAndPin() {
  const io::MutexLock lock(&mutex_);
  pins_.insert(tip_);
  return {Listed(steps_), std::make_shared<Pin>(this, tip_)};
}

void LiveSteps::Unpin(uint64_t commit) {
  const io::MutexLock lock(&mutex_);
  pins_.erase(pins_.find(commit));
  if ((!dead_.empty() || !pinned_dead_.empty()) && on_release_) on_release_();
}

// A step of this number replaces the one before.
void LiveSteps::Insert(const std::shared_ptr<const LiveStep>& live) {
  const uint64_t step = live->record.step;
  Erase(step);
  steps_[step] = live;
  Count(*live, /*added=*/true);
  for (const auto& extent : live->record.extents) {
    Residents& residents = residents_[extent.segment];
    if (!extent.owns_nothing()) {
      residents.steps.insert(step);
      continue;
    }
    Referrers& referrers = residents.referrers[extent.places];
    referrers.stored_bytes = extent.stored_bytes;
    referrers.steps.insert(step);
  }
}

void LiveSteps::Erase(uint64_t step) {
  const auto it = steps_.find(step);
  if (it == steps_.end()) return;
  const std::shared_ptr<const LiveStep> live = std::move(it->second);
  steps_.erase(it);
  for (const auto& extent : live->record.extents) {
    Residents& residents = residents_[extent.segment];
    if (!extent.owns_nothing()) {
      residents.steps.erase(step);
      continue;
    }
    const auto referrers = residents.referrers.find(extent.places);
    STEPWELL_DCHECK(referrers != residents.referrers.end(), "a step that lived was not counted");
    referrers->second.steps.erase(step);
    if (referrers->second.steps.empty()) residents.referrers.erase(referrers);
  }
  Count(*live, /*added=*/false);
}

void LiveSteps::Bury(const LiveStep& live, uint64_t killer) {
  dead_.push_back({live.record.commit, killer, live.record.extents, live.place});
}

// After what it names is gone, an entry without anything goes, too.
void LiveSteps::Count(const LiveStep& live, bool added) {
  // Every step has at least its commit frame's extent.
  if (live.record.extents.empty()) {
    if (added) {
      ++placeless_;
    } else {
      --placeless_;
    }
  }
  for (const auto& extent : live.record.extents) {
    Residents& residents = residents_[extent.segment];
    const uint64_t owned = extent.stored_bytes - extent.referenced_bytes;
    residents.owned_bytes += added ? owned : -owned;
    if (extent.referenced_bytes > 0) residents.referring += added ? size_t{1} : ~size_t{0};
  }
}

void LiveSteps::Commit(const Change& change) {
  const io::MutexLock lock(&mutex_);
  STEPWELL_DCHECK(change.commit > tip_, "a change was published before an earlier one");
  for (const auto& killed : change.killed) {
    const auto it = steps_.find(killed->record.step);
    STEPWELL_DCHECK(it != steps_.end() && it->second->record.commit == killed->record.commit,
                    "a change ends a commit that does not live");
    Bury(*killed, change.commit);
    Erase(killed->record.step);
  }
  if (change.prepared != nullptr) {
    undecided_[change.prepared->record.commit] = change.prepared;
    Count(*change.prepared, /*added=*/true);
  }
  if (change.decided != nullptr) {
    const size_t erased = undecided_.erase(change.decided->record.commit);
    STEPWELL_DCHECK(erased == 1, "a change decides what is not prepared");
    Count(*change.decided, /*added=*/false);
    if (change.added == nullptr) Bury(*change.decided, change.commit);
  }
  if (change.added != nullptr) {
    STEPWELL_DCHECK(!steps_.contains(change.added->record.step),
                    "a change adds a step that lives already");
    Insert(change.added);
  }
  for (const StepMeta& meta : change.metas) {
    const auto it = steps_.find(meta.step);
    if (it == steps_.end()) continue;
    EditStep(&it->second,
             [&](LiveStep* edited) { format::ApplyChange(meta.change, &edited->record); });
  }
  tip_ = change.commit;
  if (change.losses) losses_ = *change.losses;
  for (const auto& [owner, callback] : on_commit_) callback();
}

void LiveSteps::SetMetrics(const format::StepRecord& step,
                           const std::optional<std::string>& metrics_json) {
  const io::MutexLock lock(&mutex_);
  const auto set = [&](auto& steps, uint64_t key) {
    const auto it = steps.find(key);
    if (it == steps.end() || it->second->record.commit != step.commit) return;
    EditStep(&it->second, [&](LiveStep* edited) {
      edited->metrics_json = metrics_json.value_or("");
      edited->metrics_unknown = !metrics_json;
    });
  };
  set(steps_, step.step);
  set(undecided_, step.commit);
}

void LiveSteps::Forget(std::map<uint64_t, DeadCommit>::iterator dead,
                       std::vector<uint64_t>* forgotten) {
  forgotten->push_back(dead->first);
  for (const auto& extent : dead->second.extents) {
    pinned_bytes_ -= extent.stored_bytes - extent.referenced_bytes;
    residents_[extent.segment].pinned.erase(dead->first);
  }
  pinned_dead_.erase(dead);
}

// Sorts dead commits up to `published` into pinned ones and forgotten ones. Later pins are of
// `published` or a later commit, so a commit that is not pinned now never is.
void LiveSteps::SortDead(const ReaderPins& others, uint64_t published,
                         std::vector<uint64_t>* forgotten) {
  std::vector<uint64_t> pins;
  std::set_union(others.commits.begin(), others.commits.end(), pins_.begin(), pins_.end(),
                 std::back_inserter(pins));
  const auto is_read = [&](const DeadCommit& dead) {
    const auto pin = std::lower_bound(pins.begin(), pins.end(), dead.commit);
    return pin != pins.end() && *pin < dead.killer;
  };
  if (!std::includes(pins.begin(), pins.end(), seen_pins_.begin(), seen_pins_.end())) {
    for (auto it = pinned_dead_.begin(); it != pinned_dead_.end();) {
      const auto dead = it++;
      if (!is_read(dead->second)) Forget(dead, forgotten);
    }
  }
  for (; !dead_.empty() && dead_.front().killer <= published; dead_.pop_front()) {
    DeadCommit& dead = dead_.front();
    if (!is_read(dead)) {
      forgotten->push_back(dead.commit);
      continue;
    }
    for (const auto& extent : dead.extents) {
      pinned_bytes_ += extent.stored_bytes - extent.referenced_bytes;
      residents_[extent.segment].pinned.insert(dead.commit);
    }
    pinned_dead_[dead.commit] = std::move(dead);
  }
  pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
  seen_pins_ = std::move(pins);
}

LiveSteps::Use LiveSteps::UseOf(const std::set<uint64_t>& segments, const ReaderPins& others,
                                uint64_t published) {
  const io::MutexLock lock(&mutex_);
  Use use;
  use.known = placeless_ == 0;
  if (!others.unknown) SortDead(others, published, &use.forgotten);
  use.pinned_bytes = pinned_bytes_;
  for (const uint64_t id : segments) {
    const auto it = residents_.find(id);
    if (it == residents_.end()) continue;
    const Residents& residents = it->second;
    if (residents.steps.empty() && residents.referrers.empty() && residents.pinned.empty() &&
        residents.owned_bytes == 0 && residents.referring == 0) {
      residents_.erase(it);
      continue;
    }
    SegmentUse& used = use.segments[id];
    for (const uint64_t step : residents.steps) used.live.push_back(steps_.at(step));
    size_t only_referring = 0;
    for (const auto& [places, referrers] : residents.referrers) {
      used.live.push_back(steps_.at(*referrers.steps.rbegin()));
      only_referring += referrers.steps.size();
    }
    used.referenced = residents.referring > 0 && residents.steps.size() + only_referring > 1;
    for (const uint64_t commit : residents.pinned) used.pinned.push_back(pinned_dead_.at(commit));
  }
  for (const auto& [commit, live] : undecided_) {
    for (const auto& extent : live->record.extents) {
      if (!segments.contains(extent.segment)) continue;
      SegmentUse& used = use.segments[extent.segment];
      used.live.push_back(live);
      used.referenced = used.referenced || extent.referenced_bytes > 0;
    }
  }
  for (const DeadCommit& dead : dead_) {
    for (const auto& extent : dead.extents) {
      if (segments.contains(extent.segment)) use.segments[extent.segment].blocked = true;
    }
  }
  return use;
}

uint64_t LiveSteps::StoredBytesFrom(uint64_t first) const {
  const io::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (auto it = residents_.lower_bound(first); it != residents_.end(); ++it) {
    uint64_t referenced = 0;
    for (const auto& [places, referrers] : it->second.referrers) {
      referenced = std::max(referenced, referrers.stored_bytes);
    }
    bytes += std::max(it->second.owned_bytes, referenced);
  }
  return bytes;
}

bool LiveSteps::HasLive(uint64_t segment) const {
  const io::MutexLock lock(&mutex_);
  const auto it = residents_.find(segment);
  return it != residents_.end() && !(it->second.steps.empty() && it->second.referrers.empty());
}

bool LiveSteps::HasReferrer(uint64_t segment, const format::Hash128& places) const {
  const io::MutexLock lock(&mutex_);
  const auto it = residents_.find(segment);
  return it != residents_.end() && it->second.referrers.contains(places);
}

void LiveSteps::OnRelease(std::function<void()> callback) {
  const io::MutexLock lock(&mutex_);
  on_release_ = std::move(callback);
}

void LiveSteps::OnCommit(const void* owner, std::function<void()> callback) {
  const io::MutexLock lock(&mutex_);
  if (callback) {
    on_commit_[owner] = std::move(callback);
  } else {
    on_commit_.erase(owner);
  }
}

std::vector<format::LossRecord> LiveSteps::Losses() const {
  const io::MutexLock lock(&mutex_);
  return losses_;
}

uint64_t LiveSteps::tip() const {
  const io::MutexLock lock(&mutex_);
  return tip_;
}

}  // namespace stepwell::db
