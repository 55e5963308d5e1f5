// SPDX-License-Identifier: Apache-2.0
// What the format's numbers are called wherever people or other programs read them; codec.h has
// the codecs, dtype.h the element types.
#pragma once

#include <string>

#include "format/records.h"

namespace stepwell::format {

// "dict", "list", "tuple", "namedtuple", "object"; "node" of what is none of these.
std::string NameOf(ContainerKind container);
// Of values as Python calls them: "None", "int"; of arrays "numpy", "jax", "numpy scalar",
// "jax key".
std::string NameOf(ValueType type);

}  // namespace stepwell::format
