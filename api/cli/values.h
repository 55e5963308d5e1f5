// SPDX-License-Identifier: Apache-2.0
// Array elements and Python values as text and as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
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
// Elements of an array as nested brackets, columns set right, "..." for what is left out; in C
// order, some at a time. Columns are as wide as the widest element so far.
class ArrayPrinter {
 public:
  ArrayPrinter(DType dtype, const std::vector<uint64_t>& shape,
               const std::vector<uint64_t>& edge_counts);
  std::string Print(std::span<const std::byte> elements);
  // What follows the last element.
  std::string End() const;

 private:
  static constexpr size_t kColumns = 96;
  void StartOf(const std::string& cell, std::string* text);

  const DType dtype_;
  const std::vector<uint64_t> edge_counts_;
  const std::vector<uint64_t> extents_;  // of what is printed
  std::vector<uint64_t> index_;          // of the last element; empty before the first
  size_t width_ = 0;
  size_t column_ = 0;
};
std::string ArrayText(const ArrayPart& part);
// Nested lists. Only for parts that are whole.
nlohmann::json ArrayJson(const ArrayPart& part);

// A Python value that is not an array.
std::string ValueText(const Value& value);
// Integers beyond 64 bits are text; bytes are {"base64": …}; None is null.
nlohmann::json ValueJson(const Value& value);

}  // namespace stepwell::cli
