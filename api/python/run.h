// SPDX-License-Identifier: Apache-2.0
// A pushed run, opened as a store, whose objects Python reads.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "db/store.h"

namespace stepwell::python {

// Opens a run. `objects` has the methods of stepwell/_remote/run_objects.py. They are called on
// threads of the engine's. It may raise what api/python/errors.h knows.
Result<std::unique_ptr<db::Store>> OpenRun(nanobind::object objects, std::string name,
                                           const db::StoreOptions& options);

}  // namespace stepwell::python
