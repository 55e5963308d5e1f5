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

// The shortest text that reads back as the same double.
std::string ShortestText(double value) {
  if (!std::isfinite(value)) return NumberText(value, 8);
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

std::string ComplexText(std::complex<double> value, int digits) {
  const double real = value.real();
  const double imaginary = value.imag();
  const bool minus = std::signbit(imaginary) && !std::isnan(imaginary);
  return StrCat("(", NumberText(real, digits), minus ? "" : "+", NumberText(imaginary, digits),
                "j)");
}

json ComplexJson(std::complex<double> value) {
  return json::array({NumberJson(value.real()), NumberJson(value.imag())});
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

// Writes bytes as Python's repr does.
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

std::string ValueText(const Value& value) {
  return std::visit(ValueTexts(), static_cast<const ValueVariant&>(value));
}

json ValueJson(const Value& value) {
  return std::visit(ValueDocuments(), static_cast<const ValueVariant&>(value));
}

}  // namespace stepwell::cli
