// SPDX-License-Identifier: Apache-2.0
#include "format/zip.h"

#include <isa-l/crc.h>

#include <algorithm>

#include "format/endian.h"

namespace stepwell::format {
namespace {

constexpr size_t kCrcStepBytesMax = size_t{1} << 30;
constexpr uint16_t kVersion = 45;           // zip64
constexpr uint16_t kMadeByUnix = 3 << 8;    // so that the modes below count
constexpr uint32_t kRegularFile = 0100644;  // of the member, once unzipped
constexpr uint16_t kNameIsUtf8 = 1 << 11;
constexpr uint16_t kFirstOfJanuary1980 = 33;  // the zero of zip files: no clock is in them
constexpr uint16_t kZip64Extra = 1;
constexpr uint32_t kInZip64 = 0xFFFFFFFF;

// The fields that local headers and the directory share.
void AppendCommon(const ZipMember& member, uint16_t extra_bytes, std::string* out) {
  const bool ascii = std::all_of(member.name.begin(), member.name.end(),
                                 [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  AppendLittle<uint16_t>(kVersion, out);
  AppendLittle<uint16_t>(ascii ? 0 : kNameIsUtf8, out);
  AppendLittle<uint16_t>(0, out);  // stored
  AppendLittle<uint16_t>(0, out);
  AppendLittle<uint16_t>(kFirstOfJanuary1980, out);
  AppendLittle<uint32_t>(member.crc, out);
  AppendLittle<uint32_t>(kInZip64, out);
  AppendLittle<uint32_t>(kInZip64, out);
  AppendLittle<uint16_t>(static_cast<uint16_t>(member.name.size()), out);
  AppendLittle<uint16_t>(extra_bytes, out);
}

}  // namespace

uint32_t ExtendCrc32(uint32_t crc, ConstBytes bytes) {
  while (!bytes.empty()) {
    const size_t step = std::min(bytes.size(), kCrcStepBytesMax);
    crc = crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), step);
    bytes = bytes.subspan(step);
  }
  return crc;
}

std::string EncodeZipLocalHeader(const ZipMember& member) {
  std::string out;
  AppendLittle<uint32_t>(0x04034b50, &out);
  AppendCommon(member, 20, &out);
  out += member.name;
  AppendLittle<uint16_t>(kZip64Extra, &out);
  AppendLittle<uint16_t>(16, &out);
  AppendLittle<uint64_t>(member.size_bytes, &out);
  AppendLittle<uint64_t>(member.size_bytes, &out);
  return out;
}

std::string EncodeZipEnd(std::span<const ZipMember> members, uint64_t offset_bytes) {
  std::string out;
  for (const ZipMember& member : members) {
    AppendLittle<uint32_t>(0x02014b50, &out);
    AppendLittle<uint16_t>(kMadeByUnix | kVersion, &out);
    AppendCommon(member, 28, &out);
    AppendLittle<uint16_t>(0, &out);  // no comment
    AppendLittle<uint16_t>(0, &out);  // first disk
    AppendLittle<uint16_t>(0, &out);
    AppendLittle<uint32_t>(kRegularFile << 16, &out);
    AppendLittle<uint32_t>(kInZip64, &out);
    out += member.name;
    AppendLittle<uint16_t>(kZip64Extra, &out);
    AppendLittle<uint16_t>(24, &out);
    AppendLittle<uint64_t>(member.size_bytes, &out);
    AppendLittle<uint64_t>(member.size_bytes, &out);
    AppendLittle<uint64_t>(member.offset_bytes, &out);
  }
  const uint64_t directory_bytes = out.size();
  AppendLittle<uint32_t>(0x06064b50, &out);  // zip64 end of central directory
  AppendLittle<uint64_t>(44, &out);          // what follows of it
  AppendLittle<uint16_t>(kMadeByUnix | kVersion, &out);
  AppendLittle<uint16_t>(kVersion, &out);
  AppendLittle<uint32_t>(0, &out);  // this disk, the directory's
  AppendLittle<uint32_t>(0, &out);
  AppendLittle<uint64_t>(members.size(), &out);
  AppendLittle<uint64_t>(members.size(), &out);
  AppendLittle<uint64_t>(directory_bytes, &out);
  AppendLittle<uint64_t>(offset_bytes, &out);
  AppendLittle<uint32_t>(0x07064b50, &out);  // where that is
  AppendLittle<uint32_t>(0, &out);
  AppendLittle<uint64_t>(offset_bytes + directory_bytes, &out);
  AppendLittle<uint32_t>(1, &out);
  AppendLittle<uint32_t>(0x06054b50, &out);  // end of central directory
  AppendLittle<uint16_t>(0, &out);
  AppendLittle<uint16_t>(0, &out);
  AppendLittle<uint16_t>(0xFFFF, &out);
  AppendLittle<uint16_t>(0xFFFF, &out);
  AppendLittle<uint32_t>(kInZip64, &out);
  AppendLittle<uint32_t>(kInZip64, &out);
  AppendLittle<uint16_t>(0, &out);
  return out;
}

}  // namespace stepwell::format
