// SPDX-License-Identifier: Apache-2.0
#include "api/cli/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace stepwell::cli {
namespace {

using format::DType;
using format::ValueType;
using nlohmann::json;

template <typename T>
T Read(const std::byte* element) {
  T value;
  std::memcpy(&value, element, sizeof(value));
  return value;
}

// What the bit patterns at the ends of a float type's range mean.
enum class Specials {
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

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double DecodeSmallFloat(const FloatLayout& layout, uint32_t pattern) {
  const uint32_t mantissa_mask = (1U << layout.mantissa_bits) - 1;
  const uint32_t exponent_mask = (1U << (layout.bits - 1 - layout.mantissa_bits)) - 1;
  const uint32_t sign_mask = 1U << (layout.bits - 1);
  const uint32_t mantissa = pattern & mantissa_mask;
  const uint32_t exponent = (pattern >> layout.mantissa_bits) & exponent_mask;
  const double sign = (pattern & sign_mask) != 0 ? -1.0 : 1.0;
  if (layout.specials == Specials::kIeee && exponent == exponent_mask) {
    return mantissa == 0 ? sign * kInfinity : kNotANumber;
  }
  if (layout.specials == Specials::kNanOnes && exponent == exponent_mask &&
      mantissa == mantissa_mask) {
    return kNotANumber;
  }
  if (layout.specials == Specials::kNanZero && pattern == sign_mask) return kNotANumber;
  const bool normal = exponent != 0;
  const uint32_t significand = mantissa + (normal ? mantissa_mask + 1 : 0);
  const int scale = static_cast<int>(normal ? exponent : 1) - layout.bias - layout.mantissa_bits;
  return sign * std::ldexp(static_cast<double>(significand), scale);
}

// The shortest text that reads back as the same double.
std::string ShortestText(double value) {
  if (!std::isfinite(value)) return NumberText(value, 8);
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

// Sub-byte integers lie in the low bits of a byte.
int64_t SignExtended(const std::byte* element, int bits) {
  const int value = Read<uint8_t>(element) & ((1 << bits) - 1);
  return value >= (1 << (bits - 1)) ? value - (1 << bits) : value;
}

bool IsSigned(DType dtype, int64_t* value, const std::byte* element) {
  switch (dtype) {
    case DType::kInt2:
      return *value = SignExtended(element, 2), true;
    case DType::kInt4:
      return *value = SignExtended(element, 4), true;
    case DType::kInt8:
      return *value = int64_t{Read<int8_t>(element)}, true;
    case DType::kInt16:
      return *value = Read<int16_t>(element), true;
    case DType::kInt32:
      return *value = Read<int32_t>(element), true;
    case DType::kInt64:
      return *value = Read<int64_t>(element), true;
    default:
      return false;
  }
}

bool IsUnsigned(DType dtype, uint64_t* value, const std::byte* element) {
  switch (dtype) {
    case DType::kUInt2:
    case DType::kUInt4:
    case DType::kUInt8:
      return *value = Read<uint8_t>(element), true;
    case DType::kUInt16:
      return *value = Read<uint16_t>(element), true;
    case DType::kUInt32:
      return *value = Read<uint32_t>(element), true;
    case DType::kUInt64:
      return *value = Read<uint64_t>(element), true;
    default:
      return false;
  }
}

// The double whose shortest text is also the float's, so that JSON says 0.1 and not
// 0.10000000149011612; reading it as a float gives the same bits.
double Readable(float value) {
  if (!std::isfinite(value)) return static_cast<double>(value);
  std::array<char, 40> buffer{};
  *std::to_chars(buffer.data(), buffer.data() + buffer.size() - 1, value).ptr = '\0';
  return std::strtod(buffer.data(), nullptr);
}
double Readable(double value) { return value; }

template <typename T>
std::string ComplexText(const std::byte* element, int digits) {
  const double real = Readable(Read<T>(element));
  const double imaginary = Readable(Read<T>(element + sizeof(T)));
  const bool minus = std::signbit(imaginary) && !std::isnan(imaginary);
  return StrCat("(", NumberText(real, digits), minus ? "" : "+", NumberText(imaginary, digits),
                "j)");
}

// ---- arrays -------------------------------------------------------------------------------

class ArrayPrinter {
 public:
  explicit ArrayPrinter(const ArrayPart& part)
      : part_(part), extents_(PartExtents(part.shape, part.edge_counts)) {
    const size_t item_bytes = format::FindDType(part.dtype)->item_bytes;
    for (size_t at = 0; at + item_bytes <= part.bytes.size(); at += item_bytes) {
      cells_.push_back(ElementText(part.dtype, &part.bytes[at]));
      width_ = std::max(width_, cells_.back().size());
    }
  }

  std::string Print() {
    if (cells_.empty() && !part_.shape.empty()) return "[]";
    return PrintAxis(0);
  }

 private:
  std::string PrintAxis(size_t axis) {
    if (axis == part_.shape.size()) {
      const std::string& cell = cells_[next_++];
      return std::string(axis == 0 ? 0 : width_ - cell.size(), ' ') + cell;
    }
    const bool innermost = axis + 1 == part_.shape.size();
    const std::string indent(axis + 1, ' ');
    // Like NumPy: blank lines between blocks of more than one axis.
    const std::string between =
        innermost ? " " : std::string(part_.shape.size() - axis - 1, '\n') + indent;
    std::string text = "[";
    size_t column = indent.size();
    for (uint64_t i = 0; i < extents_[axis]; ++i) {
      if (i > 0) text += between;
      if (part_.edge_counts[axis] != 0 && i == part_.edge_counts[axis]) text += "..." + between;
      const std::string inner = PrintAxis(axis + 1);
      if (innermost && column + inner.size() + 2 > kColumns && i > 0) {
        text.back() = '\n';
        text += indent;
        column = indent.size();
      }
      column += inner.size() + 1;
      text += inner;
    }
    return text + "]";
  }

  static constexpr size_t kColumns = 96;
  const ArrayPart& part_;
  const format::Shape extents_;
  std::vector<std::string> cells_;
  size_t width_ = 0;
  size_t next_ = 0;
};

json AxisJson(const ArrayPart& part, size_t axis, size_t item_bytes, size_t* offset) {
  if (axis == part.shape.size()) {
    const size_t at = *offset;
    *offset += item_bytes;
    return ElementJson(part.dtype, &part.bytes[at]);
  }
  json list = json::array();
  for (uint64_t i = 0; i < part.shape[axis]; ++i) {
    list.push_back(AxisJson(part, axis + 1, item_bytes, offset));
  }
  return list;
}

// ---- values -------------------------------------------------------------------------------

std::string Base64(ConstBytes bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = (group << 8) | (j < count ? std::to_integer<uint32_t>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= count ? kDigits[(group >> (18 - 6 * j)) & 63] : '=';
    }
  }
  return text;
}

// As Python's repr of bytes.
std::string BytesText(ConstBytes bytes) {
  std::string text = "b'";
  for (const std::byte byte : bytes) {
    const auto c = std::to_integer<unsigned>(byte);
    std::array<char, 8> escape{};
    if (c == '\'' || c == '\\') {
      text += {'\\', static_cast<char>(c)};
    } else if (c >= 0x20 && c < 0x7F) {
      text += static_cast<char>(c);
    } else {
      std::snprintf(escape.data(), escape.size(), "\\x%02x", c);
      text += escape.data();
    }
  }
  return text + "'";
}

// Bytes that a value of this type has; 0: any number.
size_t ValueBytes(ValueType type) {
  switch (type) {
    case ValueType::kFloat:
      return 8;
    case ValueType::kBool:
      return 1;
    case ValueType::kComplex:
      return 16;
    default:
      return 0;
  }
}

Status CheckValue(ValueType type, ConstBytes bytes) {
  const size_t wanted = ValueBytes(type);
  if (wanted == 0 || wanted == bytes.size()) return OkStatus();
  return DataLossError(StrCat("a value of type ", static_cast<unsigned>(type), " has ",
                              bytes.size(), " bytes, not ", wanted));
}

}  // namespace

json NumberJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return value;
}

std::string NumberText(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*g", digits, value);
  return buffer.data();
}

double DecodeNumber(DType dtype, const std::byte* element) {
  int64_t number = 0;
  uint64_t natural = 0;
  if (dtype == DType::kBool) return Read<uint8_t>(element) != 0 ? 1 : 0;
  if (IsSigned(dtype, &number, element)) return static_cast<double>(number);
  if (IsUnsigned(dtype, &natural, element)) return static_cast<double>(natural);
  if (dtype == DType::kFloat64) return Read<double>(element);
  return DecodeFloat(dtype, element);
}

double DecodeFloat(DType dtype, const std::byte* element) {
  if (dtype == DType::kFloat32) return static_cast<double>(Read<float>(element));
  if (dtype == DType::kFloat8E8M0FNU) {
    const auto exponent = Read<uint8_t>(element);
    return exponent == 0xFF ? kNotANumber : std::ldexp(1.0, int{exponent} - 127);
  }
  for (const FloatLayout& layout : kFloatLayouts) {
    if (layout.dtype != dtype) continue;
    return DecodeSmallFloat(layout, layout.bits == 16
                                        ? Read<uint16_t>(element)
                                        : Read<uint8_t>(element) & ((1U << layout.bits) - 1));
  }
  return kNotANumber;
}

std::string ElementText(DType dtype, const std::byte* element) {
  int64_t number = 0;
  uint64_t natural = 0;
  if (dtype == DType::kBool) return Read<uint8_t>(element) != 0 ? "True" : "False";
  if (IsSigned(dtype, &number, element)) return std::to_string(number);
  if (IsUnsigned(dtype, &natural, element)) return std::to_string(natural);
  if (dtype == DType::kFloat64) return NumberText(Read<double>(element), 8);
  if (dtype == DType::kComplex64) return ComplexText<float>(element, 8);
  if (dtype == DType::kComplex128) return ComplexText<double>(element, 8);
  if (dtype == DType::kFloat32) return NumberText(Readable(Read<float>(element)), 8);
  return NumberText(DecodeFloat(dtype, element), 6);
}

json ElementJson(DType dtype, const std::byte* element) {
  int64_t number = 0;
  uint64_t natural = 0;
  if (dtype == DType::kBool) return Read<uint8_t>(element) != 0;
  if (IsSigned(dtype, &number, element)) return number;
  if (IsUnsigned(dtype, &natural, element)) return natural;
  if (dtype == DType::kFloat64) return NumberJson(Read<double>(element));
  if (dtype == DType::kFloat32) return NumberJson(Readable(Read<float>(element)));
  if (dtype == DType::kComplex64) {
    return json::array({NumberJson(Readable(Read<float>(element))),
                        NumberJson(Readable(Read<float>(element + sizeof(float))))});
  }
  if (dtype == DType::kComplex128) {
    return json::array(
        {NumberJson(Read<double>(element)), NumberJson(Read<double>(element + sizeof(double)))});
  }
  return NumberJson(DecodeFloat(dtype, element));
}

format::Shape PartExtents(const format::Shape& shape, const std::vector<uint64_t>& edge_counts) {
  format::Shape extents = shape;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (edge_counts[axis] != 0) extents[axis] = 2 * edge_counts[axis];
  }
  return extents;
}

std::string ArrayText(const ArrayPart& part) { return ArrayPrinter(part).Print(); }

json ArrayJson(const ArrayPart& part) {
  size_t offset = 0;
  return AxisJson(part, 0, format::FindDType(part.dtype)->item_bytes, &offset);
}

Result<std::string> ValueText(ValueType type, ConstBytes bytes) {
  STEPWELL_RETURN_IF_ERROR(CheckValue(type, bytes));
  switch (type) {
    case ValueType::kNone:
      return std::string("None");
    case ValueType::kInt:
    case ValueType::kStr:
      return std::string(AsText(bytes));
    case ValueType::kFloat:
      return ShortestText(Read<double>(bytes.data()));
    case ValueType::kBool:
      return std::string(bytes[0] != std::byte{0} ? "True" : "False");
    case ValueType::kComplex:
      return ComplexText<double>(bytes.data(), 17);
    default:
      return BytesText(bytes);
  }
}

Result<json> ValueJson(ValueType type, ConstBytes bytes) {
  STEPWELL_RETURN_IF_ERROR(CheckValue(type, bytes));
  switch (type) {
    case ValueType::kNone:
      return json(nullptr);
    case ValueType::kInt: {
      int64_t number = 0;
      const std::string_view text = AsText(bytes);
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
      if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return json(number);
      return json(std::string(text));
    }
    case ValueType::kStr:
      return json(std::string(AsText(bytes)));
    case ValueType::kFloat:
      return NumberJson(Read<double>(bytes.data()));
    case ValueType::kBool:
      return json(bytes[0] != std::byte{0});
    case ValueType::kComplex:
      return ElementJson(DType::kComplex128, bytes.data());
    default:
      return json{{"base64", Base64(bytes)}};
  }
}

}  // namespace stepwell::cli
