// SPDX-License-Identifier: Apache-2.0
// Databases for tests: real ones as hexadecimal text, files in memory, and frames made by hand.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/crc32c.h"
#include "format/endian.h"
#include "format/orbax/ocdbt_internal.h"
#include "format/orbax/ocdbt_read.h"

namespace stepwell::format::orbax {

// Digits in pairs; blanks mean nothing.
inline std::string Hex(std::string_view text) {
  std::string bytes;
  int digits = 0;
  int value = 0;
  for (const char c : text) {
    if (c == ' ') continue;
    value = value * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    if (++digits % 2 == 0) {
      bytes.push_back(static_cast<char>(value));
      value = 0;
    }
  }
  return bytes;
}

// A database that TensorStore 0.1.86 wrote: {a/0: "HELLO", a/1: 16 bytes of a file, ab: "!"}.
inline constexpr char kRealFile[] = "d/4721149885db98c997b84e47661092a5";
inline constexpr char kRealValue[] = "0123456789ABCDEF";
inline std::string RealLeaf() {
  return Hex("0cdb20de 5100000000000000 00 00 00 01 22 00") + kRealFile + Hex("03 0201 030101") +
         "a/01b" + Hex("051001 000100 00 00") + "HELLO!" + Hex("fd169ece");
}
inline std::string RealManifest() {
  return Hex("0cdb3a2a 8600000000000000 00 00 000102030405060708090a0b0c0d0e0f") +
         Hex("00 08 80808004 04 00 02 00 0022 0000") + kRealFile +
         Hex("02 0102 0000 0001 ffffffffffffffffff01 10 ffffffffffffffffff01 51 0003 0051 0010") +
         Hex("12c9fd2c79ffe918 eb11462d79ffe918 00 18d331ac");
}

inline std::string WithCrc(std::string frame) {
  std::byte crc[4];
  StoreLittle(crc, Crc32c(AsBytes(frame)));
  return frame.append(AsText(crc));
}
// `head`: version and compression.
inline std::string Frame(internal::FrameMagic magic, std::string_view body,
                         std::string_view head = std::string_view("\0\0", 2)) {
  std::string frame(12, '\0');
  auto* at = reinterpret_cast<std::byte*>(frame.data());
  StoreLittle(at, __builtin_bswap32(static_cast<uint32_t>(magic)));
  StoreLittle(at + 4, uint64_t{18} + body.size());
  return WithCrc(frame.append(head).append(body));
}

inline std::string Varints(const std::vector<uint64_t>& values) {
  std::string bytes;
  for (const uint64_t value : values) internal::AppendVarint(value, &bytes);
  return bytes;
}

using Files = std::map<std::string, std::string>;

// Reads `files`; a range that they do not have is kNotFound.
inline OcdbtRead ReadOf(const Files& files, int* reads = nullptr) {
  return [&files, reads](const std::string& path, uint64_t offset,
                         uint64_t length) -> Result<std::string> {
    if (reads != nullptr) ++*reads;
    const auto file = files.find(path);
    if (file == files.end() || offset > file->second.size() ||
        length > file->second.size() - offset) {
      return NotFoundError(StrCat("no such range of ", path));
    }
    return file->second.substr(offset, length);
  };
}

// The result of a walk: inline bytes, or "path offset length" with an @ before.
using Found = std::vector<std::pair<std::string, std::string>>;
inline OcdbtVisit CollectIn(Found* found) {
  return [found](std::string_view key, const OcdbtValue& value) {
    found->emplace_back(key, value.is_inline ? std::string(value.inline_value)
                                             : StrCat("@", value.path, " ", value.offset_bytes, " ",
                                                      value.length_bytes));
    return OkStatus();
  };
}

}  // namespace stepwell::format::orbax
