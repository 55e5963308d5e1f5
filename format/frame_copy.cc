// SPDX-License-Identifier: Apache-2.0
#include "format/frame_copy.h"

#include <algorithm>
#include <cstring>

#include "format/crc32c.h"
#include "format/endian.h"

namespace stepwell::format {
namespace {

constexpr char kCopyMagic[8] = {'\x89', 'S', 'W', 'C', 'O', 'P', 'Y', '\n'};
constexpr size_t kLengthAt = 8;
constexpr size_t kBodyCrcAt = 12;
constexpr size_t kPlaceAt = 16;  // 32 bytes, as in slots
constexpr size_t kCopyNonceAt = 48;
constexpr size_t kCopyCrcAt = 64;
// 68: reserved, zero.

// The message of a commit frame without what only a load of the step needs.
std::string Brief(std::string_view frame, const FrameHeader& header) {
  if (header.kind != FrameKind::kCommit && header.kind != FrameKind::kPrepared) return {};
  auto commit = DecodeCommit(AsBytes(frame.substr(kFrameHeaderBytes)));
  if (!commit.ok()) return {};
  commit->step.metadata_json.clear();
  commit->step.metrics_json.clear();
  commit->blocks.clear();
  commit->records.clear();
  return std::string(frame.substr(0, kFrameHeaderBytes)) + EncodeCommit(*commit);
}

}  // namespace

Result<CopiedFrame> OpenFrameCopy(const FrameCopy& copy) {
  CopiedFrame frame;
  const ConstBytes bytes = AsBytes(copy.bytes);
  if (bytes.size() < kFrameHeaderBytes) return DataLossError("a copy shorter than a frame header");
  STEPWELL_ASSIGN_OR_RETURN(frame.header, DecodeFrameHeader(bytes.first(kFrameHeaderBytes)));
  if (frame.header.crc != copy.place.crc) return DataLossError("a copy of another frame");
  frame.payload = copy.bytes.substr(kFrameHeaderBytes);
  frame.whole = copy.whole();
  if (frame.whole) {
    STEPWELL_RETURN_IF_ERROR(CheckFramePayload(frame.header, AsBytes(frame.payload)));
  }
  return frame;
}

std::string MakeFrameCopy(std::string_view frame, size_t bytes_max) {
  if (frame.size() < kFrameHeaderBytes) return {};
  if (frame.size() <= bytes_max) return std::string(frame);
  const auto header = DecodeFrameHeader(AsBytes(frame.substr(0, kFrameHeaderBytes)));
  if (!header.ok()) return {};
  std::string brief = Brief(frame, *header);
  // As long as the frame, it would pass for it.
  return brief.size() <= bytes_max && brief.size() != frame.size() ? brief : std::string();
}

size_t FrameCopySpace(size_t frame_bytes) {
  return AlignUp(kCopyHeaderBytes + frame_bytes, kCopyAlignment);
}

void EncodeFrameCopy(const FrameCopy& copy, const Id128& nonce, MutableBytes out) {
  std::byte* const at = out.data();
  std::memset(at, 0, out.size());
  std::memcpy(at, kCopyMagic, sizeof(kCopyMagic));
  StoreLittle(at + kLengthAt, static_cast<uint32_t>(copy.bytes.size()));
  StoreLittle(at + kBodyCrcAt, Crc32c(AsBytes(copy.bytes)));
  StoreLittle(at + kPlaceAt, copy.place.segment);
  StoreLittle(at + kPlaceAt + 8, copy.place.offset_bytes);
  StoreLittle(at + kPlaceAt + 16, copy.place.length_bytes);
  StoreLittle(at + kPlaceAt + 20, copy.place.crc);
  StoreLittle(at + kPlaceAt + 24, copy.place.directory);
  std::memcpy(at + kCopyNonceAt, nonce.data(), nonce.size());
  StoreLittle(at + kCopyCrcAt, Crc32c({at, kCopyCrcAt}));
  std::memcpy(at + kCopyHeaderBytes, copy.bytes.data(), copy.bytes.size());
}

Result<FrameCopyHeader> DecodeFrameCopyHeader(ConstBytes bytes, const Id128& nonce) {
  if (bytes.size() < kCopyHeaderBytes ||
      std::memcmp(bytes.data(), kCopyMagic, sizeof(kCopyMagic)) != 0) {
    return NotFoundError("no copy here");
  }
  const std::byte* const at = bytes.data();
  if (LoadLittle<uint32_t>(at + kCopyCrcAt) != Crc32c({at, kCopyCrcAt})) {
    return DataLossError("a copy's header is damaged");
  }
  if (std::memcmp(at + kCopyNonceAt, nonce.data(), nonce.size()) != 0) {
    return NotFoundError("a copy of an earlier life of the file");
  }
  FrameCopyHeader header;
  header.length_bytes = LoadLittle<uint32_t>(at + kLengthAt);
  header.crc = LoadLittle<uint32_t>(at + kBodyCrcAt);
  header.place.segment = LoadLittle<uint64_t>(at + kPlaceAt);
  header.place.offset_bytes = LoadLittle<uint64_t>(at + kPlaceAt + 8);
  header.place.length_bytes = LoadLittle<uint32_t>(at + kPlaceAt + 16);
  header.place.crc = LoadLittle<uint32_t>(at + kPlaceAt + 20);
  header.place.directory = LoadLittle<uint16_t>(at + kPlaceAt + 24);
  if (header.length_bytes > kCopyBytesMax) return DataLossError("a copy that is too long");
  return header;
}

}  // namespace stepwell::format
