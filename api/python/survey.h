// SPDX-License-Identifier: Apache-2.0
// All leaves of many steps at once, for stepwell/_report/leaves.py: what they are, their statistics
// and which are the same, from records alone. As Python objects the records would take minutes.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "db/store.h"

namespace stepwell::python {

// What a survey may have. Leaves beyond it are counted, and not taken.
struct SurveyLimits {
  size_t cells = 0;  // leaves times steps
  size_t leaves = 0;
  size_t path_bytes = 0;
};

// A leaf, as it is in the newest of the steps that have it.
struct SurveyedLeaf {
  std::string path;  // as Store.load takes it
  std::string item;
  std::string kind;   // "array", "key", or a value's type
  std::string dtype;  // "": a value
  std::vector<uint64_t> shape;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  std::optional<size_t> sharding;  // in Survey::shardings
};

// Columns of LeafStatistics, rounded to 5 significant digits; NaN: not known.
enum class SurveyColumn : uint8_t { kNorm, kMin, kMax, kMean, kChanged, kCount };
using SurveyNumbers = std::array<double, static_cast<size_t>(SurveyColumn::kCount)>;

// A leaf in a step.
struct SurveyCell {
  static constexpr int32_t kAbsent = -2;
  static constexpr int32_t kUnknown = -1;  // it is there, but records cannot tell its content

  int32_t content = kAbsent;  // equal numbers of one leaf, 0 or above: the same content
  bool has_statistics = false;
  bool is_exact = true;  // kChanged is the share itself, not an upper bound
  uint64_t elements = 0;
  uint64_t nonfinite = 0;
  SurveyNumbers numbers{};
};

struct Survey {
  // For each step what kept its records from being read; none: nothing did.
  std::vector<std::optional<std::string>> problems;
  std::vector<bool> gone;  // the step was deleted meanwhile
  std::vector<SurveyedLeaf> leaves;
  std::vector<std::string> shardings;  // as Orbax spells them
  size_t total_leaves = 0;
  size_t steps = 0;
  std::vector<SurveyCell> cells;  // of each leaf those of all steps

  const SurveyCell& at(size_t leaf, size_t step) const { return cells[leaf * steps + step]; }
};

// Reads the records of `steps`, ascending. Leaves come in the newest step's key order, and behind
// them those that only older ones have.
Survey SurveyLeaves(db::StoreReader& store, const std::vector<uint64_t>& steps,
                    const SurveyLimits& limits);

// Of each step the metrics as JSON; where they cannot be read, why.
struct StepMetrics {
  uint64_t step = 0;
  std::string metrics_json;  // "": none
  std::string problem;       // "": none
};
std::vector<StepMetrics> SurveyMetrics(db::StoreReader& store);

}  // namespace stepwell::python
