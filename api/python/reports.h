// SPDX-License-Identifier: Apache-2.0
// What a store tells of itself, field by field: stepwell/_runtime/stats.py has what users get of
// it.
#pragma once

#include <nanobind/nanobind.h>

namespace stepwell::python {

void BindReports(nanobind::module_& m);

}  // namespace stepwell::python
