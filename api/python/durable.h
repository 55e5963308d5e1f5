// SPDX-License-Identifier: Apache-2.0
// The engine's door for names above the store, for stepwell/_runtime/durable.py.
#pragma once

#include <nanobind/nanobind.h>

namespace stepwell::python {

void BindDurable(nanobind::module_& m);

}  // namespace stepwell::python
