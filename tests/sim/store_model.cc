// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/store_model.h"

#include <utility>

namespace stepwell::sim {

std::string ToText(const Steps& steps) {
  std::string text = "{";
  for (const auto& [step, seed] : steps) text += StrCat(" ", step, ":", seed);
  return text + " }";
}

StoreModel::Outcome StoreModel::OutcomeOf(const Status& status) {
  if (status.ok()) return Outcome::kApplied;
  // A full disk is met before the commit: the change is not there and never will be.
  if (status.code() == StatusCode::kResourceExhausted) return Outcome::kRefused;
  return Outcome::kInDoubt;
}

StoreModel::Outcome StoreModel::OutcomeOf(const Change& change) {
  if (change.is_delete || change.outcome != Outcome::kInDoubt) return change.outcome;
  return change.handle.done() ? OutcomeOf(change.handle.status()) : Outcome::kInDoubt;
}

void StoreModel::Apply(const Change& change, Steps* steps) {
  steps->erase(change.step);
  if (change.is_delete) return;
  // The step being saved stays, whatever its number; the lowest others go.
  while (change.keep && steps->size() + 1 > *change.keep && !steps->empty()) {
    steps->erase(steps->begin());
  }
  (*steps)[change.step] = change.seed;
}

void StoreModel::Saved(uint64_t step, uint64_t seed, std::optional<uint64_t> keep,
                       db::SaveHandle handle) {
  changes_.push_back({false, step, seed, keep, std::move(handle), Outcome::kInDoubt});
}

void StoreModel::Deleted(uint64_t step, const Status& status) {
  changes_.push_back({true, step, 0, {}, {}, OutcomeOf(status)});
}

void StoreModel::Settle(Steps steps) {
  base_ = std::move(steps);
  changes_.clear();
}

Steps StoreModel::Newest() const {
  Steps steps = base_;
  for (const Change& change : changes_) {
    if (OutcomeOf(change) != Outcome::kRefused) Apply(change, &steps);
  }
  return steps;
}

std::vector<Steps> StoreModel::Legal() const {
  size_t applied = 0;  // changes that must be there
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (OutcomeOf(changes_[i]) == Outcome::kApplied) applied = i + 1;
  }
  std::vector<Steps> legal(1, base_);
  for (size_t i = 0; i < changes_.size(); ++i) {
    if (OutcomeOf(changes_[i]) == Outcome::kRefused) continue;
    Steps next = legal.back();
    Apply(changes_[i], &next);
    if (i < applied) {
      legal.back() = std::move(next);
    } else {
      legal.push_back(std::move(next));
    }
  }
  return legal;
}

}  // namespace stepwell::sim
