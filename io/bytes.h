// SPDX-License-Identifier: Apache-2.0
// Spans of bytes, alignment arithmetic and string concatenation: the small vocabulary of all
// folders.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace stepwell {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline ConstBytes AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// `alignment` is any positive number, not only a power of two.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr uint64_t AlignDown(uint64_t value, uint64_t alignment) {
  return value / alignment * alignment;
}

namespace internal {

// As operator<< writes it, without the cost of a stream for texts and integers.
template <typename Piece>
void AppendPiece(const Piece& piece, std::string* out) {
  if constexpr (std::is_convertible_v<const Piece&, std::string_view>) {
    out->append(std::string_view(piece));
  } else if constexpr (std::is_integral_v<Piece> && sizeof(Piece) > 1) {
    char digits[24];
    const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), piece);
    out->append(digits, end);
  } else {
    std::ostringstream stream;
    stream << piece;
    out->append(std::move(stream).str());
  }
}

}  // namespace internal

template <typename... Args>
std::string StrCat(const Args&... args) {
  std::string out;
  (internal::AppendPiece(args, &out), ...);
  return out;
}

}  // namespace stepwell
