// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/store_model.h"

#include <algorithm>
#include <utility>

namespace stepwell::sim {

std::string ToText(const Steps& steps) {
  std::string text = "{";
  for (const auto& [step, held] : steps) {
    text +=
        StrCat(" ", step, ":", SeedOf(held), held & kPinned ? "p" : "", held & kTainted ? "t" : "",
               held & kVerified ? "v" : "", held & kHasExtra ? "x" : "");
  }
  return text + " }";
}

std::optional<uint64_t> NewestIn(const Steps& steps) {
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if (!(it->second & kTainted)) return it->first;
  }
  return std::nullopt;
}

std::optional<uint64_t> LastVerifiedIn(const Steps& steps) {
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if ((it->second & (kVerified | kTainted)) == kVerified) return it->first;
  }
  return std::nullopt;
}

StoreModel::Outcome StoreModel::OutcomeOf(const Status& status) {
  if (status.ok()) return Outcome::kApplied;
  if (status.code() == StatusCode::kOutcomeUnknown) return Outcome::kUnknown;
  // The machine stopped: as if the answer had never come.
  if (status.code() == StatusCode::kAborted) return Outcome::kInFlight;
  return Outcome::kRefused;  // any other error: the change is not there and never will be
}

StoreModel::Outcome StoreModel::OutcomeOf(const Change& change) {
  if (change.kind != Kind::kSave || change.outcome != Outcome::kInFlight) return change.outcome;
  return change.handle.done() ? OutcomeOf(change.handle.status()) : Outcome::kInFlight;
}

void StoreModel::Apply(const Change& change, Steps* steps) {
  const auto it = steps->find(change.step);
  switch (change.kind) {
    case Kind::kPin:
      if (it != steps->end()) it->second |= kPinned;
      return;
    case Kind::kUnpin:
      if (it != steps->end()) it->second &= ~kPinned;
      return;
    case Kind::kTaint:
      if (it != steps->end()) it->second |= kTainted;
      return;
    case Kind::kUntaint:
      if (it != steps->end()) it->second &= ~kTainted;
      return;
    case Kind::kDeleteExtra:
      if (it != steps->end()) it->second &= ~kHasExtra;
      return;
    case Kind::kVerify:
      if (it != steps->end()) it->second |= kVerified;
      return;
    case Kind::kVerifyAll:
      for (auto& [step, held] : *steps) held |= kVerified;
      return;
    case Kind::kDelete:
      steps->erase(change.step);
      return;
    case Kind::kSave:
      break;
  }
  steps->erase(change.step);
  // The step being saved stays, whatever its number; the lowest others go, but for pinned ones, for
  // the newest that is not tainted, if it is not the newest of all, and for the newest verified one
  // where a rule says so.
  const std::optional<uint64_t> newest = NewestIn(*steps);
  const bool stays = newest && *newest != steps->rbegin()->first;
  if (change.keep && steps->size() + 1 > change.keep->latest) {
    uint64_t low = steps->size() + 1 - change.keep->latest;
    std::optional<uint64_t> verified;
    if (change.keep->last_verified) verified = LastVerifiedIn(*steps);
    std::erase_if(*steps, [&](const auto& step) {
      return low > 0 && low-- > 0 && !(step.second & kPinned) &&
             !(stays && step.first == *newest) && step.first != verified;
    });
  }
  for (const uint64_t step : change.retire) {
    const auto retired = steps->find(step);
    if (retired != steps->end() && !(retired->second & kPinned)) steps->erase(retired);
  }
  (*steps)[change.step] = change.held;
}

void StoreModel::Saved(uint64_t step, uint64_t held, std::optional<Keep> keep,
                       db::SaveHandle handle, std::vector<uint64_t> retire) {
  changes_.push_back(
      {Kind::kSave, step, held, keep, std::move(handle), Outcome::kInFlight, std::move(retire)});
}

void StoreModel::Deleted(uint64_t step, const Status& status) {
  changes_.push_back({Kind::kDelete, step, 0, {}, {}, OutcomeOf(status)});
}

void StoreModel::PinSet(uint64_t step, bool pinned, const Status& status) {
  changes_.push_back({pinned ? Kind::kPin : Kind::kUnpin, step, 0, {}, {}, OutcomeOf(status)});
}

void StoreModel::TaintSet(uint64_t step, bool tainted, const Status& status) {
  changes_.push_back({tainted ? Kind::kTaint : Kind::kUntaint, step, 0, {}, {}, OutcomeOf(status)});
}

void StoreModel::ExtraDeleted(uint64_t step, const Status& status) {
  changes_.push_back({Kind::kDeleteExtra, step, 0, {}, {}, OutcomeOf(status)});
}

void StoreModel::Verified(std::optional<uint64_t> step, const Status& status) {
  const Kind kind = step ? Kind::kVerify : Kind::kVerifyAll;
  changes_.push_back({kind, step.value_or(0), 0, {}, {}, OutcomeOf(status)});
}

void StoreModel::Settle(Steps steps) { Begin({std::move(steps)}); }

void StoreModel::Begin(std::vector<Steps> legal) {
  bases_ = std::move(legal);
  changes_.clear();
}

Steps StoreModel::Newest() const {
  Steps steps = bases_.back();
  for (const Change& change : changes_) {
    if (OutcomeOf(change) != Outcome::kRefused) Apply(change, &steps);
  }
  return steps;
}

std::vector<Steps> StoreModel::Legal() const {
  size_t applied = 0;  // changes that are decided
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (OutcomeOf(changes_[i]) == Outcome::kApplied) applied = i + 1;
  }
  std::vector<Steps> legal;          // where a change in flight did not come, so none after it
  std::vector<Steps> open = bases_;  // what later changes are made to
  for (size_t i = 0; i < changes_.size(); ++i) {
    const Change& change = changes_[i];
    const Outcome outcome = OutcomeOf(change);
    if (outcome == Outcome::kRefused) continue;
    std::vector<Steps> either;
    if (outcome == Outcome::kUnknown && tolerant_) {
      either = open;
    } else if (i >= applied) {
      legal.insert(legal.end(), open.begin(), open.end());
    }
    for (Steps& steps : open) {
      Apply(change, &steps);
      if (std::find(either.begin(), either.end(), steps) == either.end()) {
        either.push_back(std::move(steps));
      }
    }
    open = std::move(either);
  }
  legal.insert(legal.end(), open.begin(), open.end());
  return legal;
}

}  // namespace stepwell::sim
