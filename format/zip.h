// SPDX-License-Identifier: Apache-2.0
// What a zip file has around members that are stored, not compressed: zip64 throughout, so sizes
// have no bounds.
//
// Of our own, though libraries write zip files: those of Debian (libzip, minizip) want to open,
// write and rename the file themselves, past io::FileSystem and without its sync, and their CRC
// runs at a tenth of the disk's speed here. Stored members need no more than these four records.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/bytes.h"

namespace stepwell::format {

struct ZipMember {
  std::string name;  // UTF-8, at most kZipNameBytesMax
  uint64_t size_bytes = 0;
  uint64_t offset_bytes = 0;  // of its local header
  uint32_t crc = 0;           // Crc32 of its bytes
};
inline constexpr size_t kZipNameBytesMax = 65535;

// CRC-32 of (what gave `crc`) followed by `bytes`; 0 begins.
uint32_t ExtendCrc32(uint32_t crc, ConstBytes bytes);

// What precedes a member's bytes. Its crc may come later: 4 bytes, little-endian, at kZipCrcOffset
// in it.
std::string EncodeZipLocalHeader(const ZipMember& member);
inline constexpr uint64_t kZipCrcOffset = 14;
// What follows the last member's bytes, at `offset_bytes`.
std::string EncodeZipEnd(std::span<const ZipMember> members, uint64_t offset_bytes);

}  // namespace stepwell::format
