// SPDX-License-Identifier: Apache-2.0
// Imports of Orbax checkpoints, for stepwell/_import.py.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "db/store.h"

namespace stepwell::python {

// Saves a checkpoint as a step, or prepares it. Ctrl-C ends the reading; then nothing is saved.
// Needs the GIL.
db::SaveHandle ImportOrbax(db::Store* store, uint64_t step, const std::string& path,
                           std::vector<std::string> items, int if_exists,
                           std::optional<db::GroupSave> group);

// orbax_steps, orbax_step_of.
void BindImport(nanobind::module_& m);

}  // namespace stepwell::python
