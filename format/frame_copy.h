// SPDX-License-Identifier: Apache-2.0
// Second copies of frames. They lie behind the payload of a later chain frame or footer, in the
// same run of blocks, and so cost no flush and mostly no block. Layout: FORMAT.md, "Copies".
#pragma once

#include <cstdint>
#include <string>

#include "format/frame.h"
#include "format/records.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

inline constexpr size_t kCopyHeaderBytes = 72;
inline constexpr size_t kCopyAlignment = 8;
// Larger frames have no copy behind others; a brief stands in for a larger commit frame.
inline constexpr size_t kCopyBytesMax = size_t{1} << 20;

struct FrameCopy {
  FramePlace place;   // of the original
  std::string bytes;  // its header and payload; a brief: the header and another payload

  // Whether it is the whole frame. A brief says what a commit frame did to the live set: it is its
  // message without metadata, record blocks and leaves.
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

// What a copy takes behind a frame, its padding included.
size_t FrameCopySpace(size_t frame_bytes);
// Writes header, bytes and padding; `out` has FrameCopySpace() bytes.
void EncodeFrameCopy(const FrameCopy& copy, const Id128& nonce, MutableBytes out);

struct FrameCopyHeader {
  FramePlace place;
  uint32_t length_bytes = 0;
  uint32_t crc = 0;  // of the copied bytes
};
// Of the first kCopyHeaderBytes. kNotFound: no copy of this segment there.
Result<FrameCopyHeader> DecodeFrameCopyHeader(ConstBytes bytes, const Id128& nonce);

}  // namespace stepwell::format
