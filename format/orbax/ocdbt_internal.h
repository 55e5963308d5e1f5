// SPDX-License-Identifier: Apache-2.0
// The encoder and the decoder of OCDBT share this: the frame around manifests and nodes.
//
//   be32 magic, le64 length of the frame, varint version (0), varint compression, body,
//   le32 CRC-32C of all that
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::orbax::internal {

enum class FrameMagic : uint32_t {
  kManifest = 0x0CDB3A2A,
  kNode = 0x0CDB20DE,
  kVersionNode = 0x0CDB1234,
};

inline constexpr uint64_t kMissing = ~uint64_t{0};  // offset and length of the root of no keys
inline constexpr uint64_t kFileBytesMax = (uint64_t{1} << 63) - 1;  // no range ends behind it
inline constexpr uint8_t kManifestSingle = 0;
inline constexpr uint8_t kManifestNumbered = 1;
inline constexpr uint8_t kInlineValue = 0;
inline constexpr uint8_t kRangeValue = 1;

// Unsigned LEB128.
inline void AppendVarint(uint64_t value, std::string* out) {
  for (; value >= 0x80; value >>= 7) out->push_back(static_cast<char>(value | 0x80));
  out->push_back(static_cast<char>(value));
}

// Encodes frames; keeps zstd's working memory between them.
class FrameEncoder {
 public:
  explicit FrameEncoder(bool compress);
  // Appends the frame; the body is stored raw where zstd does not make it smaller.
  Status Append(FrameMagic magic, std::string_view body, std::string* out);

 private:
  struct FreeContext {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, FreeContext> context_;  // null: nothing is compressed
  std::string scratch_;
};

// The body of a frame that is exactly `frame`. kDataLoss; kUnimplemented for a version, compression
// or kind of frame that this library cannot read. At most BodyBytesMax(frame.size()) bytes.
Result<std::string> DecodeFrame(FrameMagic magic, ConstBytes frame);
constexpr uint64_t kFrameBytesMax = uint64_t{512} << 20;
constexpr uint64_t BodyBytesMax(uint64_t frame_bytes) {
  const uint64_t limit = (uint64_t{1} << 20) + 1024 * frame_bytes;
  return limit < kFrameBytesMax ? limit : kFrameBytesMax;
}

}  // namespace stepwell::format::orbax::internal
