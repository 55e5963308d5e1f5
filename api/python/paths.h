// SPDX-License-Identifier: Apache-2.0
// Paths as Python gives them: str, or tuples of str and int.
#pragma once

#include <nanobind/nanobind.h>

#include "format/path.h"

namespace stepwell::python {

// None is the empty path. Raises InvalidArgumentError for anything that is not a path.
format::PathPattern PatternFromPython(nanobind::handle path);

}  // namespace stepwell::python
