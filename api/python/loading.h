// SPDX-License-Identifier: Apache-2.0
// Stored values as Python's objects.
#pragma once

#include <nanobind/nanobind.h>

#include "format/records.h"

namespace stepwell::python {

// A value that is no array, from its bytes.
nanobind::object ValueObject(format::ValueType type, nanobind::bytes data);

}  // namespace stepwell::python
