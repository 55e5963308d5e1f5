// SPDX-License-Identifier: Apache-2.0
// Fixed-width integers to and from bytes. Little-endian in fixed layouts, big-endian in keys.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace stepwell::format {

static_assert(std::endian::native == std::endian::little,
              "array bytes are stored as they lie in memory, which must be little-endian");

template <typename T>
inline void StoreLittle(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
inline T LoadLittle(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
inline void AppendLittle(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// `to` and `from` have 8 bytes.
inline void StoreBig64(char* to, uint64_t value) {
  value = __builtin_bswap64(value);
  std::memcpy(to, &value, sizeof(value));
}
inline uint64_t LoadBig64(const char* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return __builtin_bswap64(value);
}

}  // namespace stepwell::format
