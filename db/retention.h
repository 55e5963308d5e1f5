// SPDX-License-Identifier: Apache-2.0
// Which steps retention keeps: pure, decided once per commit.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/status.h"

namespace stepwell::db {

// One rule. A step is kept when any rule of the store keeps it, when it is pinned, or when it is
// the one being committed.
struct KeepRule {
  enum class Kind {
    kLatest,    // the `count` highest steps
    kEvery,     // steps that are multiples of `count`
    kBest,      // the `count` steps with the best `metric`; steps without it are not kept by this
    kDuration,  // steps committed at most `duration` before the newest commit
    kBytes,     // the highest steps that together take at most `count` stored bytes
    kPinned,    // nothing but what is kept anyway
  };
  Kind kind = Kind::kLatest;
  uint64_t count = 0;  // kLatest, kBest: >= 1; kEvery: >= 1; kBytes: >= 1
  std::chrono::nanoseconds duration{0};
  std::string metric{};           // kBest: a key of the step's metrics, a JSON object of numbers
  bool larger_is_better = false;  // kBest
};

// kInvalidArgument naming the rule that makes no sense.
Status CheckRules(std::span<const KeepRule> rules);
// Whether some rule asks for metrics.
bool NeedsMetrics(std::span<const KeepRule> rules);

// What the rules look at of one committed step.
struct KeepCandidate {
  uint64_t step = 0;
  int64_t time_ns = 0;
  uint64_t stored_bytes = 0;
  bool pinned = false;
  std::string_view metrics_json;  // empty: none
};
// Indices of the candidates that no rule keeps. `candidates` ascend by step and include the step
// being committed, at `added`. No rules: keeps everything.
std::vector<size_t> StepsToDrop(std::span<const KeepRule> rules,
                                std::span<const KeepCandidate> candidates, size_t added);

}  // namespace stepwell::db
