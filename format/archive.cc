// SPDX-License-Identifier: Apache-2.0
#include "format/archive.h"

#include <isa-l/crc.h>
#include <stepwell/npy.h>

#include <algorithm>
#include <array>

#include "format/endian.h"
#include "format/orbax/json.h"

namespace stepwell {
namespace {

// NumPy's letter for the type; 0 when it has none.
char KindLetter(DType dtype) {
  const auto is_within = [dtype](DType first, DType last) {
    return first <= dtype && dtype <= last;
  };
  if (dtype == DType::kBool) return 'b';
  if (is_within(DType::kInt8, DType::kInt64)) return 'i';
  if (is_within(DType::kUInt8, DType::kUInt64)) return 'u';
  if (is_within(DType::kFloat16, DType::kFloat64)) return 'f';
  if (is_within(DType::kComplex64, DType::kComplex128)) return 'c';
  return 0;
}

}  // namespace

std::string NpyDescr(DType dtype) {
  const char letter = KindLetter(dtype);
  if (letter == 0) return "";
  const unsigned item_bytes = FindDType(dtype)->item_bytes;
  return StrCat(item_bytes == 1 ? '|' : '<', letter, item_bytes);
}

std::string EncodeNpyHeader(const std::string& descr, std::span<const uint64_t> shape) {
  std::string extents = "(";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    extents += StrCat(axis == 0 ? "" : " ", shape[axis], ",");
  }
  // (3,) but (3, 4)
  if (shape.size() > 1) extents.pop_back();
  std::string text =
      StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", extents, "), }");
  constexpr size_t kPrefixBytes = 10;
  constexpr size_t kAlignment = 64;
  text.resize(AlignUp(kPrefixBytes + text.size() + 1, kAlignment) - kPrefixBytes - 1, ' ');
  text += '\n';
  std::string bytes = "\x93NUMPY\x01";
  bytes += '\0';
  bytes += static_cast<char>(text.size() & 0xFF);
  bytes += static_cast<char>(text.size() >> 8);
  return bytes + text;
}

namespace format {
namespace {

// ---- safetensors ----

constexpr size_t kLengthBytes = 8;

constexpr std::array<std::pair<DType, std::string_view>, 19> kWords = {{
    {DType::kBool, "BOOL"},
    {DType::kInt8, "I8"},
    {DType::kInt16, "I16"},
    {DType::kInt32, "I32"},
    {DType::kInt64, "I64"},
    {DType::kUInt8, "U8"},
    {DType::kUInt16, "U16"},
    {DType::kUInt32, "U32"},
    {DType::kUInt64, "U64"},
    {DType::kFloat16, "F16"},
    {DType::kFloat32, "F32"},
    {DType::kFloat64, "F64"},
    {DType::kBFloat16, "BF16"},
    {DType::kComplex64, "C64"},
    {DType::kFloat8E4M3FN, "F8_E4M3"},
    {DType::kFloat8E5M2, "F8_E5M2"},
    {DType::kFloat8E4M3FNUZ, "F8_E4M3FNUZ"},
    {DType::kFloat8E5M2FNUZ, "F8_E5M2FNUZ"},
    {DType::kFloat8E8M0FNU, "F8_E8M0"},
}};

// ---- zip ----

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

std::string_view SafetensorsDType(DType dtype) {
  const auto* found = std::find_if(kWords.begin(), kWords.end(),
                                   [dtype](const auto& known) { return known.first == dtype; });
  return found == kWords.end() ? "" : found->second;
}

Result<std::string> EncodeSafetensorsHeader(
    std::span<const SafetensorsTensor> tensors,
    std::span<const std::pair<std::string, std::string>> metadata) {
  orbax::Json::object_t members;
  members.reserve(tensors.size() + 1);
  if (!metadata.empty()) {
    members.push_back({std::string(kSafetensorsMetadata),
                       orbax::Json::object_t(metadata.begin(), metadata.end())});
  }
  for (const SafetensorsTensor& tensor : tensors) {
    members.push_back({tensor.name,
                       {{"dtype", SafetensorsDType(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {tensor.begin_bytes, tensor.end_bytes}}}});
  }
  std::string header(kLengthBytes, '\0');
  header += orbax::Json(std::move(members))
                .dump(-1, ' ', /*ensure_ascii=*/true, orbax::Json::error_handler_t::replace);
  header.resize(AlignUp(header.size(), kLengthBytes), ' ');
  const uint64_t length = header.size() - kLengthBytes;
  if (length > kSafetensorsHeaderBytesMax) {
    return InvalidArgumentError(StrCat("names and metadata take ", length,
                                       " bytes; safetensors' readers take ",
                                       kSafetensorsHeaderBytesMax));
  }
  StoreLittle(reinterpret_cast<std::byte*>(header.data()), length);
  return header;
}

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
  AppendLittle<uint64_t>(44, &out);          // the length of the rest of this record
  AppendLittle<uint16_t>(kMadeByUnix | kVersion, &out);
  AppendLittle<uint16_t>(kVersion, &out);
  AppendLittle<uint32_t>(0, &out);  // this disk, the directory's
  AppendLittle<uint32_t>(0, &out);
  AppendLittle<uint64_t>(members.size(), &out);
  AppendLittle<uint64_t>(members.size(), &out);
  AppendLittle<uint64_t>(directory_bytes, &out);
  AppendLittle<uint64_t>(offset_bytes, &out);
  AppendLittle<uint32_t>(0x07064b50, &out);  // the locator of that record
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

}  // namespace format
}  // namespace stepwell
