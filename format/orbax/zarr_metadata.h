// SPDX-License-Identifier: Apache-2.0
// Arrays of zarr: metadata of v3 (zarr.json) and v2 (.zarray), as TensorStore and Orbax write it.
//
// A stored value is one chunk in C order, little-endian, full also at the array's edges:
//
//   v3   bytes(little) -> [zstd | blosc | gzip] -> [crc32c: 4 bytes behind it]
//   v3   sharding_indexed: inner chunks, each as above, and an index of where they lie
//   v2   [zstd | blosc | gzip | zlib]
//
// Stepwell's payloads (format/codec.h) are of the first kind, and less their last 4 bytes of the
// last, so both versions' metadata can name the same bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/codec.h"
#include "format/dtype.h"
#include "format/grid.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// Returns true if TensorStore, and so Orbax, has the element type. It lacks uint2, uint4 and
// float8_e4m3.
bool OrbaxHolds(DType dtype);

enum class ZarrCompressor : uint8_t { kNone, kZstd, kBlosc, kGzip, kZlib };

// Describes how a chunk was encoded. Decoding needs `compressor` and `crc32c` alone. The rest is
// what the writer was told.
struct ZarrCodecs {
  ZarrCompressor compressor = ZarrCompressor::kNone;
  int64_t level = 0;                  // zstd, gzip, zlib; blosc's clevel
  std::optional<bool> zstd_checksum;  // v3; not said: none
  std::string blosc_codec;            // "lz4", "zstd", ...
  int blosc_shuffle = 0;              // 0 none, 1 bytes, 2 bits; v2 also -1: by item size
  uint64_t blosc_block_bytes = 0;     // 0: blosc chooses
  uint64_t blosc_item_bytes = 0;      // v3's typesize; 0: not said, when nothing is shuffled
  bool crc32c = false;                // v3: CRC-32C of all before it, little-endian

  bool operator==(const ZarrCodecs&) const = default;
};

// The stored value holds several chunks, or one: an index of (offset, length) as two little-endian
// uint64 for each in C order, both 2^64 - 1 where there is none, with a CRC-32C behind it if
// `index_crc32c`; at the value's end, or at its start. Offsets count from the value's start.
struct ZarrSharding {
  Shape inner_shape;  // of one chunk; divides the stored value's
  bool index_crc32c = true;
  bool index_at_start = false;

  bool operator==(const ZarrSharding&) const = default;
};

struct ZarrArray {
  int zarr_format = 3;  // or 2
  DType dtype = DType::kInvalid;
  Shape shape;
  Shape chunk_shape;  // of one stored value; extents >= 1
  std::optional<ZarrSharding> sharding;
  ZarrCodecs codecs;  // of a chunk; of an inner one with `sharding`
  // Chunk (1, 2) is named c/1/2 (v3's "default"), 1.2 or 1/2.
  bool key_prefix = true;
  char key_separator = '/';
  // JSON. Of v2 also null: chunks that are absent are anything.
  std::string fill_value;

  bool operator==(const ZarrArray&) const = default;
};

// Metadata for an array whose chunks Stepwell wrote with `codec` (kRaw, kBloscLz4). Format 2 names
// the payload less its CRC. The fill value is zero, and null in v2.
ZarrArray StepwellZarrArray(int zarr_format, DType dtype, Shape shape, Shape chunk_shape,
                            CodecId codec);

// The name of the file below the array's: "zarr.json" or ".zarray".
std::string_view ZarrMetadataName(int zarr_format);

// The text as TensorStore writes it, byte for byte. kInvalidArgument: an element type that
// TensorStore lacks, or what this version of zarr cannot say.
Result<std::string> EncodeZarrMetadata(const ZarrArray& array);

// `file` is for messages. kDataLoss: not metadata of an array. kUnimplemented: metadata of an array
// that is not read here: other codecs, big-endian numbers, Fortran order or a transposition (an
// identity is accepted), filters, structs, nested shards.
Result<ZarrArray> DecodeZarrJson(std::string_view file, std::string_view text);  // v3
Result<ZarrArray> DecodeZarray(std::string_view file, std::string_view text);    // v2

// The name below the array's of the stored value that has chunk `indices` (one for each axis).
std::string ZarrChunkKey(const ZarrArray& array, std::span<const uint64_t> indices);

// One element's bytes, which those of absent chunks are; zeros for null. kUnimplemented: values
// other than zero, or hexadecimal bits, of float types below 32 bits. `file` is for messages.
Result<std::string> ZarrFillElement(std::string_view file, const ZarrArray& array);

// ---- chunks ----
// From the bytes of a stored value to the elements of its chunks. The bytes are untrusted: nothing
// beyond `out` is written, nothing is allocated by what they claim, and whatever does not fill
// `out` exactly is kDataLoss.

// The most bytes that any of the codecs makes of a chunk; what is longer is damaged.
uint64_t ZarrEncodedBytesMax(const ZarrCodecs& codecs, uint64_t chunk_bytes);

// Takes the CRC off `stored` and checks it, where there is one.
Result<ConstBytes> CheckZarrCrc(const ZarrCodecs& codecs, ConstBytes stored);
// The chunk of `out.size()` bytes that `stored` is. kUnimplemented: a codec within blosc that is
// not read.
Status DecodeZarrChunk(const ZarrCodecs& codecs, ConstBytes stored, MutableBytes out);

// Returns the number of chunks in a stored value; 1 without shards.
uint64_t ZarrInnerCount(const ZarrArray& array);
// Length of a shard's index; 0 without shards.
uint64_t ZarrIndexBytes(const ZarrArray& array);

struct ZarrInnerPlace {
  bool absent = false;
  uint64_t offset_bytes = 0;  // in the value
  uint64_t length_bytes = 0;
};
// `index` is the index's bytes; `value_bytes` the length of the whole value, in which all places
// lie. CRC checked.
Result<std::vector<ZarrInnerPlace>> DecodeZarrIndex(const ZarrArray& array, ConstBytes index,
                                                    uint64_t value_bytes);

// For the .cc files of this folder.
namespace internal {

enum class DTypeClass : uint8_t { kBool, kInteger, kFloat, kComplex };
DTypeClass ClassOf(DType dtype);

// zarr v2's name of a type: NumPy's "<f4", or as in v3 where NumPy has none.
std::string V2DTypeName(const DTypeInfo& dtype);

}  // namespace internal
}  // namespace stepwell::format::orbax
