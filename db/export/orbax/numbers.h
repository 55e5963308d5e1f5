// SPDX-License-Identifier: Apache-2.0
// Numbers from one type to another: Python's as elements of arrays, and elements as the next wider
// type that NumPy has. Pure.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "format/dtype.h"
#include "io/bytes.h"

namespace stepwell::db {

// False unless all of the text is a number that `*number` holds.
template <typename Integer>
bool ParseInteger(std::string_view text, Integer* number, int base = 10) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number, base);
  return error == std::errc() && stop == end;
}

// Only types of whole bytes count.
constexpr bool IsSignedInteger(format::DType dtype) {
  return dtype >= format::DType::kInt8 && dtype <= format::DType::kInt64;
}
constexpr bool IsUnsignedInteger(format::DType dtype) {
  return dtype >= format::DType::kUInt8 && dtype <= format::DType::kUInt64;
}

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

// kInvalid for types that NumPy itself has, and for those that nothing wider holds. Every value of
// the narrow type is one of the wider.
format::DType WiderNumpyType(format::DType dtype);

// `from` as stored, with zero high bits; `to` is WiderNumpyType(dtype); `out` has as many elements.
// NaNs keep their sign, not their payload.
void WidenElements(format::DType dtype, ConstBytes from, MutableBytes out);

}  // namespace stepwell::db
