// SPDX-License-Identifier: Apache-2.0
#include "format/dtype.h"

#include <array>
#include <cmath>
#include <limits>

#include "format/endian.h"

namespace stepwell {
namespace {

constexpr std::array<DTypeInfo, 28> kDTypes = {{
    {DType::kBool, "bool", 1, 0, true},
    {DType::kInt2, "int2", 1, 2, true},
    {DType::kInt4, "int4", 1, 4, true},
    {DType::kInt8, "int8", 1, 0, true},
    {DType::kInt16, "int16", 2, 0, true},
    {DType::kInt32, "int32", 4, 0, true},
    {DType::kInt64, "int64", 8, 0, true},
    {DType::kUInt2, "uint2", 1, 2, false},
    {DType::kUInt4, "uint4", 1, 4, false},
    {DType::kUInt8, "uint8", 1, 0, true},
    {DType::kUInt16, "uint16", 2, 0, true},
    {DType::kUInt32, "uint32", 4, 0, true},
    {DType::kUInt64, "uint64", 8, 0, true},
    {DType::kFloat16, "float16", 2, 0, true},
    {DType::kFloat32, "float32", 4, 0, true},
    {DType::kFloat64, "float64", 8, 0, true},
    {DType::kBFloat16, "bfloat16", 2, 0, true},
    {DType::kComplex64, "complex64", 8, 0, true},
    {DType::kComplex128, "complex128", 16, 0, true},
    {DType::kFloat8E3M4, "float8_e3m4", 1, 0, true},
    {DType::kFloat8E4M3, "float8_e4m3", 1, 0, false},
    {DType::kFloat8E4M3B11FNUZ, "float8_e4m3b11fnuz", 1, 0, true},
    {DType::kFloat8E4M3FN, "float8_e4m3fn", 1, 0, true},
    {DType::kFloat8E4M3FNUZ, "float8_e4m3fnuz", 1, 0, true},
    {DType::kFloat8E5M2, "float8_e5m2", 1, 0, true},
    {DType::kFloat8E5M2FNUZ, "float8_e5m2fnuz", 1, 0, true},
    {DType::kFloat8E8M0FNU, "float8_e8m0fnu", 1, 0, true},
    {DType::kFloat4E2M1FN, "float4_e2m1fn", 1, 4, true},
}};

// FindDType(number) indexes the table.
constexpr bool NumbersAreDense() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(NumbersAreDense());

// The meaning of the bit patterns at the ends of a float type's range.
enum class Specials : uint8_t {
  kIeee,     // exponent all ones: infinity, NaN
  kNone,     // every pattern is a number
  kNanOnes,  // only S.1…1.1…1 is NaN ("fn")
  kNanZero,  // only the pattern of negative zero is NaN ("fnuz")
};
struct FloatLayout {
  DType dtype;
  int bits;
  int mantissa_bits;
  int bias;
  Specials specials;
};
constexpr std::array<FloatLayout, 10> kFloatLayouts = {{
    {DType::kFloat16, 16, 10, 15, Specials::kIeee},
    {DType::kBFloat16, 16, 7, 127, Specials::kIeee},
    {DType::kFloat8E3M4, 8, 4, 3, Specials::kIeee},
    {DType::kFloat8E4M3, 8, 3, 7, Specials::kIeee},
    {DType::kFloat8E4M3B11FNUZ, 8, 3, 11, Specials::kNanZero},
    {DType::kFloat8E4M3FN, 8, 3, 7, Specials::kNanOnes},
    {DType::kFloat8E4M3FNUZ, 8, 3, 8, Specials::kNanZero},
    {DType::kFloat8E5M2, 8, 2, 15, Specials::kIeee},
    {DType::kFloat8E5M2FNUZ, 8, 2, 16, Specials::kNanZero},
    {DType::kFloat4E2M1FN, 4, 1, 1, Specials::kNone},
}};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename T>
T Load(const void* element) {
  return format::LoadLittle<T>(static_cast<const std::byte*>(element));
}

// NaN keeps the pattern's sign.
double DecodeSmallFloat(const FloatLayout& layout, uint32_t pattern) {
  const uint32_t mantissa_mask = (1U << layout.mantissa_bits) - 1;
  const uint32_t exponent_mask = (1U << (layout.bits - 1 - layout.mantissa_bits)) - 1;
  const uint32_t sign_mask = 1U << (layout.bits - 1);
  const uint32_t mantissa = pattern & mantissa_mask;
  const uint32_t exponent = (pattern >> layout.mantissa_bits) & exponent_mask;
  const double sign = (pattern & sign_mask) != 0 ? -1.0 : 1.0;
  const bool last = exponent == exponent_mask;
  const bool nan =
      (layout.specials == Specials::kIeee && last && mantissa != 0) ||
      (layout.specials == Specials::kNanOnes && last && mantissa == mantissa_mask) ||
      (layout.specials == Specials::kNanZero && (pattern & (2 * sign_mask - 1)) == sign_mask);
  if (nan) return std::copysign(kNan, sign);
  if (layout.specials == Specials::kIeee && last) {
    return sign * std::numeric_limits<double>::infinity();
  }
  const bool normal = exponent != 0;
  const uint32_t significand = mantissa + (normal ? mantissa_mask + 1 : 0);
  const int scale = static_cast<int>(normal ? exponent : 1) - layout.bias - layout.mantissa_bits;
  return sign * std::ldexp(static_cast<double>(significand), scale);
}

// Sub-byte integers lie in the low bits of a byte.
double SignExtended(const void* element, unsigned bits) {
  const int value = Load<uint8_t>(element) & ((1 << bits) - 1);
  return value >= (1 << (bits - 1)) ? value - (1 << bits) : value;
}

}  // namespace

std::span<const DTypeInfo> AllDTypes() { return kDTypes; }

const DTypeInfo* FindDType(DType dtype) {
  const auto number = static_cast<size_t>(dtype);
  if (number == 0 || number > kDTypes.size()) return nullptr;
  return &kDTypes[number - 1];
}

const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

double DecodeNumber(DType dtype, const void* element) {
  switch (dtype) {
    case DType::kBool:
      return Load<uint8_t>(element) != 0 ? 1 : 0;
    case DType::kInt2:
      return SignExtended(element, 2);
    case DType::kInt4:
      return SignExtended(element, 4);
    case DType::kInt8:
      return Load<int8_t>(element);
    case DType::kInt16:
      return Load<int16_t>(element);
    case DType::kInt32:
      return Load<int32_t>(element);
    case DType::kInt64:
      return static_cast<double>(Load<int64_t>(element));
    case DType::kUInt2:
    case DType::kUInt4:
    case DType::kUInt8:
      return Load<uint8_t>(element);
    case DType::kUInt16:
      return Load<uint16_t>(element);
    case DType::kUInt32:
      return Load<uint32_t>(element);
    case DType::kUInt64:
      return static_cast<double>(Load<uint64_t>(element));
    case DType::kFloat32:
      return static_cast<double>(Load<float>(element));
    case DType::kFloat64:
      return Load<double>(element);
    case DType::kFloat8E8M0FNU: {
      const int exponent = Load<uint8_t>(element);
      return exponent == 0xFF ? kNan : std::ldexp(1.0, exponent - 127);
    }
    default:
      break;
  }
  for (const FloatLayout& layout : kFloatLayouts) {
    if (layout.dtype != dtype) continue;
    return DecodeSmallFloat(layout,
                            layout.bits == 16 ? Load<uint16_t>(element) : Load<uint8_t>(element));
  }
  return kNan;
}

}  // namespace stepwell
