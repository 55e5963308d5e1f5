// SPDX-License-Identifier: Apache-2.0
#include "db/save/state.h"

namespace stepwell {

namespace {

Status NoSave() { return FailedPreconditionError("the handle is of no save"); }

}  // namespace

uint64_t SaveHandle::step() const { return state_ == nullptr ? 0 : state_->step; }

bool SaveHandle::done() const {
  if (state_ == nullptr) return true;
  const io::MutexLock lock(&state_->mutex);
  return state_->done;
}

bool SaveHandle::skipped() const {
  if (state_ == nullptr) return false;
  const io::MutexLock lock(&state_->mutex);
  return state_->skipped;
}

std::optional<SaveStats> SaveHandle::stats() const {
  if (state_ == nullptr) return std::nullopt;
  const io::MutexLock lock(&state_->mutex);
  return state_->done && state_->status.ok() ? state_->stats : std::nullopt;
}

bool SaveHandle::WaitFor(std::chrono::milliseconds timeout) const {
  if (state_ == nullptr) return true;
  if (state_->pump) {
    while (!done()) state_->pump();
    return true;
  }
  const auto begin = std::chrono::steady_clock::now();
  const io::MutexLock lock(&state_->mutex);
  if (timeout.count() < 0) {
    while (!state_->done) state_->finished.Wait(&state_->mutex);
    return true;
  }
  while (!state_->done && state_->finished.WaitUntil(&state_->mutex, begin + timeout)) {
  }
  return state_->done;
}

Status SaveHandle::Wait() const {
  (void)WaitFor(std::chrono::milliseconds(-1));
  return status();
}

Status SaveHandle::status() const {
  if (state_ == nullptr) return NoSave();
  const io::MutexLock lock(&state_->mutex);
  if (!state_->done) return FailedPreconditionError("the save is still under way");
  state_->reported = true;
  return state_->status;
}

void SaveHandle::OnComplete(std::function<void(const Status&)> callback) const {
  if (state_ == nullptr) {
    callback(NoSave());
    return;
  }
  Status outcome;
  {
    const io::MutexLock lock(&state_->mutex);
    if (!state_->done) {
      state_->callbacks.push_back(
          [state = state_, callback = std::move(callback)] { callback(state->Outcome()); });
      return;
    }
    state_->reported = true;
    outcome = state_->status;
  }
  state_->callbacks_on->Run([callback = std::move(callback), outcome] { callback(outcome); });
}

}  // namespace stepwell
