// SPDX-License-Identifier: Apache-2.0
#include <stepwell/npy.h>

#include "io/bytes.h"

namespace stepwell {
namespace {

// NumPy's letter for the type; 0 when it has none.
char KindLetter(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 'b';
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return 'i';
    case DType::kUInt8:
    case DType::kUInt16:
    case DType::kUInt32:
    case DType::kUInt64:
      return 'u';
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return 'f';
    case DType::kComplex64:
    case DType::kComplex128:
      return 'c';
    default:
      return 0;
  }
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
