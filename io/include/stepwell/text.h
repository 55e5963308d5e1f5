// SPDX-License-Identifier: Apache-2.0
// Text for people: concatenation, sizes, tables.
#pragma once

#include <charconv>
#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <stepwell/export.h>

namespace stepwell {

namespace internal {

// Writes a value as operator<< does, without the cost of a stream for texts and integers.
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

// "1 axis", "2 axes".
inline std::string Counted(uint64_t count, std::string_view one, std::string_view many) {
  return StrCat(count, " ", count == 1 ? one : many);
}

STEPWELL_API std::string HumanBytes(uint64_t bytes);  // "512 B", "1.4 MiB"

// Columns padded to their widest cell, two blanks between; no blanks at line ends. `right` says
// which columns are numbers, set right; those after its last are. Widths count UTF-8 characters.
STEPWELL_API std::string Table(const std::vector<std::vector<std::string>>& rows,
                               const std::vector<bool>& right);

}  // namespace stepwell
