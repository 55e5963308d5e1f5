// SPDX-License-Identifier: Apache-2.0
// What differs between two steps: their structure, then the bytes of what both have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <stepwell/step.h>

#include "api/cli/compare.h"
#include "api/cli/tree.h"

namespace stepwell::cli {

// One side of the comparison.
struct DiffSide {
  Step step;
  std::vector<Entry> entries;
};

// Something that stands at the same path in both steps.
struct DiffPair {
  const Entry* a = nullptr;
  const Entry* b = nullptr;
  // What differs about it: "type", "dtype", "shape", "container"; then, of its bytes, "data".
  std::vector<std::string> changes;
  // Set for arrays of the same dtype and shape that had to be read.
  std::optional<ArrayComparison> data;
  bool value_changed = false;
};

struct Diff {
  std::vector<const Entry*> added;    // in B only
  std::vector<const Entry*> removed;  // in A only
  std::vector<DiffPair> pairs;        // of both, changed or not
  bool Same() const;
};

// Pairs by key; what is left by spelling (a key and an attribute of the same name).
Diff CompareStructure(const DiffSide& a, const DiffSide& b);

// Reads what both have, at most some tens of MiB at a time. (Equal checksums prove nothing.)
// `progress` gets bytes done and bytes in all.
Status CompareData(const DiffSide& a, const DiffSide& b,
                   const std::function<void(uint64_t, uint64_t)>& progress, Diff* diff);

}  // namespace stepwell::cli
