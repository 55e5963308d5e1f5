// SPDX-License-Identifier: Apache-2.0
// Which steps retention keeps: pure, decided once per commit.
#pragma once

#include <cstdint>
#include <optional>
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
// Whether some rule asks for metrics.
bool NeedsMetrics(std::span<const KeepRule> rules);

// For people: what the rules are going to make of this save that its caller may not have meant. ""
// where there is nothing to say. `newest`: the highest step that is there.
std::string DoubtOf(std::span<const KeepRule> rules, uint64_t step, std::optional<uint64_t> newest,
                    std::string_view metrics_json);

// What the rules look at of one committed step.
struct KeepCandidate {
  uint64_t step = 0;
  int64_t time_ns = 0;
  uint64_t stored_bytes = 0;
  bool pinned = false;
  std::string_view metrics_json;  // empty: none
  bool metrics_unknown = false;   // they cannot be read: it may be the best
};
// Indices of the candidates that no rule keeps. `candidates` ascend by step and include the step
// being committed, at `added`. No rules: keeps everything.
std::vector<size_t> StepsToDrop(std::span<const KeepRule> rules,
                                std::span<const KeepCandidate> candidates, size_t added);

}  // namespace stepwell::db
