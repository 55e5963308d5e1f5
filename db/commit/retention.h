// SPDX-License-Identifier: Apache-2.0
// Which steps retention keeps: pure, decided once per commit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stepwell/keep.h>

#include "io/status.h"

namespace stepwell::db {

using stepwell::KeepRule;

// kInvalidArgument naming the rule that makes no sense.
Status CheckRules(std::span<const KeepRule> rules);
// Returns true if some rule needs metrics.
bool NeedsMetrics(std::span<const KeepRule> rules);

// For people: what the rules are going to make of this save that its caller may not have meant. ""
// where there is nothing to say. `newest`: the highest step that is there.
std::string NotKeptWarning(std::span<const KeepRule> rules, uint64_t step,
                           std::optional<uint64_t> newest, std::string_view metrics_json);

// The facts about one committed step that the rules look at.
struct KeepCandidate {
  uint64_t step = 0;
  int64_t time_ns = 0;
  uint64_t stored_bytes = 0;  // payloads, and the step's own frames
  bool pinned = false;
  std::string metrics_json;       // empty: none
  bool metrics_unknown = false;   // they cannot be read: it may be the best
  bool is_old = false;            // saved before this session began
  uint64_t referenced_bytes = 0;  // of stored_bytes: what earlier steps wrote
  bool tainted = false;
  bool verified = false;
};
// For each rule, whether it keeps each of the candidates once the one at `added` is committed.
// A rule on a metric that no candidate has cannot tell the good from the bad, and takes nothing
// away: it keeps the old ones, and where no other rule says what becomes of the rest, all.
std::vector<std::vector<bool>> KeptByRules(std::span<const KeepRule> rules,
                                           std::span<const KeepCandidate> candidates, size_t added);

// The newest candidate that is not tainted, but for the one at `added`, if a tainted one is newer:
// kept beside what the rules keep, since the step at `added` may turn out to be tainted, too. So a
// run whose steps are tainted one after the other can go back to a good one.
std::optional<size_t> KeptUntainted(std::span<const KeepCandidate> candidates, size_t added);

// Indices of the candidates that no rule keeps, nor KeptUntainted. `candidates` ascend by step and
// include the step being committed, at `added`. No rules: keeps everything.
std::vector<size_t> StepsToDrop(std::span<const KeepRule> rules,
                                std::span<const KeepCandidate> candidates, size_t added);

// Returns the names of those metrics that are numbers in some candidate.
std::set<std::string> MetricNames(std::span<const KeepCandidate> candidates);

// Retention as commits go by: what StepsToDrop says of all live steps, at a cost that follows from
// what may be dropped, not from what is kept for good.
class RetentionState {
 public:
  explicit RetentionState(std::vector<KeepRule> rules);

  bool has_rules() const { return !rules_.empty(); }
  // After changes that are not saves, and before a tainted step is added: the steps must be told
  // again before the next Drop.
  void Reset();
  bool known() const { return known_; }
  void SetKnown() { known_ = true; }

  void Add(KeepCandidate step);  // or replaces it
  void Remove(uint64_t step);
  // The steps that the commit of `added`, which is not told yet, makes no rule keep; ascending.
  std::vector<uint64_t> Drop(const KeepCandidate& added);

 private:
  bool IsKeptForGood(uint64_t step) const;
  std::vector<uint64_t> DropBeyondLatest(uint64_t added);

  const std::vector<KeepRule> rules_;
  const bool needs_metrics_;
  bool by_number_ = true;  // no rule looks at anything but numbers and pins
  uint64_t latest_ = 1;    // how many newest steps are kept; the one that is committed always is
  bool known_ = false;
  // By number; with by_number_, without those that are kept for good.
  std::map<uint64_t, KeepCandidate> steps_;
  std::set<uint64_t> tainted_;  // of these; while there are some, all steps are looked at
};

}  // namespace stepwell::db
