// SPDX-License-Identifier: Apache-2.0
// Stores of many processes (db/group.h), as the package's _distributed/group.py uses them.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "db/store.h"

namespace stepwell::python {

nanobind::bytes BytesOfId(const format::Id128& id);

// Returns the group save that a step of many processes belongs to; none for other steps.
std::optional<db::GroupSave> SaveOfStep(const format::StepRecord& step);

}  // namespace stepwell::python
