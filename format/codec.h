// SPDX-License-Identifier: Apache-2.0
// Codec chains: chunk bytes <-> stored payload. An array chunk's payload is byte for byte what
// zarr v3 has for the chain: bytes(little) -> [blosc(lz4, bitshuffle)] -> crc32c.
//
//   kRaw         chunk, CRC-32C (4 bytes, little-endian)
//   kBloscLz4    C-Blosc 1 stream (LZ4, bitshuffle, type size = item size), CRC-32C
//   kLz4Frame    LZ4 frame, CRC-32C: values that are not arrays
//
// The table of codecs (Codecs) is the one place that lists them. A chunk's record repeats the CRC
// of the payload *without* its trailer.
#pragma once

#include <cstdint>
#include <span>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

// On disk: never change or reuse a number.
enum class CodecId : uint16_t { kRaw = 0, kBloscLz4 = 1, kLz4Frame = 2 };

inline constexpr size_t kCrcBytes = 4;
inline constexpr uint64_t kPayloadLogicalMax = uint64_t{64} << 20;  // decoders refuse more

// The description of an array's chunks in a zarr.json.
enum class ZarrChain : uint8_t {
  kNone,   // nothing that zarr knows: exports encode the array anew
  kBytes,  // bytes(little), crc32c
  kBlosc,  // bytes(little), blosc(lz4, bitshuffle), crc32c
};

struct CodecInfo {
  CodecId id;
  const char* name;
  ZarrChain zarr;
  // Returns the most bytes that encoding makes from `logical_bytes`, without the CRC trailer, as
  // all here.
  size_t (*bytes_max)(size_t logical_bytes);
  // Encodes into `out`, which has bytes_max(); the bytes that it took. `item_bytes`: of an element.
  // Null: as they are.
  Result<size_t> (*encode)(size_t item_bytes, ConstBytes logical, MutableBytes out);
  // Fills all of `out`, or fails with kDataLoss: nothing of `stream` is trusted. Null: as they are.
  Status (*decode)(ConstBytes stream, MutableBytes out);
};
std::span<const CodecInfo> Codecs();
const CodecInfo* FindCodec(CodecId id);  // null: this version does not know it

// Upper bound of the payload (with its CRC) for `logical_bytes` of input; of a codec that is not
// known 0.
size_t PayloadBytesMax(CodecId codec, size_t logical_bytes);

struct Payload {
  size_t size_bytes = 0;  // with the CRC trailer
  uint32_t crc = 0;       // of the payload without the trailer
};
// Encodes into `out` (at least PayloadBytesMax). `item_bytes` is blosc's type size. For kRaw,
// `logical` may lie at out.data() already: then only the CRC is computed and appended.
Result<Payload> EncodePayload(CodecId codec, size_t item_bytes, ConstBytes logical,
                              MutableBytes out);

// Checks trailer == `crc` == recomputation; kDataLoss with expected and found.
Status CheckPayload(ConstBytes payload, uint32_t crc);
// Decodes a *checked* payload into exactly out.size() bytes; kDataLoss on anything odd. Only
// C-Blosc 1 streams with LZ4 inside are accepted; nothing is trusted.
Status DecodePayload(CodecId codec, ConstBytes payload, MutableBytes out);

// Returns how far bitshuffle and LZ4 shrink `sample`: logical / stored bytes, >= 0.9.
double SampleRatio(ConstBytes sample, size_t item_bytes);

// The libraries' wrappers, for codec.cc and what else has streams of these codecs. All sizes are
// without the CRC trailer; inputs are at most kPayloadLogicalMax. Decoders fill all of `out` or
// return kDataLoss.
namespace internal {

std::string Hex(uint32_t crc);  // "0x1234abcd", for messages

size_t BloscBytesMax(size_t logical_bytes);
Result<size_t> BloscEncode(size_t item_bytes, ConstBytes logical, MutableBytes out);
// `foreign`: of another writer, so zlib and zstd inside are accepted, too.
Status BloscDecode(ConstBytes stream, bool foreign, MutableBytes out);

size_t Lz4FrameBytesMax(size_t logical_bytes);
Result<size_t> Lz4FrameEncode(ConstBytes logical, MutableBytes out);
Status Lz4FrameDecode(ConstBytes frame, MutableBytes out);

}  // namespace internal
}  // namespace stepwell::format
