// SPDX-License-Identifier: Apache-2.0
// What a store tells of itself, as dicts: stepwell/_runtime/stats.py has their types.
#pragma once

#include <nanobind/nanobind.h>

#include "db/store.h"

namespace stepwell::python {

nanobind::dict StatsDict(const db::StoreStats& stats);

}  // namespace stepwell::python
