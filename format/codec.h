// SPDX-License-Identifier: Apache-2.0
// Codec chains: chunk bytes <-> stored payload. An array chunk's payload is byte for byte what
// zarr v3 has for the chain: bytes(little) -> [blosc(lz4, bitshuffle)] -> crc32c.
//
//   kRaw         chunk, CRC-32C (4 bytes, little-endian)
//   kBloscLz4    C-Blosc 1 stream (LZ4, bitshuffle, type size = item size), CRC-32C
//   kLz4Frame    LZ4 frame, CRC-32C: values that are not arrays
//   kDelta       the difference to an older content of the same chunk, CRC-32C
//
// The table of codecs (Codecs) is the one place that lists them. A chunk's record repeats the CRC
// of the payload *without* its trailer.
#pragma once

#include <cstdint>
#include <span>

#include "format/dtype.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

// On disk: never change or reuse a number.
enum class CodecId : uint16_t { kRaw = 0, kBloscLz4 = 1, kLz4Frame = 2, kDelta = 3 };

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
  // The payload says how the chunk differs from a base, older bytes of the same length. EncodeDelta
  // makes it, and `encode` is null.
  bool needs_base;
  // Returns the most bytes that encoding makes from `logical_bytes`, without the CRC trailer, as
  // all here.
  size_t (*bytes_max)(size_t logical_bytes);
  // Encodes into `out`, which has bytes_max(); the bytes that it took. `item_bytes`: of an element.
  // Null without a base: as they are.
  Result<size_t> (*encode)(size_t item_bytes, ConstBytes logical, MutableBytes out);
  // Fills all of `out`, or fails with kDataLoss: nothing of `stream` is trusted. Null: as they are.
  // Where a base is needed `out` holds it before, and nothing of use after a failure.
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
// kInvalidArgument for a codec that needs a base.
Result<Payload> EncodePayload(CodecId codec, size_t item_bytes, ConstBytes logical,
                              MutableBytes out);

// Checks trailer == `crc` == recomputation; kDataLoss with expected and found.
Status CheckPayload(ConstBytes payload, uint32_t crc);
// Decodes a *checked* payload into exactly out.size() bytes; kDataLoss on anything odd. Only
// C-Blosc 1 streams with LZ4 inside are accepted; nothing is trusted. Where the codec needs a base,
// `out` holds the base's bytes before and the chunk's after success; after a failure it is neither.
// A wrong base of the right length is not noticed: the caller compares a checksum of the result.
Status DecodePayload(CodecId codec, ConstBytes payload, MutableBytes out);

// Elements as deltas see them: integers of 1, 2, 4 or 8 bytes.
struct DeltaType {
  uint8_t item_bytes = 1;
  // The top bit is a sign, the others a magnitude, as in IEEE floats; else two's complement.
  bool sign_magnitude = false;
  friend bool operator==(const DeltaType&, const DeltaType&) = default;
};
// Returns the type for an array's elements; complex numbers are pairs of floats. Values that are
// not arrays have the default.
DeltaType DeltaTypeOf(const DTypeInfo& dtype);

// Encodes `logical` as a difference to `base`, which has as many bytes, into `out`, with the CRC
// trailer. `out` overlaps neither, and is as long as the largest payload that is worth it: where
// the delta does not fit, size_bytes is 0 and `out` unspecified. Differences are exact for all bit
// patterns. Bytes behind the last whole element are stored as they are. kInvalidArgument for other
// lengths or types.
Result<Payload> EncodeDelta(DeltaType type, ConstBytes base, ConstBytes logical, MutableBytes out);

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

size_t DeltaBytesMax(size_t logical_bytes);
// Returns the size of the stream, or 0: it does not fit.
Result<size_t> DeltaEncode(DeltaType type, ConstBytes base, ConstBytes logical, MutableBytes out);
// `out` holds the base.
Status DeltaDecode(ConstBytes stream, MutableBytes out);

}  // namespace internal
}  // namespace stepwell::format
