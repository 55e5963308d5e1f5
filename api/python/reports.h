// SPDX-License-Identifier: Apache-2.0
// What a store tells of itself: stepwell/_runtime/stats.py has what users get of it.
#pragma once

#include <nanobind/nanobind.h>

#include "db/store.h"

namespace stepwell::python {

nanobind::dict StatsDict(const db::StoreStats& stats);
nanobind::dict RecoveryDict(const db::RecoveryReport& report);

// The reports of the engine, field by field.
void BindReports(nanobind::module_& m);

}  // namespace stepwell::python
