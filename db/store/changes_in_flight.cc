// SPDX-License-Identifier: Apache-2.0
#include "db/store/changes_in_flight.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "io/guard.h"

namespace stepwell::db {
namespace {

// More would only hold more memory: one is being written, one encoded, one snapshotted.
constexpr size_t kSavesInFlightMax = 3;
constexpr std::chrono::milliseconds kAskInterval{100};

}  // namespace

Status SaveCancelled(const std::string& path, uint64_t step) {
  return CancelledError(
      StrCat(path, ": step ", step, " was not saved: the caller stopped waiting"));
}

bool IsPrepared(const LiveSteps& live, uint64_t step) {
  const auto undecided = live.Undecided();
  return std::any_of(undecided.begin(), undecided.end(),
                     [step](const auto& each) { return each->record.step == step; });
}

ChangesInFlight::ChangesInFlight(Options options)
    : options_(std::move(options)),
      lost_(OutcomeUnknownError(
          StrCat(options_.path,
                 ": whether this was done is not known: there was no memory to go on; close the "
                 "store and open it again, which settles it, then look at its steps"))) {
  failed_.reserve(kFailedMax);
}

ChangesInFlight::Call::Call(ChangesInFlight* changes) : changes_(changes) {
  const io::MutexLock lock(&changes_->mutex_);
  begun_ = !changes_->closed_;
  if (begun_) ++changes_->calls_in_flight_;
}

ChangesInFlight::Call::~Call() {
  const io::MutexLock lock(&changes_->mutex_);
  if (begun_) --changes_->calls_in_flight_;
  changes_->changed_.NotifyAll();
}

Status ChangesInFlight::Closed() const {
  return FailedPreconditionError(options_.path + ": the store is closed");
}

bool ChangesInFlight::WaitUntil(const std::function<bool()>& ready,
                                const std::function<bool()>& keep_waiting) {
  using Clock = std::chrono::steady_clock;
  auto ask_at = Clock::now() + kAskInterval;
  while (!ready()) {
    if (options_.pump) {
      const io::MutexUnlock unlocked(&mutex_);
      options_.pump();
    } else if (!keep_waiting) {
      changed_.Wait(&mutex_);
    } else if (!changed_.WaitUntil(&mutex_, ask_at) && !ready()) {
      const io::MutexUnlock unlocked(&mutex_);
      if (!keep_waiting()) return false;
      ask_at = Clock::now() + kAskInterval;
    }
  }
  return true;
}

bool ChangesInFlight::WaitUntilPlace(const std::function<bool()>& keep_waiting) {
  const auto has_place = [this]() STEPWELL_REQUIRES(mutex_) {
    return closed_ || saves_in_flight_ < kSavesInFlightMax;
  };
  return WaitUntil(has_place, keep_waiting);
}

Status ChangesInFlight::WaitForPlace(uint64_t step, const std::function<bool()>& keep_waiting) {
  const io::MutexLock lock(&mutex_);
  return WaitUntilPlace(keep_waiting) ? OkStatus() : SaveCancelled(options_.path, step);
}

Result<std::shared_ptr<SaveHandle::State>> ChangesInFlight::AdmitSave(
    uint64_t step, IfExists if_exists, const std::function<bool()>& keep_waiting,
    const std::function<Status()>& check, bool* skip) {
  const std::string& path = options_.path;
  const io::MutexLock lock(&mutex_);
  if (!WaitUntilPlace(keep_waiting)) return SaveCancelled(path, step);
  if (closed_) return Closed();
  STEPWELL_RETURN_IF_ERROR(check());
  const auto pending = pending_.find(step);
  const auto there = options_.live->Find(step);
  const bool live = there != nullptr;
  if (if_exists == IfExists::kSkip && (live || pending != pending_.end())) {
    *skip = true;
    if (pending != pending_.end()) return pending->second;
    auto state = NewState(step, true);
    state->on_finish = nullptr;
    {
      const io::MutexLock state_lock(&state->mutex);
      state->skipped = true;
    }
    state->Finish(OkStatus());
    return state;
  }
  if (if_exists == IfExists::kError && pending != pending_.end()) {
    return AlreadyExistsError(StrCat(path, ": step ", step, " is being saved already"));
  }
  if (if_exists == IfExists::kError && live) {
    const std::string& taint = there->record.taint;
    return AlreadyExistsError(StrCat(path, " has step ", step, " already",
                                     taint.empty() ? "" : StrCat(", which is tainted: ", taint),
                                     "; if_exists \"replace\" replaces it, \"skip\" keeps it"));
  }
  if (if_exists != IfExists::kReplace && IsPrepared(*options_.live, step)) {
    return AlreadyExistsError(StrCat(
        path, ": step ", step, " is prepared by several processes already, and not decided yet"));
  }
  if (live && there->record.pinned) {
    return FailedPreconditionError(
        StrCat(path, ": step ", step, " is pinned; unpin it to replace it"));
  }
  auto state = NewState(step, true);
  // A replaced save in flight keeps its own handle; this one is now the step's newest.
  pending_[step] = state;
  Record(state);
  ++saves_in_flight_;
  return state;
}

Result<std::shared_ptr<SaveHandle::State>> ChangesInFlight::AdmitChange(
    uint64_t step, const std::function<Status(const Saves&)>& check) {
  const io::MutexLock lock(&mutex_);
  if (closed_) return Closed();
  if (check) STEPWELL_RETURN_IF_ERROR(check(pending_));
  auto state = NewState(step, /*is_save=*/false);
  Record(state);
  return state;
}

std::shared_ptr<SaveHandle::State> ChangesInFlight::NewState(uint64_t step, bool is_save) {
  auto state = std::make_shared<State>(step, options_.callbacks, options_.pump);
  state->on_finish = [this, raw = state.get(), is_save](const std::function<bool()>& mark) {
    Finished(raw, is_save, mark);
  };
  return state;
}

// A change that Finished or EndAll will end.
void ChangesInFlight::Record(const std::shared_ptr<State>& state) {
  unfinished_.push_back(state);
  ++jobs_in_flight_;
}

// Keeps the first kFailedMax failed saves whose error no caller has read yet.
void ChangesInFlight::RecordFailure(const std::shared_ptr<State>& state) {
  std::erase_if(failed_, [](const auto& failed) {
    const io::MutexLock lock(&failed->mutex);
    return failed->reported;
  });
  if (failed_.size() < kFailedMax) failed_.push_back(state);
}

void ChangesInFlight::Finished(State* state, bool is_save, const std::function<bool()>& mark) {
  const io::MutexLock lock(&mutex_);
  if (!mark()) return;
  std::erase_if(unfinished_, [&](const auto& each) { return each.get() == state; });
  --jobs_in_flight_;
  if (is_save) {
    --saves_in_flight_;
    const Status& outcome = state->Outcome();
    const bool gave_up = outcome.code() == StatusCode::kCancelled;  // and was told so
    if (!outcome.ok() && !gave_up) {
      io::Quietly([&] { options_.instruments->Failed(state->step, outcome); });
    }
    const auto it = pending_.find(state->step);
    if (it != pending_.end() && it->second.get() == state) {
      if (!outcome.ok() && !gave_up) RecordFailure(it->second);
      pending_.erase(it);
    }
  }
  changed_.NotifyAll();
}

void ChangesInFlight::Forget(const std::shared_ptr<State>& save) {
  const io::MutexLock lock(&mutex_);
  const auto it = pending_.find(save->step);
  if (it != pending_.end() && it->second == save) pending_.erase(it);
  const io::MutexLock state_lock(&save->mutex);  // it may have failed, and been recorded, already
  save->reported = true;
}

void ChangesInFlight::EndAll() {
  for (;;) {
    std::shared_ptr<State> state;
    {
      const io::MutexLock lock(&mutex_);
      changed_.NotifyAll();
      if (unfinished_.empty()) return;
      state = std::move(unfinished_.back());
      unfinished_.pop_back();
    }
    state->Finish(lost_);
  }
}

bool ChangesInFlight::Close(const std::function<void()>& stop) {
  const io::MutexLock lock(&mutex_);
  if (closed_) return false;
  closed_ = true;
  stop();
  changed_.NotifyAll();
  return true;
}

void ChangesInFlight::WaitForChanges() {
  const io::MutexLock lock(&mutex_);
  WaitUntil([this]() STEPWELL_REQUIRES(mutex_) { return jobs_in_flight_ == 0; });
}

void ChangesInFlight::WaitForCalls() {
  const io::MutexLock lock(&mutex_);
  WaitUntil([this]() STEPWELL_REQUIRES(mutex_) { return calls_in_flight_ == 0; });
}

void ChangesInFlight::WaitForReclaim(const std::function<bool()>& panicked) {
  const io::MutexLock lock(&mutex_);
  WaitUntil([&]() STEPWELL_REQUIRES(mutex_) {
    return (reclaim_idle_ || panicked()) && calls_in_flight_ == 0;
  });
}

void ChangesInFlight::MarkReclaimIdle() {
  const io::MutexLock lock(&mutex_);
  reclaim_idle_ = true;
  changed_.NotifyAll();
}

void ChangesInFlight::Answer(const std::function<void()>& answer) {
  const io::MutexLock lock(&mutex_);
  answer();
  changed_.NotifyAll();
}

void ChangesInFlight::WaitForAnswer(const std::function<bool()>& answered) {
  const io::MutexLock lock(&mutex_);
  WaitUntil(answered);
}

Status ChangesInFlight::TakeError() {
  const io::MutexLock lock(&mutex_);
  Status first;
  for (const auto& state : failed_) {
    const io::MutexLock state_lock(&state->mutex);
    if (state->reported || !first.ok()) continue;
    state->reported = true;
    first =
        state->status.WithContext(StrCat(options_.path, ": saving step ", state->step, " failed"));
  }
  failed_.clear();
  return first;
}

size_t ChangesInFlight::SavesInFlight() const {
  const io::MutexLock lock(&mutex_);
  return saves_in_flight_;
}

}  // namespace stepwell::db
