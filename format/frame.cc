// SPDX-License-Identifier: Apache-2.0
// The fixed layout of frame headers; FORMAT.md has it as a table.
#include "format/frame.h"

#include <algorithm>
#include <cstring>

#include "format/crc32c.h"
#include "format/endian.h"

namespace stepwell::format {
namespace {

// The first byte is not text, the last catches line-end conversion.
constexpr char kMagic[8] = {'\x89', 'S', 'W', 'F', 'R', 'A', 'M', '\n'};
constexpr uint16_t kHeaderVersion = 1;
constexpr auto kKindMax = static_cast<uint16_t>(FrameKind::kLoss);

// Numbers only count up by one: a larger one was never written, and must not overflow here.
constexpr uint64_t kNumberMax = uint64_t{1} << 62;

constexpr size_t kKindAt = 8;
constexpr size_t kVersionAt = 10;
constexpr size_t kPayloadBytesAt = 12;
constexpr size_t kNonceAt = 16;
constexpr size_t kEpochAt = 32;
constexpr size_t kCommitAt = 40;
constexpr size_t kPreviousCommitAt = 48;
constexpr size_t kDurableThroughAt = 56;
constexpr size_t kPreviousSegmentAt = 64;
constexpr size_t kPreviousOffsetAt = 72;
constexpr size_t kPreviousLengthAt = 80;
constexpr size_t kPreviousCrcAt = 84;
constexpr size_t kPreviousDirectoryAt = 88;
// 90: reserved (2); 92: reserved for the previous frame's process (4).
constexpr size_t kPayloadCrcAt = 96;
constexpr size_t kRequiredFlagsAt = 100;
// 104 to 123: reserved, zero.
constexpr size_t kCrcAt = 124;
static_assert(kCrcAt + sizeof(uint32_t) == kFrameHeaderBytes);

}  // namespace

bool IsChainFrame(FrameKind kind) {
  return kind == FrameKind::kEpoch || kind == FrameKind::kCommit || kind == FrameKind::kDelete ||
         kind == FrameKind::kMeta || kind == FrameKind::kPrepared || kind == FrameKind::kDecided ||
         kind == FrameKind::kLoss;
}

std::string EncodeFrame(const FrameHeader& header, std::string_view payload, size_t block_bytes,
                        uint32_t* crc) {
  STEPWELL_CHECK(block_bytes > 0, "block size 0");
  std::string frame(AlignUp(kFrameHeaderBytes + payload.size(), block_bytes), '\0');
  EncodeFrameTo(header, payload, {reinterpret_cast<std::byte*>(frame.data()), frame.size()}, crc);
  return frame;
}

void EncodeFrameTo(FrameHeader header, std::string_view payload, MutableBytes out, uint32_t* crc) {
  STEPWELL_CHECK(payload.size() <= kFramePayloadBytesMax, "frame payload too long");
  STEPWELL_CHECK(out.size() >= kFrameHeaderBytes + payload.size(), "no room for a frame");
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.payload_crc = Crc32c(AsBytes(payload));

  std::byte* const at = out.data();
  std::memset(at, 0, kFrameHeaderBytes);
  std::memcpy(at, kMagic, sizeof(kMagic));
  StoreLittle(at + kKindAt, static_cast<uint16_t>(header.kind));
  StoreLittle(at + kVersionAt, kHeaderVersion);
  StoreLittle(at + kPayloadBytesAt, header.payload_bytes);
  std::memcpy(at + kNonceAt, header.nonce.data(), header.nonce.size());
  StoreLittle(at + kEpochAt, header.epoch);
  StoreLittle(at + kCommitAt, header.commit);
  StoreLittle(at + kPreviousCommitAt, header.previous_commit);
  StoreLittle(at + kDurableThroughAt, header.durable_through);
  StoreLittle(at + kPreviousSegmentAt, header.previous.segment);
  StoreLittle(at + kPreviousOffsetAt, header.previous.offset_bytes);
  StoreLittle(at + kPreviousLengthAt, header.previous.length_bytes);
  StoreLittle(at + kPreviousCrcAt, header.previous.crc);
  StoreLittle(at + kPreviousDirectoryAt, header.previous.directory);
  StoreLittle(at + kPayloadCrcAt, header.payload_crc);
  header.crc = Crc32c({at, kCrcAt});
  StoreLittle(at + kCrcAt, header.crc);
  if (crc != nullptr) *crc = header.crc;

  const MutableBytes body = out.subspan(kFrameHeaderBytes);
  std::memcpy(body.data(), payload.data(), payload.size());
  std::memset(body.data() + payload.size(), 0, body.size() - payload.size());
}

Result<FrameHeader> DecodeFrameHeader(ConstBytes bytes) {
  if (bytes.size() < sizeof(kMagic) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return NotFoundError("no frame here");
  }
  if (bytes.size() < kFrameHeaderBytes) {
    return DataLossError(StrCat("frame header cut short at ", bytes.size(), " bytes"));
  }
  const std::byte* at = bytes.data();
  FrameHeader header;
  header.crc = LoadLittle<uint32_t>(at + kCrcAt);
  const uint32_t found = Crc32c({at, kCrcAt});
  if (found != header.crc) {
    return DataLossError(
        StrCat("frame header checksum mismatch: expected ", header.crc, ", found ", found));
  }
  // From here on the header is as it was written.
  const auto kind = LoadLittle<uint16_t>(at + kKindAt);
  const auto version = LoadLittle<uint16_t>(at + kVersionAt);
  const auto required_flags = LoadLittle<uint32_t>(at + kRequiredFlagsAt);
  if (version != kHeaderVersion || required_flags != 0 || kind > kKindMax) {
    return UnimplementedError(StrCat("a frame of kind ", kind, ", header version ", version,
                                     ", flags ", required_flags,
                                     " needs a newer version of Stepwell"));
  }
  if (kind == 0) return DataLossError("frame kind 0");
  header.kind = static_cast<FrameKind>(kind);
  header.payload_bytes = LoadLittle<uint32_t>(at + kPayloadBytesAt);
  if (header.payload_bytes > kFramePayloadBytesMax) {
    return DataLossError(StrCat("frame payload of ", header.payload_bytes, " bytes; the limit is ",
                                kFramePayloadBytesMax));
  }
  std::memcpy(header.nonce.data(), at + kNonceAt, header.nonce.size());
  header.epoch = LoadLittle<uint64_t>(at + kEpochAt);
  header.commit = LoadLittle<uint64_t>(at + kCommitAt);
  header.previous_commit = LoadLittle<uint64_t>(at + kPreviousCommitAt);
  header.durable_through = LoadLittle<uint64_t>(at + kDurableThroughAt);
  if (std::max({header.epoch, header.commit, header.previous_commit, header.durable_through}) >
      kNumberMax) {
    return DataLossError("frame header with a number out of range");
  }
  header.previous.segment = LoadLittle<uint64_t>(at + kPreviousSegmentAt);
  header.previous.offset_bytes = LoadLittle<uint64_t>(at + kPreviousOffsetAt);
  header.previous.length_bytes = LoadLittle<uint32_t>(at + kPreviousLengthAt);
  header.previous.crc = LoadLittle<uint32_t>(at + kPreviousCrcAt);
  header.previous.directory = LoadLittle<uint16_t>(at + kPreviousDirectoryAt);
  header.payload_crc = LoadLittle<uint32_t>(at + kPayloadCrcAt);
  return header;
}

Status CheckFramePayload(const FrameHeader& header, ConstBytes payload) {
  if (payload.size() != header.payload_bytes) {
    return DataLossError(
        StrCat("frame payload of ", payload.size(), " bytes, expected ", header.payload_bytes));
  }
  const uint32_t found = Crc32c(payload);
  if (found != header.payload_crc) {
    return DataLossError(StrCat("frame payload checksum mismatch: expected ", header.payload_crc,
                                ", found ", found));
  }
  return OkStatus();
}

}  // namespace stepwell::format
