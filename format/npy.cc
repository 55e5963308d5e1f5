// SPDX-License-Identifier: Apache-2.0
#include <stepwell/npy.h>

#include "io/bytes.h"

namespace stepwell {
namespace {

// NumPy's letter for the type; 0 when it has none.
char KindLetter(DType dtype) {
  const auto is_within = [dtype](DType first, DType last) {
    return first <= dtype && dtype <= last;
  };
  if (dtype == DType::kBool) return 'b';
  if (is_within(DType::kInt8, DType::kInt64)) return 'i';
  if (is_within(DType::kUInt8, DType::kUInt64)) return 'u';
  if (is_within(DType::kFloat16, DType::kFloat64)) return 'f';
  if (is_within(DType::kComplex64, DType::kComplex128)) return 'c';
  return 0;
}

}  // namespace

std::string NpyDescr(DType dtype) {
  const char letter = KindLetter(dtype);
  if (letter == 0) return "";
  const unsigned item_bytes = FindDType(dtype)->item_bytes;
  return StrCat(item_bytes == 1 ? '|' : '<', letter, item_bytes);
}

std::string EncodeNpyHeader(const std::string& descr, std::span<const uint64_t> shape) {
  std::string extents = "(";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    extents += StrCat(axis == 0 ? "" : " ", shape[axis], ",");
  }
  // (3,) but (3, 4)
  if (shape.size() > 1) extents.pop_back();
  std::string text =
      StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", extents, "), }");
  constexpr size_t kPrefixBytes = 10;
  constexpr size_t kAlignment = 64;
  text.resize(AlignUp(kPrefixBytes + text.size() + 1, kAlignment) - kPrefixBytes - 1, ' ');
  text += '\n';
  std::string bytes = "\x93NUMPY\x01";
  bytes += '\0';
  bytes += static_cast<char>(text.size() & 0xFF);
  bytes += static_cast<char>(text.size() >> 8);
  return bytes + text;
}

}  // namespace stepwell
