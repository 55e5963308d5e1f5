// SPDX-License-Identifier: Apache-2.0
// What the engine is asked, with the names that its own structs have.
#pragma once

#include <nanobind/nanobind.h>

namespace stepwell::python {

void BindRequests(nanobind::module_& m);

}  // namespace stepwell::python
