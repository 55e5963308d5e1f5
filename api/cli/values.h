// SPDX-License-Identifier: Apache-2.0
// Array elements and Python values as text and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "format/dtype.h"
#include "format/grid.h"
#include "format/records.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::cli {

// The value of one element of any float type up to 32 bits, sub-byte ones included.
double DecodeFloat(format::DType dtype, const std::byte* element);

// The value of one element of any type but complex ones; integers beyond 2^53 are rounded.
double DecodeNumber(format::DType dtype, const std::byte* element);
// A number, or "NaN", "Infinity", "-Infinity", which JSON has no numbers for.
nlohmann::json NumberJson(double value);
std::string NumberText(double value, int digits);

// One element as NumPy would show it: "True", "-3", "0.25", "nan", "(1+2j)".
std::string ElementText(format::DType dtype, const std::byte* element);
// A number, true or false; "NaN", "Infinity", "-Infinity"; [real, imaginary].
nlohmann::json ElementJson(format::DType dtype, const std::byte* element);

// Elements of an array, with whole blocks in the middle of long axes left out.
struct ArrayPart {
  format::DType dtype = format::DType::kInvalid;
  format::Shape shape;  // of the array
  // Per axis: how many elements at each end `bytes` has, or 0 when it has them all.
  std::vector<uint64_t> edge_counts;
  std::vector<std::byte> bytes;  // C order
};
// Extents of `bytes` of such a part.
format::Shape PartExtents(const format::Shape& shape, const std::vector<uint64_t>& edge_counts);
// Nested brackets, columns set right, "..." for what is left out.
std::string ArrayText(const ArrayPart& part);
// Nested lists. Only for parts that are whole.
nlohmann::json ArrayJson(const ArrayPart& part);

// A Python value that is not an array.
Result<std::string> ValueText(format::ValueType type, ConstBytes bytes);
// Integers beyond 64 bits are text; bytes are {"base64": …}; None is null.
Result<nlohmann::json> ValueJson(format::ValueType type, ConstBytes bytes);

}  // namespace stepwell::cli
