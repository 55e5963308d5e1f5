// SPDX-License-Identifier: Apache-2.0
#include "db/import/payloads.h"

#include "db/import/decode.h"
#include "format/endian.h"
#include "format/grid.h"

namespace stepwell::db::import {
namespace {

using format::CodecId;
using format::orbax::ZarrCodecs;
using format::orbax::ZarrCompressor;

// Below this an array is stored in another way as often as not, and decoding costs nothing.
constexpr uint64_t kArrayBytesMin = uint64_t{64} << 10;
// Smaller ones of several would cost more records than our own grid.
constexpr uint64_t kChunkBytesMin = format::kChunkTargetBytes / 4;

std::optional<CodecId> CodecOf(const ZarrCodecs& codecs, uint64_t item_bytes) {
  if (!codecs.crc32c) return std::nullopt;
  if (codecs.compressor == ZarrCompressor::kNone) return CodecId::kRaw;
  const bool is_ours = codecs.compressor == ZarrCompressor::kBlosc && codecs.blosc_codec == "lz4" &&
                       codecs.blosc_shuffle == 2 && codecs.blosc_item_bytes == item_bytes;
  return is_ours ? std::optional(CodecId::kBloscLz4) : std::nullopt;
}

// What its metadata says.
std::optional<CodecId> ClaimedCodec(const ImportArray& array) {
  const format::orbax::ZarrArray& zarr = array.zarr;
  // Elements of these types may have bits that ours have not.
  if (array.dtype->value_bits != 0 || array.dtype->dtype == format::DType::kBool) {
    return std::nullopt;
  }
  if (zarr.sharding || array.size_bytes < kArrayBytesMin) return std::nullopt;
  const uint64_t chunk_bytes = format::ChunkBytes(zarr.chunk_shape, array.dtype->item_bytes);
  const bool is_one = format::ChunkCount(zarr.shape, zarr.chunk_shape) == 1;
  if (chunk_bytes > format::kChunkBytesMax || (!is_one && chunk_bytes < kChunkBytesMin)) {
    return std::nullopt;
  }
  return CodecOf(zarr.codecs, array.dtype->item_bytes);
}

}  // namespace

Result<std::optional<CodecId>> PayloadCodec(const ImportArray& array) {
  const auto codec = ClaimedCodec(array);
  if (!codec) return codec;
  const uint64_t count = format::ChunkCount(array.zarr.shape, array.zarr.chunk_shape);
  const size_t payload_max = format::PayloadBytesMax(
      *codec, format::ChunkBytes(array.zarr.chunk_shape, array.dtype->item_bytes));
  for (uint64_t chunk = 0; chunk < count; ++chunk) {
    STEPWELL_ASSIGN_OR_RETURN(const auto place, array.index->Find(ChunkKey(array, chunk)));
    if (!place || place->file == ValuePlace::kInline || place->length_bytes > payload_max) {
      return std::optional<CodecId>();
    }
  }
  return codec;
}

Status CheckPayload(const ImportArray& array, ConstBytes payload, io::AlignedBuffer* scratch) {
  if (payload.size() < format::kCrcBytes) return DataLossError("it is shorter than its CRC-32C");
  const auto crc =
      format::LoadLittle<uint32_t>(payload.data() + payload.size() - format::kCrcBytes);
  STEPWELL_RETURN_IF_ERROR(format::CheckPayload(payload, crc));
  const uint64_t chunk_bytes = format::ChunkBytes(array.zarr.chunk_shape, array.dtype->item_bytes);
  if (array.kept == CodecId::kRaw) {
    if (payload.size() == chunk_bytes + format::kCrcBytes) return OkStatus();
    return DataLossError(StrCat("its chunk has ", payload.size() - format::kCrcBytes,
                                " bytes, expected ", chunk_bytes));
  }
  STEPWELL_RETURN_IF_ERROR(EnsureRoom(chunk_bytes, scratch));
  return format::DecodePayload(*array.kept, payload, scratch->bytes().first(chunk_bytes));
}

}  // namespace stepwell::db::import
