// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/convert.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "io/check.h"

namespace stepwell::db {
namespace {

using format::DType;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// A float of a byte or less: sign, exponent, mantissa.
struct SmallFloat {
  enum class Specials : uint8_t {
    kIeee,       // the largest exponent is infinity and NaN
    kLastIsNan,  // only all ones is NaN; no infinity ("fn")
    kZeroIsNan,  // what would be -0 is NaN; no infinity ("fnuz")
    kNone,
  };
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;
  Specials specials = Specials::kNone;
};

SmallFloat LayoutOf(DType dtype) {
  using Specials = SmallFloat::Specials;
  switch (dtype) {
    case DType::kFloat8E3M4:
      return {3, 4, 3, Specials::kIeee};
    case DType::kFloat8E4M3:
      return {4, 3, 7, Specials::kIeee};
    case DType::kFloat8E4M3B11FNUZ:
      return {4, 3, 11, Specials::kZeroIsNan};
    case DType::kFloat8E4M3FN:
      return {4, 3, 7, Specials::kLastIsNan};
    case DType::kFloat8E4M3FNUZ:
      return {4, 3, 8, Specials::kZeroIsNan};
    case DType::kFloat8E5M2:
      return {5, 2, 15, Specials::kIeee};
    case DType::kFloat8E5M2FNUZ:
      return {5, 2, 16, Specials::kZeroIsNan};
    case DType::kFloat4E2M1FN:
      return {2, 1, 1, Specials::kNone};
    default:
      STEPWELL_CHECK(false, "a float of a byte or less");
  }
}

double DecodeSmallFloat(const SmallFloat& layout, unsigned bits) {
  using Specials = SmallFloat::Specials;
  const unsigned mantissa_max = (1U << layout.mantissa_bits) - 1;
  const unsigned exponent_max = (1U << layout.exponent_bits) - 1;
  const unsigned mantissa = bits & mantissa_max;
  const unsigned exponent = (bits >> layout.mantissa_bits) & exponent_max;
  const bool negative = ((bits >> (layout.mantissa_bits + layout.exponent_bits)) & 1U) != 0;
  double value = 0;
  if (layout.specials == Specials::kIeee && exponent == exponent_max) {
    value = mantissa == 0 ? kInfinity : kNan;
  } else if (layout.specials == Specials::kLastIsNan && exponent == exponent_max &&
             mantissa == mantissa_max) {
    value = kNan;
  } else if (layout.specials == Specials::kZeroIsNan && negative && exponent == 0 &&
             mantissa == 0) {
    value = kNan;
  } else {
    const unsigned whole = exponent == 0 ? mantissa : mantissa | (mantissa_max + 1);
    const int power = (exponent == 0 ? 1 : static_cast<int>(exponent)) - layout.bias;
    value = std::ldexp(whole, power - layout.mantissa_bits);
  }
  return negative ? std::copysign(value, -1.0) : value;
}

// Of float8_e8m0fnu, a power of two.
uint32_t Float32BitsOfScale(unsigned bits) {
  const float value = bits == 0xFF ? std::numeric_limits<float>::quiet_NaN()
                                   : std::ldexp(1.0F, static_cast<int>(bits) - 127);
  uint32_t out = 0;
  std::memcpy(&out, &value, sizeof(out));
  return out;
}

uint8_t SignExtended(unsigned bits, unsigned width) {
  const unsigned sign = 1U << (width - 1);
  const unsigned low = bits & ((1U << width) - 1);
  return static_cast<uint8_t>((low ^ sign) - sign);
}

template <typename Wide, typename Function>
void MapBytes(ConstBytes from, MutableBytes out, Function function) {
  std::array<Wide, 256> table;
  for (unsigned bits = 0; bits < table.size(); ++bits) table[bits] = function(bits);
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
      return MapBytes<uint8_t>(from, out, [](unsigned bits) { return SignExtended(bits, 2); });
    case DType::kInt4:
      return MapBytes<uint8_t>(from, out, [](unsigned bits) { return SignExtended(bits, 4); });
    case DType::kUInt2:
    case DType::kUInt4:
      if (!from.empty()) std::memcpy(out.data(), from.data(), from.size());
      return;
    case DType::kBFloat16:
      return WidenBFloat16(from, out);
    case DType::kFloat8E8M0FNU:
      return MapBytes<uint32_t>(from, out, Float32BitsOfScale);
    default: {
      const SmallFloat layout = LayoutOf(dtype);
      MapBytes<uint16_t>(
          from, out, [&](unsigned bits) { return Float16Bits(DecodeSmallFloat(layout, bits)); });
    }
  }
}

}  // namespace stepwell::db
