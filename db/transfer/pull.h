// SPDX-License-Identifier: Apache-2.0
// Plans a pull of a step from a run: the payloads that the store has no content for, and the step
// as a save (DESIGN.md, "Pushed runs"). The caller moves bytes; none of them is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "db/store.h"
#include "format/pushed.h"

namespace stepwell::db {

// Bytes of an object that are to be fetched.
struct PullRange {
  size_t object = 0;  // index in the list's objects
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

struct PullOptions {
  std::vector<std::string> items{};  // names of items that are there; empty: all, and the metrics
  // A step that needs more memory is refused (kResourceExhausted); 0: the machine's.
  uint64_t memory_bytes_max = 0;
};

class PullPlan {
 public:
  // Takes from `store` what its steps have of `list`: these are read now. kDataLoss: a list that
  // contradicts itself.
  static Result<PullPlan> Make(StoreReader& store, format::PushedStep list,
                               const PullOptions& options);
  PullPlan(PullPlan&&) noexcept;
  PullPlan& operator=(PullPlan&&) noexcept;
  ~PullPlan();

  const format::PushedStep& list() const;
  // Those of one object ascend, and do not overlap.
  const std::vector<PullRange>& ranges() const;
  // The bytes of a range: they are checked, and decoded once all are there that a chunk needs.
  // kDataLoss: they are not what was pushed; others may be tried. Thread-safe for different ranges.
  Status Accept(size_t range, ConstBytes bytes);
  // The step, once every range was accepted; arrays are held by LeafInput::hold. Once.
  Result<SaveRequest> Request();

 private:
  struct State;
  explicit PullPlan(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace stepwell::db
