// SPDX-License-Identifier: Apache-2.0
#include "db/commit/retention_state.h"

#include <algorithm>
#include <utility>

namespace stepwell::db {

using RuleKind = KeepRule::Kind;

RetentionState::RetentionState(std::vector<KeepRule> rules)
    : rules_(std::move(rules)), needs_metrics_(NeedsMetrics(rules_)) {
  for (const KeepRule& rule : rules_) {
    if (rule.kind == RuleKind::kLatest) latest_ = std::max(latest_, rule.count);
    by_number_ = by_number_ && (rule.kind == RuleKind::kLatest || rule.kind == RuleKind::kEvery ||
                                rule.kind == RuleKind::kPinned);
  }
}

void RetentionState::Reset() {
  steps_.clear();
  known_ = false;
}

void RetentionState::Add(const KeepCandidate& step) {
  Kept& kept = steps_[step.step];
  kept = {step.time_ns, step.stored_bytes, step.pinned, {}, step.metrics_unknown};
  if (needs_metrics_) kept.metrics_json = step.metrics_json;
}

void RetentionState::Remove(uint64_t step) { steps_.erase(step); }

bool RetentionState::IsKeptForGood(uint64_t step) const {
  return std::any_of(rules_.begin(), rules_.end(), [step](const KeepRule& rule) {
    return rule.kind == RuleKind::kEvery && step % rule.count == 0;
  });
}

// All but the newest go, unless something else keeps them. Saves only push steps out of the newest,
// so what is then kept for good need not be looked at again.
std::vector<uint64_t> RetentionState::DropBeyondLatest(uint64_t added) {
  std::vector<uint64_t> drop;
  const uint64_t others = steps_.size() - steps_.count(added);
  uint64_t beyond = others > latest_ - 1 ? others - (latest_ - 1) : 0;
  for (auto it = steps_.begin(); beyond > 0;) {
    const auto step = it++;
    if (step->first == added) continue;
    --beyond;
    if (IsKeptForGood(step->first)) {
      // The last one is among the newest again should this commit come to nothing.
      if (beyond > 0) steps_.erase(step);
    } else if (!step->second.pinned) {
      drop.push_back(step->first);
    }
  }
  return drop;
}

std::vector<uint64_t> RetentionState::Drop(const KeepCandidate& added) {
  if (by_number_) return DropBeyondLatest(added.step);
  std::vector<KeepCandidate> candidates;
  candidates.reserve(steps_.size() + 1);
  auto it = steps_.begin();
  const auto add_until = [&](auto end) {
    for (; it != end; ++it) {
      const Kept& kept = it->second;
      candidates.push_back({it->first, kept.time_ns, kept.stored_bytes, kept.pinned,
                            kept.metrics_json, kept.metrics_unknown});
    }
  };
  add_until(steps_.lower_bound(added.step));
  const size_t at = candidates.size();
  candidates.push_back(added);
  if (it != steps_.end() && it->first == added.step) ++it;  // which is replaced
  add_until(steps_.end());
  std::vector<uint64_t> drop;
  for (const size_t i : StepsToDrop(rules_, candidates, at)) drop.push_back(candidates[i].step);
  return drop;
}

}  // namespace stepwell::db
