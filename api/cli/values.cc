// SPDX-License-Identifier: Apache-2.0
#include "api/cli/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <variant>

#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

using nlohmann::json;

template <typename T>
T Read(const std::byte* element) {
  T value;
  std::memcpy(&value, element, sizeof(value));
  return value;
}

// The shortest text that reads back as the same double.
std::string ShortestText(double value) {
  if (!std::isfinite(value)) return NumberText(value, 8);
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

// Signed integers of any size; those that a double holds come from DecodeNumber.
bool IsSigned(DType dtype, int64_t* value, const std::byte* element) {
  switch (dtype) {
    case DType::kInt2:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
      return *value = static_cast<int64_t>(DecodeNumber(dtype, element)), true;
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
    case DType::kUInt16:
    case DType::kUInt32:
      return *value = static_cast<uint64_t>(DecodeNumber(dtype, element)), true;
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
std::string ComplexText(std::complex<T> value, int digits) {
  const double real = Readable(value.real());
  const double imaginary = Readable(value.imag());
  const bool minus = std::signbit(imaginary) && !std::isnan(imaginary);
  return StrCat("(", NumberText(real, digits), minus ? "" : "+", NumberText(imaginary, digits),
                "j)");
}

template <typename T>
json ComplexJson(std::complex<T> value) {
  return json::array({NumberJson(Readable(value.real())), NumberJson(Readable(value.imag()))});
}

// ---- arrays -------------------------------------------------------------------------------

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

std::string Base64(const Bytes& bytes) {
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
std::string BytesText(const Bytes& bytes) {
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

struct ValueTexts {
  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return ShortestText(value); }
  std::string operator()(std::complex<double> value) const { return ComplexText(value, 17); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const Bytes& value) const { return BytesText(value); }
  std::string operator()(const BigInt& value) const { return value.decimal; }
};

struct ValueDocuments {
  json operator()(std::monostate) const { return nullptr; }
  json operator()(bool value) const { return value; }
  json operator()(int64_t value) const { return value; }
  json operator()(double value) const { return NumberJson(value); }
  json operator()(std::complex<double> value) const { return ComplexJson(value); }
  json operator()(const std::string& value) const { return value; }
  json operator()(const Bytes& value) const { return {{"base64", Base64(value)}}; }
  json operator()(const BigInt& value) const { return value.decimal; }
};

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

std::string ElementText(DType dtype, const std::byte* element) {
  int64_t number = 0;
  uint64_t natural = 0;
  if (dtype == DType::kBool) return Read<uint8_t>(element) != 0 ? "True" : "False";
  if (IsSigned(dtype, &number, element)) return std::to_string(number);
  if (IsUnsigned(dtype, &natural, element)) return std::to_string(natural);
  if (dtype == DType::kFloat64) return NumberText(Read<double>(element), 8);
  if (dtype == DType::kComplex64) return ComplexText(Read<std::complex<float>>(element), 8);
  if (dtype == DType::kComplex128) return ComplexText(Read<std::complex<double>>(element), 8);
  if (dtype == DType::kFloat32) return NumberText(Readable(Read<float>(element)), 8);
  return NumberText(DecodeNumber(dtype, element), 6);
}

json ElementJson(DType dtype, const std::byte* element) {
  int64_t number = 0;
  uint64_t natural = 0;
  if (dtype == DType::kBool) return Read<uint8_t>(element) != 0;
  if (IsSigned(dtype, &number, element)) return number;
  if (IsUnsigned(dtype, &natural, element)) return natural;
  if (dtype == DType::kFloat64) return NumberJson(Read<double>(element));
  if (dtype == DType::kFloat32) return NumberJson(Readable(Read<float>(element)));
  if (dtype == DType::kComplex64) return ComplexJson(Read<std::complex<float>>(element));
  if (dtype == DType::kComplex128) return ComplexJson(Read<std::complex<double>>(element));
  return NumberJson(DecodeNumber(dtype, element));
}

std::vector<uint64_t> PartExtents(const std::vector<uint64_t>& shape,
                                  const std::vector<uint64_t>& edge_counts) {
  std::vector<uint64_t> extents = shape;
  for (size_t axis = 0; axis < extents.size(); ++axis) {
    if (edge_counts[axis] != 0) extents[axis] = 2 * edge_counts[axis];
  }
  return extents;
}

ArrayPrinter::ArrayPrinter(DType dtype, const std::vector<uint64_t>& shape,
                           const std::vector<uint64_t>& edge_counts)
    : dtype_(dtype), edge_counts_(edge_counts), extents_(PartExtents(shape, edge_counts)) {}

std::string ArrayPrinter::Print(std::span<const std::byte> elements) {
  const size_t item_bytes = FindDType(dtype_)->item_bytes;
  std::vector<std::string> cells;
  for (size_t at = 0; at + item_bytes <= elements.size(); at += item_bytes) {
    cells.push_back(ElementText(dtype_, &elements[at]));
    width_ = std::max(width_, cells.back().size());
  }
  std::string text;
  for (const std::string& cell : cells) {
    StartOf(cell, &text);
    text += cell;
  }
  return text;
}

void ArrayPrinter::StartOf(const std::string& cell, std::string* text) {
  const size_t axes = extents_.size();
  if (axes == 0) return;
  size_t axis = axes - 1;  // that goes on; those inside it start anew
  if (index_.empty()) {
    index_.assign(axes, 0);
    *text += std::string(axes, '[');
    column_ = axes;
  } else {
    while (axis > 0 && index_[axis] + 1 == extents_[axis]) index_[axis--] = 0;
    ++index_[axis];
    const size_t inside = axes - 1 - axis;
    // Like NumPy: blank lines between blocks of more than one axis.
    const std::string between =
        inside == 0 ? " " : std::string(inside, '\n') + std::string(axis + 1, ' ');
    *text += std::string(inside, ']') + between;
    if (edge_counts_[axis] != 0 && index_[axis] == edge_counts_[axis]) *text += "..." + between;
    *text += std::string(inside, '[');
    if (inside > 0) column_ = axes;
  }
  const size_t width = std::max(width_, cell.size());
  if (column_ + width + 2 > kColumns && index_.back() > 0) {
    text->back() = '\n';
    *text += std::string(axes, ' ');
    column_ = axes;
  }
  column_ += width + 1;
  *text += std::string(width - cell.size(), ' ');
}

std::string ArrayPrinter::End() const {
  if (!extents_.empty() && index_.empty()) return "[]";  // it has no elements
  return std::string(extents_.size(), ']');
}

std::string ArrayText(const ArrayPart& part) {
  ArrayPrinter printer(part.dtype, part.shape, part.edge_counts);
  const std::string text = printer.Print(part.bytes);
  return text + printer.End();
}

json ArrayJson(const ArrayPart& part) {
  size_t offset = 0;
  return AxisJson(part, 0, FindDType(part.dtype)->item_bytes, &offset);
}

std::string ValueText(const Value& value) {
  return std::visit(ValueTexts(), static_cast<const ValueVariant&>(value));
}

json ValueJson(const Value& value) {
  return std::visit(ValueDocuments(), static_cast<const ValueVariant&>(value));
}

}  // namespace stepwell::cli
