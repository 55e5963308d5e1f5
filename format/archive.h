// SPDX-License-Identifier: Apache-2.0
// Encodes the parts around the elements of files of arrays: .safetensors (8 bytes of length, JSON,
// then the tensors' bytes without gaps), and zip files whose members are stored, not compressed.
// They are zip64 throughout, so sizes have no bounds.
//
// Writes zip files itself, although libraries do: those of Debian (libzip, minizip) want to open,
// write and rename the file themselves, past io::FileSystem and without its sync, and their CRC
// runs at a tenth of the disk's speed here. Stored members need no more than these four records.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "format/dtype.h"
#include "format/grid.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

// ---- safetensors ----

// The format's word for an element type ("BF16"); empty: it has none.
std::string_view SafetensorsDType(DType dtype);

struct SafetensorsTensor {
  std::string name;  // UTF-8, not kSafetensorsMetadata; unique
  DType dtype = DType::kInvalid;
  Shape shape;
  uint64_t begin_bytes = 0;  // in the data, which begins behind the header
  uint64_t end_bytes = 0;
};
// The key that is not a tensor.
inline constexpr std::string_view kSafetensorsMetadata = "__metadata__";
// Readers refuse longer ones.
inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;

// Length and JSON, padded so that the data begins at a multiple of 8 bytes. `tensors` lie in the
// order of their bytes; all texts are UTF-8. kInvalidArgument: too long for readers.
Result<std::string> EncodeSafetensorsHeader(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata);

// ---- zip ----

struct ZipMember {
  std::string name;  // UTF-8, at most kZipNameBytesMax
  uint64_t size_bytes = 0;
  uint64_t offset_bytes = 0;  // of its local header
  uint32_t crc = 0;           // Crc32 of its bytes
};
inline constexpr size_t kZipNameBytesMax = 65535;

// CRC-32 of (what gave `crc`) followed by `bytes`; 0 begins.
uint32_t ExtendCrc32(uint32_t crc, ConstBytes bytes);

// Encodes the header before a member's bytes. Its crc may come later: 4 bytes, little-endian, at
// kZipCrcOffset in it.
std::string EncodeZipLocalHeader(const ZipMember& member);
inline constexpr uint64_t kZipCrcOffset = 14;
// Encodes the records after the last member's bytes, at `offset_bytes`.
std::string EncodeZipEnd(std::span<const ZipMember> members, uint64_t offset_bytes);

}  // namespace stepwell::format
