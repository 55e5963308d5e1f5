// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/python_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace stepwell::format::orbax {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

void AppendHex(uint32_t value, int digits, std::string* out) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out->push_back(kHexDigits[(value >> shift) & 0xF]);
  }
}

constexpr char32_t kReplacement = 0xFFFD;  // for a byte that is no UTF-8, which callers refuse

char32_t CheckedCodePoint(std::string_view* text) {
  const std::string_view before = *text;
  const std::optional<char32_t> code_point = TakeCodePoint(text);
  if (code_point) return *code_point;
  *text = before.substr(1);
  return kReplacement;
}

// The bytes that CheckedCodePoint took from `before`, of which `rest` is left.
std::string_view TakenUtf8(std::string_view before, std::string_view rest, char32_t code_point) {
  const std::string_view taken = before.substr(0, before.size() - rest.size());
  return code_point == kReplacement ? "\xEF\xBF\xBD" : taken;
}

void AppendRepresented(char32_t code_point, char quote, std::string_view utf8, std::string* out) {
  if (code_point == U'\\' || code_point == static_cast<char32_t>(quote)) {
    out->push_back('\\');
    out->push_back(static_cast<char>(code_point));
  } else if (code_point == U'\n') {
    out->append("\\n");
  } else if (code_point == U'\r') {
    out->append("\\r");
  } else if (code_point == U'\t') {
    out->append("\\t");
  } else if (IsPrintable(code_point)) {
    out->append(utf8);
  } else if (code_point <= 0xFF) {
    out->append("\\x");
    AppendHex(code_point, 2, out);
  } else if (code_point <= 0xFFFF) {
    out->append("\\u");
    AppendHex(code_point, 4, out);
  } else {
    out->append("\\U");
    AppendHex(code_point, 8, out);
  }
}

}  // namespace

std::optional<char32_t> TakeCodePoint(std::string_view* text) {
  if (text->empty()) return std::nullopt;
  const auto lead = static_cast<uint8_t>(text->front());
  if (lead < 0x80) {
    text->remove_prefix(1);
    return lead;
  }
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text->size() < length) return std::nullopt;
  char32_t code_point = lead & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto next = static_cast<uint8_t>((*text)[i]);
    if ((next & 0xC0) != 0x80) return std::nullopt;
    code_point = code_point << 6 | (next & 0x3FU);
  }
  const bool overlong =
      (length == 3 && code_point < 0x800) || (length == 4 && code_point < 0x10000);
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (overlong || surrogate || code_point > 0x10FFFF) return std::nullopt;
  text->remove_prefix(length);
  return code_point;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    if (!TakeCodePoint(&text)) return false;
  }
  return true;
}

std::string Printable(std::string_view bytes) {
  constexpr size_t kBytesMax = 200;
  std::string out;
  for (const char c : bytes.substr(0, kBytesMax)) {
    if (c >= ' ' && c <= '~') {
      out.push_back(c);
    } else {
      out.append("\\x");
      AppendHex(static_cast<uint8_t>(c), 2, &out);
    }
  }
  if (bytes.size() > kBytesMax) out.append("...");
  return out;
}

void AppendPythonRepr(std::string_view text, std::string* out) {
  // Python prefers single quotes.
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out->push_back(quote);
  while (!text.empty()) {
    const std::string_view before = text;
    const char32_t code_point = CheckedCodePoint(&text);
    AppendRepresented(code_point, quote, TakenUtf8(before, text, code_point), out);
  }
  out->push_back(quote);
}

void AppendJsonFloat(double value, std::string* out) {
  if (std::isnan(value)) {
    out->append("NaN");
    return;
  }
  if (std::isinf(value)) {
    out->append(value < 0 ? "-Infinity" : "Infinity");
    return;
  }
  // The shortest digits that read back; Python uses an exponent below 1e-4 and from 1e16.
  std::array<char, 32> buffer{};
  const auto scientific = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                        std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(scientific.ptr - buffer.data()));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    out->append(text);  // at least two digits of exponent, in both
    return;
  }
  std::array<char, 64> fixed{};
  const auto end =
      std::to_chars(fixed.data(), fixed.data() + fixed.size(), value, std::chars_format::fixed);
  const std::string_view digits(fixed.data(), static_cast<size_t>(end.ptr - fixed.data()));
  out->append(digits);
  if (digits.find('.') == std::string_view::npos) out->append(".0");
}

}  // namespace stepwell::format::orbax
