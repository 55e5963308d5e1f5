// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/numbers.h"

#include <bit>
#include <charconv>
#include <cmath>

#include "db/export/orbax/convert.h"

namespace stepwell::db {
namespace {

using format::DType;

template <typename Integer>
bool ParseWhole(std::string_view text, Integer* number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end;
}

std::string LowBytes(uint64_t bits, size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(bits >> (8 * i) & 0xFF));
  return bytes;
}

// Bytes of an integer type, negative: of a signed one; 0: it is none.
int IntegerBytes(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return -1;
    case DType::kInt16:
      return -2;
    case DType::kInt32:
      return -4;
    case DType::kInt64:
      return -8;
    case DType::kUInt8:
      return 1;
    case DType::kUInt16:
      return 2;
    case DType::kUInt32:
      return 4;
    case DType::kUInt64:
      return 8;
    default:
      return 0;
  }
}

// `bits`: the number in two's complement.
bool Holds(int bytes, uint64_t bits, bool is_negative) {
  if (bytes > 0) return !is_negative && (bytes == 8 || bits >> (8 * bytes) == 0);
  if (bytes == 0) return false;
  const uint64_t magnitude = is_negative ? ~bits : bits;
  return magnitude >> (-8 * bytes - 1) == 0;
}

bool FitsFloat16(double number) {
  if (!std::isfinite(number) || number == 0) return true;
  const int exponent = std::ilogb(number);
  if (exponent > 15) return false;
  const double units = std::ldexp(number, exponent < -14 ? 24 : 10 - exponent);
  return units == std::trunc(units);
}

}  // namespace

std::optional<NumberElement> IntegerElement(std::string_view decimal, DType imported) {
  int64_t number = 0;
  uint64_t bits = 0;
  const bool is_signed = ParseWhole(decimal, &number);
  if (is_signed) {
    bits = static_cast<uint64_t>(number);
  } else if (!ParseWhole(decimal, &bits)) {
    return std::nullopt;
  }
  const int bytes = IntegerBytes(imported);
  if (Holds(bytes, bits, number < 0)) {
    return NumberElement{imported, LowBytes(bits, static_cast<size_t>(std::abs(bytes)))};
  }
  return NumberElement{is_signed ? DType::kInt64 : DType::kUInt64, LowBytes(bits, 8)};
}

NumberElement FloatElement(double number, DType imported) {
  const auto single = static_cast<float>(number);
  const auto single_bits = std::bit_cast<uint32_t>(single);
  const bool fits_single = std::isnan(number) || single == number;
  if (imported == DType::kFloat32 && fits_single) return {imported, LowBytes(single_bits, 4)};
  if (imported == DType::kBFloat16 && fits_single && (single_bits & 0xFFFF) == 0) {
    return {imported, LowBytes(single_bits >> 16, 2)};
  }
  if (imported == DType::kFloat16 && FitsFloat16(number)) {
    return {imported, LowBytes(Float16Bits(number), 2)};
  }
  return {DType::kFloat64, LowBytes(std::bit_cast<uint64_t>(number), 8)};
}

}  // namespace stepwell::db
