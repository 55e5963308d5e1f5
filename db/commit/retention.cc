// SPDX-License-Identifier: Apache-2.0
#include "db/commit/retention.h"

#include <stepwell/metrics.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/bytes.h"

namespace stepwell::db {
namespace {

using Kind = KeepRule::Kind;

// The metric's value; none when it is missing, no number, or not finite.
std::optional<double> Metric(std::string_view metrics_json, const std::string& name) {
  const auto metrics =
      nlohmann::json::parse(StrictJson(metrics_json), nullptr, /*allow_exceptions=*/false);
  if (!metrics.is_object()) return std::nullopt;
  const auto found = metrics.find(name);
  if (found == metrics.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// The best of those that can be ranked, and those that cannot: one of them may be the best. So what
// is kept has what would be kept if all could be read.
void KeepBest(const KeepRule& rule, std::span<const KeepCandidate> candidates,
              std::vector<bool>* keep) {
  std::vector<std::pair<double, size_t>> ranked;  // best first, of equals the newest
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].metrics_unknown) {
      (*keep)[i] = true;
    } else if (const auto value = Metric(candidates[i].metrics_json, rule.metric)) {
      ranked.emplace_back(rule.larger_is_better ? -*value : *value, i);
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < std::min<size_t>(rule.count, ranked.size()); ++i) {
    (*keep)[ranked[i].second] = true;
  }
}

void KeepWithinBytes(uint64_t budget, std::span<const KeepCandidate> candidates, size_t added,
                     std::vector<bool>* keep) {
  // The step being committed is there in any case, so it takes its part first.
  uint64_t used = candidates[added].stored_bytes;
  for (size_t i = candidates.size(); i-- > 0;) {
    if (i == added) continue;
    if (used > budget || candidates[i].stored_bytes > budget - used) return;
    used += candidates[i].stored_bytes;
    (*keep)[i] = true;
  }
}

void Keep(const KeepRule& rule, std::span<const KeepCandidate> candidates, size_t added,
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
      KeepBest(rule, candidates, keep);
      break;
    case Kind::kDuration:
      for (size_t i = 0; i < count; ++i) {
        const int64_t age = candidates[added].time_ns - candidates[i].time_ns;
        if (age <= rule.duration.count()) (*keep)[i] = true;
      }
      break;
    case Kind::kBytes:
      KeepWithinBytes(rule.count, candidates, added, keep);
      break;
    case Kind::kPinned:
      break;
  }
}

}  // namespace

std::string DoubtOf(std::span<const KeepRule> rules, uint64_t step, std::optional<uint64_t> newest,
                    std::string_view metrics_json) {
  for (const KeepRule& rule : rules) {
    if (rule.kind == Kind::kBest && !Metric(metrics_json, rule.metric)) {
      return StrCat("step ", step, " is saved without a finite metric \"", rule.metric,
                    "\", so the rule that keeps the best by it does not keep this step");
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
    const auto bad = [](const auto&... what) { return InvalidArgumentError(StrCat(what...)); };
    switch (rule.kind) {
      case Kind::kLatest:
        if (rule.count == 0) return bad("keeping the latest 0 steps: at least 1 must be kept");
        break;
      case Kind::kEvery:
        if (rule.count == 0) return bad("keeping every 0th step: n must be at least 1");
        break;
      case Kind::kBest:
        if (rule.count == 0) return bad("keeping the best 0 steps: n must be at least 1");
        if (rule.metric.empty()) return bad("keeping the best steps needs the name of a metric");
        break;
      case Kind::kDuration:
        if (rule.duration.count() < 0) return bad("keeping steps for a negative duration");
        break;
      case Kind::kBytes:
        if (rule.count == 0)
          return bad("keeping steps within 0 bytes: the budget must be positive");
        break;
      case Kind::kPinned:
        break;
    }
  }
  return OkStatus();
}

bool NeedsMetrics(std::span<const KeepRule> rules) {
  return std::any_of(rules.begin(), rules.end(),
                     [](const KeepRule& rule) { return rule.kind == Kind::kBest; });
}

std::vector<size_t> StepsToDrop(std::span<const KeepRule> rules,
                                std::span<const KeepCandidate> candidates, size_t added) {
  if (rules.empty()) return {};
  std::vector<bool> keep(candidates.size(), false);
  for (const KeepRule& rule : rules) Keep(rule, candidates, added, &keep);
  std::vector<size_t> drop;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!keep[i] && i != added && !candidates[i].pinned) drop.push_back(i);
  }
  return drop;
}

}  // namespace stepwell::db
