// SPDX-License-Identifier: Apache-2.0
// Several steps at once, for stepwell/_changed.py and _history.py: what differs between two, and
// one leaf in many.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "api/python/tree.h"
#include "db/read/compare.h"
#include "db/store.h"

namespace stepwell::python {

// The differences between the leaves of two steps, by their numbers in the steps' trees.
struct StepChanges {
  std::vector<size_t> removed;
  std::vector<size_t> added;
  std::vector<db::LeafChange> changed;
  std::vector<db::AskedBox> asked;  // `change`: in `changed`
  uint64_t unchanged = 0;
  db::LoadStats stats;
};

// Finds what `path` names in each of `steps`; none where a step has nothing there. A path that does
// not begin with an item of a step means its item `state`. `gone_ok`: none of a step that is not
// there, which else is StepNotFoundError.
std::vector<std::optional<Selection>> FindInSteps(db::StoreReader& store,
                                                  const std::vector<uint64_t>& steps,
                                                  nanobind::handle path, bool gone_ok);

}  // namespace stepwell::python
