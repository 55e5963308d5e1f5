// SPDX-License-Identifier: Apache-2.0
// Array elements and Python values as text and as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <stepwell/array.h>
#include <stepwell/dtype.h>

namespace stepwell::cli {

// A number, or "NaN", "Infinity", "-Infinity", which JSON has no numbers for.
nlohmann::json NumberJson(double value);
std::string NumberText(double value, int digits);

// One element as NumPy would show it: "True", "-3", "0.25", "nan", "(1+2j)".
std::string ElementText(DType dtype, const std::byte* element);
// A number, true or false; "NaN", "Infinity", "-Infinity"; [real, imaginary].
nlohmann::json ElementJson(DType dtype, const std::byte* element);

// Elements of an array, with whole blocks in the middle of long axes left out.
struct ArrayPart {
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> shape;  // of the array
  // Per axis: how many elements at each end `bytes` has, or 0 when it has them all.
  std::vector<uint64_t> edge_counts;
  std::vector<std::byte> bytes;  // C order
};
// Extents of `bytes` of such a part.
std::vector<uint64_t> PartExtents(const std::vector<uint64_t>& shape,
                                  const std::vector<uint64_t>& edge_counts);
// Nested brackets, columns set right, "..." for what is left out.
std::string ArrayText(const ArrayPart& part);
// Nested lists. Only for parts that are whole.
nlohmann::json ArrayJson(const ArrayPart& part);

// A Python value that is not an array.
std::string ValueText(const Value& value);
// Integers beyond 64 bits are text; bytes are {"base64": …}; None is null.
nlohmann::json ValueJson(const Value& value);

}  // namespace stepwell::cli
