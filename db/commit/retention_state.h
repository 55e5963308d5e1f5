// SPDX-License-Identifier: Apache-2.0
// Retention as commits go by: what StepsToDrop (retention.h) says of all live steps, at a cost that
// follows from what may be dropped, not from what is kept for good.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "db/commit/retention.h"

namespace stepwell::db {

class RetentionState {
 public:
  explicit RetentionState(std::vector<KeepRule> rules);

  bool has_rules() const { return !rules_.empty(); }
  // After changes that are not saves: the steps must be told again before the next Drop.
  void Reset();
  bool known() const { return known_; }
  void SetKnown() { known_ = true; }

  void Add(const KeepCandidate& step);  // or replaces it
  void Remove(uint64_t step);
  // The steps that the commit of `added`, which is not told yet, makes no rule keep; ascending.
  std::vector<uint64_t> Drop(const KeepCandidate& added);

 private:
  struct Kept {
    int64_t time_ns = 0;
    uint64_t stored_bytes = 0;
    bool pinned = false;
    std::string metrics_json;
    bool metrics_unknown = false;
  };
  bool IsKeptForGood(uint64_t step) const;
  std::vector<uint64_t> DropBeyondLatest(uint64_t added);

  const std::vector<KeepRule> rules_;
  const bool needs_metrics_;
  bool by_number_ = true;  // no rule looks at anything but numbers and pins
  uint64_t latest_ = 1;    // how many newest steps are kept; the one that is committed always is
  bool known_ = false;
  std::map<uint64_t, Kept> steps_;  // by_number_: without those that are kept for good
};

}  // namespace stepwell::db
