// SPDX-License-Identifier: Apache-2.0
// Retention: which steps a store keeps by itself. The rest is deleted with each commit.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace stepwell {

// One rule. A step is kept when any rule of the store keeps it, when it is pinned, when it is the
// one being committed, or when it is the newest of the others that is not tainted and a tainted one
// is newer.
struct KeepRule {
  enum class Kind {
    kLatest,    // the `count` highest steps
    kEvery,     // steps that are multiples of `count`
    kBest,      // the `count` untainted steps with the best `metric`; others are not kept by this.
                // While no step has it, the rule takes nothing away: it keeps what was there when
                // the store was opened, and as the only rule all
    kDuration,  // steps committed at most `duration` before the newest commit. The time between
                // the last commit of one session and the first of the next does not count, nor does
                // a clock that is set meanwhile
    kBytes,     // the highest steps that together take at most `count` stored bytes
    kPinned,    // nothing but what is kept anyway
    kLastVerified,  // the newest step that is not tainted and that the last Verify which recorded
                    // it, in a store open for writing, found whole; none while there is none
  };

  static KeepRule Latest(uint64_t count) { return {.kind = Kind::kLatest, .count = count}; }
  static KeepRule Every(uint64_t steps) { return {.kind = Kind::kEvery, .count = steps}; }
  static KeepRule Best(uint64_t count, std::string metric, bool larger_is_better = false) {
    return {.kind = Kind::kBest,
            .count = count,
            .metric = std::move(metric),
            .larger_is_better = larger_is_better};
  }
  static KeepRule Within(std::chrono::nanoseconds age) {
    return {.kind = Kind::kDuration, .duration = age};
  }
  static KeepRule Bytes(uint64_t stored_bytes) {
    return {.kind = Kind::kBytes, .count = stored_bytes};
  }
  static KeepRule Pinned() { return {.kind = Kind::kPinned}; }
  static KeepRule LastVerified() { return {.kind = Kind::kLastVerified}; }

  Kind kind = Kind::kLatest;
  uint64_t count = 0;  // kLatest, kBest: >= 1; kEvery: >= 1; kBytes: >= 1
  std::chrono::nanoseconds duration{0};
  std::string metric{};           // kBest: a key of the step's metrics, a JSON object of numbers
  bool larger_is_better = false;  // kBest
};

}  // namespace stepwell
