// SPDX-License-Identifier: Apache-2.0
// Frames: everything in a segment that is not a chunk's payload. A fixed 128-byte header, then a
// Cap'n Proto message. Frames start on block boundaries; what follows up to the next boundary is
// zeros. Layout: FORMAT.md, "Frames".
#pragma once

#include <cstdint>
#include <string>

#include "format/records.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

enum class FrameKind : uint16_t {
  kSegmentHeader = 1,
  kCatalog = 2,
  kEpoch = 3,  // chain
  kRecords = 4,
  kCommit = 5,  // chain
  kDelete = 6,  // chain
  kMeta = 7,    // chain: pins
  kFooter = 8,
  kTrailer = 9,
  kDecided = 10,   // chain: what became of a prepared step
  kPrepared = 11,  // chain: a part of a step that is not decided yet
  kCatalogPage = 12,
  kLoss = 13,  // chain: earlier chain frames are lost
};

inline constexpr size_t kFrameHeaderBytes = 128;
inline constexpr size_t kFramePayloadBytesMax = size_t{256} << 20;

// Frames that carry commit numbers of their own and form the chain: commit, delete, meta, epoch,
// prepared, decided, loss.
// (An epoch frame takes a number too, so the chain has no gaps.)
bool IsChainFrame(FrameKind kind);

struct FrameHeader {
  FrameKind kind = FrameKind::kCommit;
  Id128 nonce{};  // of the segment
  uint64_t epoch = 0;
  uint64_t commit = 0;  // chain frames: this frame's number; others: the last number before
  FramePlace previous;  // chain frames: the previous chain frame; length 0: none
  uint64_t previous_commit = 0;  // its number
  uint64_t durable_through = 0;  // the newest commit known flushed when this was written
  // Set by the encoders, checked by the decoders:
  uint32_t payload_bytes = 0;
  uint32_t payload_crc = 0;
  uint32_t crc = 0;  // of the header before this field

  bool operator==(const FrameHeader&) const = default;
};

// A place in the fixed layouts: 24 bytes.
void StorePlace(const FramePlace& place, std::byte* at);
FramePlace LoadPlace(const std::byte* at);

// Header and payload, padded with zeros to a multiple of `block_bytes`. `crc` (may be null)
// receives the header's CRC for FramePlace.
std::string EncodeFrame(const FrameHeader& header, std::string_view payload, size_t block_bytes,
                        uint32_t* crc);
// The same into memory of that size.
void EncodeFrameTo(FrameHeader header, std::string_view payload, MutableBytes out, uint32_t* crc);
// Checks magic, version, CRC and limits of the first kFrameHeaderBytes of `bytes`. kNotFound: no
// magic there (not a frame); kDataLoss: a frame's magic with a bad header; kUnimplemented: an
// intact header of a newer version or with a kind that this version does not know.
Result<FrameHeader> DecodeFrameHeader(ConstBytes bytes);
// Checks the payload that follows `header` (payload must be exactly payload_bytes long).
Status CheckFramePayload(const FrameHeader& header, ConstBytes payload);

// ---- copies ----
// Second copies of frames. They lie behind the payload of a later chain frame or footer, in the
// same run of blocks, and so cost no flush and mostly no block; those of records frames behind
// these. Layout: FORMAT.md, "Copies".

inline constexpr size_t kCopyHeaderBytes = 64;
inline constexpr size_t kCopyAlignment = 8;
// Larger frames have no copy behind others; a brief stands in for a larger commit frame.
inline constexpr size_t kCopyBytesMax = size_t{1} << 20;

struct FrameCopy {
  FramePlace place;   // of the original
  std::string bytes;  // its header and payload; a brief: the header and another payload

  // Returns true if this is the whole frame. A brief says what a commit frame did to the live set:
  // it is its message without metadata, record blocks and leaves.
  bool whole() const { return bytes.size() == place.length_bytes; }
};

// Header and payload in one; kDataLoss when they do not belong together.
struct CopiedFrame {
  FrameHeader header;
  std::string payload;
  bool whole = false;
};
Result<CopiedFrame> OpenFrameCopy(const FrameCopy& copy);

// The frame's bytes, or where they are more than `bytes_max` the brief; empty: neither fits.
std::string MakeFrameCopy(std::string_view frame, size_t bytes_max);

// Returns the space that a copy takes behind a frame, its padding included.
size_t FrameCopySpace(size_t frame_bytes);
// Writes header, bytes and padding; `out` has FrameCopySpace() bytes.
void EncodeFrameCopy(const FrameCopy& copy, const Id128& nonce, MutableBytes out);

// A frame of records has its copy right behind itself: what both take, and the copy's writing.
// `run` begins with the frame and has BytesWithCopy() of its length.
size_t BytesWithCopy(size_t frame_bytes);
void EncodeOwnCopy(const FramePlace& place, const Id128& nonce, MutableBytes run);

struct FrameCopyHeader {
  FramePlace place;
  uint32_t length_bytes = 0;
  uint32_t crc = 0;  // of the copied bytes
};
// Decodes the first kCopyHeaderBytes of a copy. kNotFound: no copy of this segment is there.
Result<FrameCopyHeader> DecodeFrameCopyHeader(ConstBytes bytes, const Id128& nonce);

}  // namespace stepwell::format
