// SPDX-License-Identifier: Apache-2.0
// Stores of many processes (db/group.h), as the package's _distributed/group.py uses them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "db/store.h"

namespace stepwell::python {

// (group id, part); a group id of zeros on part 0.
using GroupPair = std::pair<nanobind::bytes, uint32_t>;
std::optional<db::StoreGroup> GroupFromPython(const std::optional<GroupPair>& group);

// (save id, ids of all parts)
using GroupSavePair = std::pair<nanobind::bytes, std::vector<uint32_t>>;
std::optional<db::GroupSave> GroupSaveFromPython(const std::optional<GroupSavePair>& group);

nanobind::bytes BytesOfId(const format::Id128& id);
format::Id128 IdFromPython(const nanobind::bytes& bytes);

// (save id, parts) of a step of many processes; None of others.
nanobind::object SaveOfStep(const format::StepRecord& step);

}  // namespace stepwell::python
