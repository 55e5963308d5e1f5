// SPDX-License-Identifier: Apache-2.0
// Names the format's numbers wherever people or other programs read them. codec.h has the codecs,
// dtype.h the element types.
#pragma once

#include <string>

#include "format/records.h"

namespace stepwell::format {

// "dict", "list", "tuple", "namedtuple", "object"; "node" of what is none of these.
std::string NameOf(ContainerKind container);
// Returns Python's name for a value, "None" or "int", and for an array "numpy", "jax", "numpy
// scalar" or "jax key".
std::string NameOf(ValueType type);

}  // namespace stepwell::format
