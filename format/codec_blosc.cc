// SPDX-License-Identifier: Apache-2.0
// C-Blosc 1 streams, through the context functions only: no global state, no threads, and no
// environment variable is read. Of our own payloads only LZ4 inside is accepted. Streams of other
// writers may have zlib and zstd inside; blosc's own codecs, which have known memory errors
// (Blosc/c-blosc#405), are never decoded.
#include <blosc.h>

#include <algorithm>

#include "format/codec.h"
#include "format/endian.h"
#include "io/guard.h"

namespace stepwell::format::internal {
namespace {

// The level has no influence on LZ4's speed class here; 5 chooses the block size (256 KiB and
// less).
constexpr int kLevel = 5;

// C-Blosc does not look whether it was given memory, and crashes: it takes three blocks, and what
// an inner codec takes.
constexpr size_t kBlockBytesMax = size_t{256} << 10;  // at that level
constexpr size_t kSpareBytes = size_t{1} << 20;
bool HasMemory(size_t block_bytes) { return io::HasMemory(3 * block_bytes + kSpareBytes); }

// Header: version, inner version, flags, type size, then nbytes, blocksize and cbytes (uint32
// each).
constexpr size_t kFlagsAt = 2;
constexpr size_t kTypeSizeAt = 3;
constexpr size_t kLogicalBytesAt = 4;
constexpr size_t kBlockBytesAt = 8;
constexpr size_t kStreamBytesAt = 12;
constexpr uint8_t kFlagReserved = 0x08;
constexpr int kInnerCodecShift = 5;

Status BadStream(std::string_view what) {
  return DataLossError(StrCat("bad blosc stream: ", what));
}

Status CheckInnerCodec(int inner_codec, bool foreign) {
  if (inner_codec == BLOSC_LZ4_FORMAT) return OkStatus();
  if (!foreign) return BadStream(StrCat("inner codec ", inner_codec, ", only LZ4 is accepted"));
  if (inner_codec == BLOSC_ZLIB_FORMAT || inner_codec == BLOSC_ZSTD_FORMAT) return OkStatus();
  return UnimplementedError(
      StrCat("blosc stream with inner codec ", inner_codec,
             " (blosclz or snappy): only LZ4, zlib and zstd are read; save it with one of those"));
}

}  // namespace

size_t BloscBytesMax(size_t logical_bytes) { return logical_bytes + BLOSC_MAX_OVERHEAD; }

Result<size_t> BloscEncode(size_t item_bytes, ConstBytes logical, MutableBytes out) {
  if (logical.empty()) return InvalidArgumentError("blosc has no stream for zero bytes");
  if (item_bytes < 1 || item_bytes > BLOSC_MAX_TYPESIZE) {
    return InvalidArgumentError(StrCat("blosc type size ", item_bytes));
  }
  // With more room than this Blosc makes streams that are longer than plainly copied bytes.
  const size_t room = std::min(out.size(), BloscBytesMax(logical.size()));
  if (!HasMemory(kBlockBytesMax)) return io::NoMemoryTo("compress a chunk");
  const int size = blosc_compress_ctx(kLevel, BLOSC_BITSHUFFLE, item_bytes, logical.size(),
                                      logical.data(), out.data(), room, BLOSC_LZ4_COMPNAME,
                                      /*blocksize=*/0, /*numinternalthreads=*/1);
  if (size <= 0) return InternalError(StrCat("blosc_compress_ctx returned ", size));
  return static_cast<size_t>(size);
}

Status BloscDecode(ConstBytes stream, bool foreign, MutableBytes out) {
  if (stream.size() < BLOSC_MIN_HEADER_LENGTH) return BadStream("shorter than its header");
  if (stream.size() > BLOSC_MAX_BUFFERSIZE) return BadStream("too long");
  const auto version = std::to_integer<uint8_t>(stream[0]);
  if (version != BLOSC_VERSION_FORMAT) return BadStream(StrCat("version ", int{version}));
  const auto flags = std::to_integer<uint8_t>(stream[kFlagsAt]);
  if ((flags & kFlagReserved) != 0) return BadStream("reserved flag");
  const int inner_codec = flags >> kInnerCodecShift;
  if ((flags & BLOSC_MEMCPYED) == 0) {
    STEPWELL_RETURN_IF_ERROR(CheckInnerCodec(inner_codec, foreign));
  }
  if (stream[kTypeSizeAt] == std::byte{0}) return BadStream("type size 0");
  const auto logical_bytes = LoadLittle<uint32_t>(&stream[kLogicalBytesAt]);
  if (logical_bytes != out.size() || out.empty()) {
    return BadStream(StrCat("holds ", logical_bytes, " bytes, expected ", out.size()));
  }
  const auto block_bytes = LoadLittle<uint32_t>(&stream[kBlockBytesAt]);
  if (block_bytes == 0 || block_bytes > logical_bytes) {
    return BadStream(StrCat("block size ", block_bytes));
  }
  const auto stream_bytes = LoadLittle<uint32_t>(&stream[kStreamBytesAt]);
  if (stream_bytes != stream.size()) {
    return BadStream(StrCat("says it has ", stream_bytes, " bytes, has ", stream.size()));
  }
  size_t validated_bytes = 0;
  if (blosc_cbuffer_validate(stream.data(), stream.size(), &validated_bytes) != 0 ||
      validated_bytes != out.size()) {
    return BadStream("invalid header");
  }
  if (!HasMemory(block_bytes)) return io::NoMemoryTo("decompress a chunk");
  const int size = blosc_decompress_ctx(stream.data(), out.data(), out.size(),
                                        /*numinternalthreads=*/1);
  if (size < 0 || static_cast<size_t>(size) != out.size()) {
    return BadStream(StrCat("decoder returned ", size, ", expected ", out.size()));
  }
  return OkStatus();
}

}  // namespace stepwell::format::internal
