// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/base64.h"

#include <cstdint>

namespace stepwell::format::orbax {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

}  // namespace

std::string EncodeBase64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < group.size() ? static_cast<uint8_t>(group[k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      const bool padding = k > group.size();
      out.push_back(padding ? '=' : kDigits[bits >> (18 - 6 * k) & 0x3F]);
    }
  }
  return out;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  for (size_t i = 0; i < text.size(); i += 4) {
    std::string_view group = text.substr(i, 4);
    const bool last = i + 4 == text.size();
    while (last && group.size() > 2 && group.back() == '=') group.remove_suffix(1);
    uint32_t bits = 0;
    for (const char c : group) {
      const size_t digit = kDigits.find(c);
      if (digit == std::string_view::npos) return std::nullopt;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    bits <<= 6 * (4 - group.size());
    for (size_t k = 0; k + 1 < group.size(); ++k) {
      // Of four digits at most: NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult)
      out.push_back(static_cast<char>(bits >> (16 - 8 * k) & 0xFF));
    }
  }
  if (EncodeBase64(out) != text) return std::nullopt;  // bits beyond the last byte
  return out;
}

}  // namespace stepwell::format::orbax
