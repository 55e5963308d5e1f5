// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/numbers.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

namespace stepwell::db {
namespace {

using format::DType;

std::string LowBytes(uint64_t bits, size_t count) {
  return std::string(AsText(std::as_bytes(std::span(&bits, 1)).first(count)));
}

// `bits`: the number in two's complement.
bool Holds(DType dtype, uint64_t bits, bool is_negative) {
  if (!IsSignedInteger(dtype) && !IsUnsignedInteger(dtype)) return false;
  const int size_bits = 8 * format::FindDType(dtype)->item_bytes;
  if (IsSignedInteger(dtype)) return (is_negative ? ~bits : bits) >> (size_bits - 1) == 0;
  return !is_negative && (size_bits == 64 || bits >> size_bits == 0);
}

bool FitsFloat16(double number) {
  if (!std::isfinite(number) || number == 0) return true;
  const int exponent = std::ilogb(number);
  if (exponent > 15) return false;
  const double units = std::ldexp(number, exponent < -14 ? 24 : 10 - exponent);
  return units == std::trunc(units);
}

// The bits of a number that float16 has.
uint16_t Float16Bits(double value) {
  const unsigned sign = std::signbit(value) ? 0x8000U : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00U);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | 0x7c00U);
  if (value == 0) return static_cast<uint16_t>(sign);
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  constexpr int kSmallestExponent = -13;                            // of a normal one, so counted
  if (exponent < kSmallestExponent) {
    return static_cast<uint16_t>(sign | static_cast<unsigned>(std::ldexp(std::fabs(value), 24)));
  }
  const auto mantissa = static_cast<unsigned>(std::ldexp(fraction, 11)) & 0x3ffU;
  return static_cast<uint16_t>(sign | (static_cast<unsigned>(exponent + 14) << 10) | mantissa);
}

// Elements of a byte each, whose values `function` makes wider ones.
template <typename Wide, typename Function>
void MapBytes(DType dtype, ConstBytes from, MutableBytes out, Function function) {
  std::array<Wide, 256> table;
  for (unsigned bits = 0; bits < table.size(); ++bits) {
    const auto pattern = static_cast<uint8_t>(bits);
    table[bits] = function(DecodeNumber(dtype, &pattern));
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const Wide wide = table[std::to_integer<unsigned>(from[i])];
    std::memcpy(out.data() + i * sizeof(Wide), &wide, sizeof(Wide));
  }
}

void WidenBFloat16(ConstBytes from, MutableBytes out) {
  constexpr size_t kNarrow = sizeof(uint16_t);
  for (size_t i = 0; i < from.size() / kNarrow; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from.data() + i * kNarrow, kNarrow);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    std::memcpy(out.data() + i * sizeof(wide), &wide, sizeof(wide));
  }
}

}  // namespace

std::optional<NumberElement> IntegerElement(std::string_view decimal, DType imported) {
  int64_t number = 0;
  uint64_t bits = 0;
  const bool is_signed = ParseInteger(decimal, &number);
  if (is_signed) {
    bits = static_cast<uint64_t>(number);
  } else if (!ParseInteger(decimal, &bits)) {
    return std::nullopt;
  }
  if (Holds(imported, bits, number < 0)) {
    return NumberElement{imported, LowBytes(bits, format::FindDType(imported)->item_bytes)};
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

DType WiderNumpyType(DType dtype) {
  switch (dtype) {
    case DType::kInt2:
    case DType::kInt4:
      return DType::kInt8;
    case DType::kUInt2:
    case DType::kUInt4:
      return DType::kUInt8;
    case DType::kFloat8E3M4:
    case DType::kFloat8E4M3:
    case DType::kFloat8E4M3B11FNUZ:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat4E2M1FN:
      return DType::kFloat16;
    case DType::kFloat8E8M0FNU:
    case DType::kBFloat16:
      return DType::kFloat32;
    default:
      return DType::kInvalid;
  }
}

void WidenElements(DType dtype, ConstBytes from, MutableBytes out) {
  switch (dtype) {
    case DType::kInt2:
    case DType::kInt4:
      return MapBytes<int8_t>(dtype, from, out,
                              [](double value) { return static_cast<int8_t>(value); });
    case DType::kUInt2:
    case DType::kUInt4:
      if (!from.empty()) std::memcpy(out.data(), from.data(), from.size());
      return;
    case DType::kBFloat16:
      return WidenBFloat16(from, out);
    case DType::kFloat8E8M0FNU:
      return MapBytes<float>(dtype, from, out,
                             [](double value) { return static_cast<float>(value); });
    default:
      return MapBytes<uint16_t>(dtype, from, out, Float16Bits);
  }
}

}  // namespace stepwell::db
