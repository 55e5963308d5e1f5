// SPDX-License-Identifier: Apache-2.0
// Python's numbers as elements of arrays.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/dtype.h"

namespace stepwell::db {

struct NumberElement {
  format::DType dtype = format::DType::kInvalid;
  std::string bytes;  // little-endian
};

// `imported`: the element type that the number had where it was imported from; it is used if it
// holds the number exactly. Else Orbax's: int64, or uint64 for what is larger; float64.
//
// None for an integer beyond 64 bits.
std::optional<NumberElement> IntegerElement(std::string_view decimal, format::DType imported);
NumberElement FloatElement(double number, format::DType imported);

}  // namespace stepwell::db
