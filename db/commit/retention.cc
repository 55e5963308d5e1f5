// SPDX-License-Identifier: Apache-2.0
#include "db/commit/retention.h"

#include <stepwell/metrics.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include "io/bytes.h"

namespace stepwell::db {
namespace {

using Kind = KeepRule::Kind;

nlohmann::json Parsed(std::string_view metrics_json) {
  return nlohmann::json::parse(StrictJson(metrics_json), nullptr, /*allow_exceptions=*/false);
}

std::optional<double> FiniteNumber(const nlohmann::json& metric) {
  if (!metric.is_number()) return std::nullopt;
  const double value = metric.get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// The metric's value; none when it is missing, no number, or not finite.
std::optional<double> Metric(std::string_view metrics_json, const std::string& name) {
  const auto metrics = Parsed(metrics_json);
  if (!metrics.is_object()) return std::nullopt;
  const auto found = metrics.find(name);
  return found == metrics.end() ? std::nullopt : FiniteNumber(*found);
}

// The best of those that can be ranked, and those that cannot: one of them may be the best. So what
// is kept has what would be kept if all could be read. A tainted step takes no other's place: it is
// not one to go back to, however good its metric looks.
// False: no candidate has the metric.
bool KeepBest(const KeepRule& rule, std::span<const KeepCandidate> candidates,
              std::vector<bool>* keep) {
  std::vector<std::pair<double, size_t>> ranked;  // best first, of equals the newest
  bool any_has_it = false;
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].metrics_unknown) {
      (*keep)[i] = !candidates[i].tainted;
    } else if (const auto value = Metric(candidates[i].metrics_json, rule.metric)) {
      any_has_it = true;
      if (candidates[i].tainted) continue;
      ranked.emplace_back(rule.larger_is_better ? -*value : *value, i);
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < std::min<size_t>(rule.count, ranked.size()); ++i) {
    (*keep)[ranked[i].second] = true;
  }
  return any_has_it;
}

// The oldest of the steps that are kept counts all of its bytes, also those that it refers to. A
// newer step counts what it owns, since it refers to an older one for the rest.
void KeepWithinBytes(uint64_t budget, std::span<const KeepCandidate> candidates, size_t added,
                     std::vector<bool>* keep) {
  // The step being committed is there in any case, so it takes its part first.
  uint64_t newer = 0;  // all but the oldest
  size_t oldest = added;
  if (candidates[added].stored_bytes > budget) return;
  for (size_t i = candidates.size(); i-- > 0;) {
    if (i == added) continue;
    const uint64_t owned = candidates[oldest].stored_bytes - candidates[oldest].referenced_bytes;
    if (newer + owned > budget || candidates[i].stored_bytes > budget - newer - owned) return;
    newer += owned;
    oldest = i;
    (*keep)[i] = true;
  }
}

// False: the rule has nothing to go by.
bool Keep(const KeepRule& rule, std::span<const KeepCandidate> candidates, size_t added,
          std::vector<bool>* keep) {
  const size_t count = candidates.size();
  switch (rule.kind) {
    case Kind::kLatest: {
      // The step being committed counts as one of them whatever its number.
      uint64_t kept = 1;
      for (size_t i = count; i-- > 0 && kept < rule.count;) {
        if (i == added) continue;
        (*keep)[i] = true;
        ++kept;
      }
      break;
    }
    case Kind::kEvery:
      for (size_t i = 0; i < count; ++i) {
        if (candidates[i].step % rule.count == 0) (*keep)[i] = true;
      }
      break;
    case Kind::kBest:
      return KeepBest(rule, candidates, keep);
    case Kind::kDuration:
      for (size_t i = 0; i < count; ++i) {
        const int64_t age = candidates[added].time_ns - candidates[i].time_ns;
        if (age <= rule.duration.count()) (*keep)[i] = true;
      }
      break;
    case Kind::kBytes:
      KeepWithinBytes(rule.count, candidates, added, keep);
      break;
    case Kind::kLastVerified:
      for (size_t i = count; i-- > 0;) {
        if (!candidates[i].verified || candidates[i].tainted) continue;
        (*keep)[i] = true;
        break;
      }
      break;
    case Kind::kPinned:
      break;
  }
  return true;
}

// The error for a rule with a count of 0.
std::string NothingKept(Kind kind) {
  if (kind == Kind::kLatest) return "keeping the latest 0 steps: at least 1 must be kept";
  if (kind == Kind::kEvery) return "keeping every 0th step: n must be at least 1";
  if (kind == Kind::kBest) return "keeping the best 0 steps: n must be at least 1";
  return "keeping steps within 0 bytes: the budget must be positive";
}

}  // namespace

std::string NotKeptWarning(std::span<const KeepRule> rules, uint64_t step,
                           std::optional<uint64_t> newest, std::string_view metrics_json) {
  for (const KeepRule& rule : rules) {
    if (rule.kind == Kind::kBest && !Metric(metrics_json, rule.metric)) {
      return StrCat(
          "step ", step, " is saved without a finite metric \"", rule.metric,
          "\", so the rule that keeps the best by it does not keep this step once another has "
          "one");
    }
    const bool counts_latest = rule.kind == Kind::kLatest || rule.kind == Kind::kBytes;
    if (counts_latest && newest && step < *newest) {
      return StrCat("step ", step, " is saved below step ", *newest,
                    ": the rule that keeps the latest goes by the steps' numbers, so the next save "
                    "may delete this one; to go back to an earlier step, delete those after it");
    }
  }
  return {};
}

Status CheckRules(std::span<const KeepRule> rules) {
  for (const KeepRule& rule : rules) {
    const bool counts = rule.kind != Kind::kDuration && rule.kind != Kind::kPinned &&
                        rule.kind != Kind::kLastVerified;
    if (counts && rule.count == 0) return InvalidArgumentError(NothingKept(rule.kind));
    if (rule.kind == Kind::kBest && rule.metric.empty()) {
      return InvalidArgumentError("keeping the best steps needs the name of a metric");
    }
    if (rule.kind == Kind::kDuration && rule.duration.count() < 0) {
      return InvalidArgumentError("keeping steps for a negative duration");
    }
  }
  return OkStatus();
}

bool NeedsMetrics(std::span<const KeepRule> rules) {
  return std::any_of(rules.begin(), rules.end(),
                     [](const KeepRule& rule) { return rule.kind == Kind::kBest; });
}

std::vector<std::vector<bool>> KeptByRules(std::span<const KeepRule> rules,
                                           std::span<const KeepCandidate> candidates,
                                           size_t added) {
  std::vector<std::vector<bool>> kept(rules.size(), std::vector<bool>(candidates.size(), false));
  std::vector<size_t> blind;
  bool others = false;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (!Keep(rules[i], candidates, added, &kept[i])) {
      blind.push_back(i);
    } else if (rules[i].kind != Kind::kPinned) {
      others = true;
    }
  }
  for (const size_t i : blind) {
    for (size_t c = 0; c < candidates.size(); ++c) {
      if (!others || candidates[c].is_old) kept[i][c] = true;
    }
  }
  return kept;
}

std::optional<size_t> KeptUntainted(std::span<const KeepCandidate> candidates, size_t added) {
  bool any_tainted = candidates[added].tainted;
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].tainted) {
      any_tainted = true;
    } else if (i != added) {
      return any_tainted ? std::optional(i) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::vector<size_t> StepsToDrop(std::span<const KeepRule> rules,
                                std::span<const KeepCandidate> candidates, size_t added) {
  if (rules.empty()) return {};
  const auto kept = KeptByRules(rules, candidates, added);
  const auto untainted = KeptUntainted(candidates, added);
  std::vector<size_t> drop;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (i == untainted) continue;
    const bool keep = std::any_of(kept.begin(), kept.end(), [i](const auto& by) { return by[i]; });
    if (!keep && i != added && !candidates[i].pinned) drop.push_back(i);
  }
  return drop;
}

std::set<std::string> MetricNames(std::span<const KeepCandidate> candidates) {
  std::set<std::string> names;
  for (const KeepCandidate& candidate : candidates) {
    const auto metrics = Parsed(candidate.metrics_json);
    if (!metrics.is_object()) continue;
    for (const auto& [name, metric] : metrics.items()) {
      if (FiniteNumber(metric)) names.insert(name);
    }
  }
  return names;
}

RetentionState::RetentionState(std::vector<KeepRule> rules)
    : rules_(std::move(rules)), needs_metrics_(NeedsMetrics(rules_)) {
  for (const KeepRule& rule : rules_) {
    if (rule.kind == Kind::kLatest) latest_ = std::max(latest_, rule.count);
    by_number_ = by_number_ && (rule.kind == Kind::kLatest || rule.kind == Kind::kEvery ||
                                rule.kind == Kind::kPinned);
  }
}

void RetentionState::Reset() {
  steps_.clear();
  tainted_.clear();
  known_ = false;
}

void RetentionState::Add(KeepCandidate step) {
  if (!needs_metrics_) step.metrics_json.clear();
  const uint64_t number = step.step;
  if (step.tainted) {
    tainted_.insert(number);
  } else {
    tainted_.erase(number);
  }
  steps_[number] = std::move(step);
}

void RetentionState::Remove(uint64_t step) {
  steps_.erase(step);
  tainted_.erase(step);
}

bool RetentionState::IsKeptForGood(uint64_t step) const {
  return std::any_of(rules_.begin(), rules_.end(), [step](const KeepRule& rule) {
    return rule.kind == Kind::kEvery && step % rule.count == 0;
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
  if (by_number_ && tainted_.empty() && !added.tainted) return DropBeyondLatest(added.step);
  std::vector<KeepCandidate> candidates;
  candidates.reserve(steps_.size() + 1);
  for (const auto& [number, step] : steps_) {
    if (number < added.step) candidates.push_back(step);
  }
  const size_t at = candidates.size();
  candidates.push_back(added);  // instead of one that it replaces
  for (auto it = steps_.upper_bound(added.step); it != steps_.end(); ++it) {
    candidates.push_back(it->second);
  }
  std::vector<uint64_t> drop;
  for (const size_t i : StepsToDrop(rules_, candidates, at)) drop.push_back(candidates[i].step);
  return drop;
}

}  // namespace stepwell::db

namespace stepwell {

std::string StrictJson(std::string_view python_json) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < python_json.size(); ++i) {
    if (in_string && python_json[i] == '\\') {
      out += python_json.substr(i++, 2);
      continue;
    }
    if (python_json[i] == '"') in_string = !in_string;
    bool replaced = false;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (in_string || !python_json.substr(i).starts_with(word)) continue;
      out.append("\"").append(word).append("\"");
      i += word.size() - 1;
      replaced = true;
      break;
    }
    if (!replaced) out += python_json[i];
  }
  return out;
}

}  // namespace stepwell
