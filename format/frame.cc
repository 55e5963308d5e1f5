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
constexpr uint16_t kHeaderVersion = 2;
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
constexpr size_t kPreviousPlaceAt = 64;
constexpr size_t kPayloadCrcAt = 88;
// 92 to 123: zeros, which the CRC covers.
constexpr size_t kCrcAt = 124;
static_assert(kCrcAt + sizeof(uint32_t) == kFrameHeaderBytes);

// Begins a copy of a frame.
constexpr char kCopyMagic[8] = {'\x89', 'S', 'W', 'C', 'O', 'P', 'Y', '\n'};
constexpr size_t kLengthAt = 8;
constexpr size_t kBodyCrcAt = 12;
constexpr size_t kPlaceAt = 16;
constexpr size_t kCopyNonceAt = 40;
constexpr size_t kCopyCrcAt = 56;
// 60: zeros.

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

// Segment 8, offset 8, length 4, CRC 4.
void StorePlace(const FramePlace& place, std::byte* at) {
  StoreLittle(at, place.segment);
  StoreLittle(at + 8, place.offset_bytes);
  StoreLittle(at + 16, place.length_bytes);
  StoreLittle(at + 20, place.crc);
}

FramePlace LoadPlace(const std::byte* at) {
  FramePlace place;
  place.segment = LoadLittle<uint64_t>(at);
  place.offset_bytes = LoadLittle<uint64_t>(at + 8);
  place.length_bytes = LoadLittle<uint32_t>(at + 16);
  place.crc = LoadLittle<uint32_t>(at + 20);
  return place;
}

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
  StorePlace(header.previous, at + kPreviousPlaceAt);
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
  if (version != kHeaderVersion || kind > kKindMax) {
    return UnimplementedError(StrCat("a frame of kind ", kind, ", header version ", version,
                                     " needs another version of Stepwell"));
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
  header.previous = LoadPlace(at + kPreviousPlaceAt);
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
  // A brief as long as the frame would pass for the frame.
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
  StorePlace(copy.place, at + kPlaceAt);
  std::memcpy(at + kCopyNonceAt, nonce.data(), nonce.size());
  StoreLittle(at + kCopyCrcAt, Crc32c({at, kCopyCrcAt}));
  std::memcpy(at + kCopyHeaderBytes, copy.bytes.data(), copy.bytes.size());
}

size_t BytesWithCopy(size_t frame_bytes) {
  return AlignUp(frame_bytes, kCopyAlignment) + FrameCopySpace(frame_bytes);
}

void EncodeOwnCopy(const FramePlace& place, const Id128& nonce, MutableBytes run) {
  const std::string frame(reinterpret_cast<const char*>(run.data()), place.length_bytes);
  const size_t at = AlignUp(frame.size(), kCopyAlignment);
  EncodeFrameCopy({place, frame}, nonce, run.subspan(at, FrameCopySpace(frame.size())));
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
  header.place = LoadPlace(at + kPlaceAt);
  if (header.length_bytes > kCopyBytesMax) return DataLossError("a copy that is too long");
  return header;
}

}  // namespace stepwell::format
