// SPDX-License-Identifier: Apache-2.0
#include "db/import/decode.h"

#include <algorithm>
#include <cstring>

#include "format/crc32c.h"
#include "format/endian.h"
#include "format/grid.h"
#include "format/orbax/zarr_metadata.h"

namespace stepwell::db::import {
namespace {

using format::CodecId;
using format::Shape;
using format::orbax::ZarrArray;
using format::orbax::ZarrCompressor;
using format::orbax::ZarrInnerPlace;

// Copies a chunk of the grid of `chunk_shape` to where it belongs.
void Scatter(const ImportArray& array, const Shape& chunk_shape, uint64_t chunk_index,
             ConstBytes chunk) {
  const std::vector<int64_t> strides = format::CStrides(array.zarr.shape, array.dtype->item_bytes);
  const format::MutableStridedArray out{array.data, array.zarr.shape, strides};
  format::ScatterChunk(chunk, *array.dtype, array.zarr.shape, chunk_shape, chunk_index,
                       format::WholeArray(array.zarr.shape), out);
}

Status DecodeChunk(const ImportArray& array, const Shape& chunk_shape, uint64_t chunk_index,
                   ConstBytes stored, io::AlignedBuffer* scratch) {
  const format::orbax::ZarrCodecs& codecs = array.zarr.codecs;
  const uint64_t item_bytes = array.dtype->item_bytes;
  const uint64_t chunk_bytes = format::ChunkBytes(chunk_shape, item_bytes);
  uint64_t offset_bytes = 0;
  if (format::ChunkIsContiguous(array.zarr.shape, chunk_shape, chunk_index, item_bytes,
                                &offset_bytes)) {
    return format::orbax::DecodeZarrChunk(codecs, stored, {array.data + offset_bytes, chunk_bytes});
  }
  if (codecs.compressor == ZarrCompressor::kNone) {
    STEPWELL_ASSIGN_OR_RETURN(const ConstBytes body, format::orbax::CheckZarrCrc(codecs, stored));
    if (body.size() != chunk_bytes) {
      return DataLossError(StrCat("its chunk has ", body.size(), " bytes, expected ", chunk_bytes));
    }
    Scatter(array, chunk_shape, chunk_index, body);
    return OkStatus();
  }
  STEPWELL_RETURN_IF_ERROR(EnsureRoom(chunk_bytes, scratch));
  const MutableBytes chunk = scratch->bytes().first(chunk_bytes);
  STEPWELL_RETURN_IF_ERROR(format::orbax::DecodeZarrChunk(codecs, stored, chunk));
  Scatter(array, chunk_shape, chunk_index, chunk);
  return OkStatus();
}

Status FillChunk(const ImportArray& array, const Shape& chunk_shape, uint64_t chunk_index,
                 io::AlignedBuffer* scratch) {
  const uint64_t chunk_bytes = format::ChunkBytes(chunk_shape, array.dtype->item_bytes);
  STEPWELL_RETURN_IF_ERROR(EnsureRoom(chunk_bytes, scratch));
  const MutableBytes chunk = scratch->bytes().first(chunk_bytes);
  for (uint64_t at = 0; at < chunk_bytes; at += array.fill.size()) {
    std::memcpy(chunk.data() + at, array.fill.data(), array.fill.size());
  }
  Scatter(array, chunk_shape, chunk_index, chunk);
  return OkStatus();
}

// Inner chunk `inner` of a shard, in the grid that all inner chunks of the array make; false when
// it lies beyond the array's edge.
bool InnerChunk(const ZarrArray& zarr, uint64_t shard, uint64_t inner, uint64_t* chunk_index) {
  const size_t rank = zarr.shape.size();
  const Shape& inner_shape = zarr.sharding->inner_shape;
  const Shape shards = format::GridShape(zarr.shape, zarr.chunk_shape);
  const Shape grid = format::GridShape(zarr.shape, inner_shape);
  uint64_t stride = 1;
  uint64_t index = 0;
  for (size_t axis = rank; axis-- > 0;) {
    const uint64_t per_shard = zarr.chunk_shape[axis] / inner_shape[axis];
    const uint64_t at = shard % shards[axis] * per_shard + inner % per_shard;
    shard /= shards[axis];
    inner /= per_shard;
    if (at >= grid[axis]) return false;
    index += at * stride;
    stride *= grid[axis];
  }
  *chunk_index = index;
  return true;
}

// Below this an array is stored in another way as often as not, and decoding costs nothing.
constexpr uint64_t kArrayBytesMin = uint64_t{64} << 10;
// Smaller ones of several would cost more records than our own grid.
constexpr uint64_t kChunkBytesMin = format::kChunkTargetBytes / 4;

std::optional<CodecId> CodecOf(const format::orbax::ZarrCodecs& codecs, uint64_t item_bytes) {
  if (!codecs.crc32c) return std::nullopt;
  if (codecs.compressor == ZarrCompressor::kNone) return CodecId::kRaw;
  const bool is_ours = codecs.compressor == ZarrCompressor::kBlosc && codecs.blosc_codec == "lz4" &&
                       codecs.blosc_shuffle == 2 && codecs.blosc_item_bytes == item_bytes;
  return is_ours ? std::optional(CodecId::kBloscLz4) : std::nullopt;
}

// Returns the codec that the array's metadata names.
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

Status EnsureRoom(uint64_t bytes, io::AlignedBuffer* buffer) {
  if (buffer->size() >= bytes) return OkStatus();
  *buffer = io::AlignedBuffer();  // before the new one is made
  *buffer = io::AlignedBuffer(bytes);
  if (buffer->size() >= bytes) return OkStatus();
  return ResourceExhaustedError(StrCat("no memory for ", bytes, " bytes"));
}

Status DecodeValue(const ImportArray& array, uint64_t chunk_index, ConstBytes value,
                   io::AlignedBuffer* scratch) {
  const ZarrArray& zarr = array.zarr;
  if (!zarr.sharding) {
    return DecodeChunk(array, zarr.chunk_shape, chunk_index, value, scratch);
  }
  const uint64_t index_bytes = format::orbax::ZarrIndexBytes(zarr);
  if (value.size() < index_bytes) {
    return DataLossError(
        StrCat("a shard of ", value.size(), " bytes is shorter than its index of ", index_bytes));
  }
  const ConstBytes index =
      zarr.sharding->index_at_start ? value.first(index_bytes) : value.last(index_bytes);
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<ZarrInnerPlace> places,
                            format::orbax::DecodeZarrIndex(zarr, index, value.size()));
  for (uint64_t inner = 0; inner < places.size(); ++inner) {
    uint64_t grid_index = 0;
    if (!InnerChunk(zarr, chunk_index, inner, &grid_index)) continue;
    const ZarrInnerPlace& place = places[inner];
    Status status;
    if (!place.absent) {
      status = DecodeChunk(array, zarr.sharding->inner_shape, grid_index,
                           value.subspan(place.offset_bytes, place.length_bytes), scratch);
    } else if (array.may_be_absent) {
      status = FillChunk(array, zarr.sharding->inner_shape, grid_index, scratch);
    } else {
      status = DataLossError("it is missing in its shard");
    }
    if (!status.ok()) return status.WithContext(StrCat("inner chunk ", inner));
  }
  return OkStatus();
}

Status FillValue(const ImportArray& array, uint64_t chunk_index, io::AlignedBuffer* scratch) {
  const ZarrArray& zarr = array.zarr;
  if (!zarr.sharding) return FillChunk(array, zarr.chunk_shape, chunk_index, scratch);
  const uint64_t count = format::orbax::ZarrInnerCount(zarr);
  for (uint64_t inner = 0; inner < count; ++inner) {
    uint64_t grid_index = 0;
    if (!InnerChunk(zarr, chunk_index, inner, &grid_index)) continue;
    STEPWELL_RETURN_IF_ERROR(FillChunk(array, zarr.sharding->inner_shape, grid_index, scratch));
  }
  return OkStatus();
}

Status CheckPlainValue(const ImportArray& array, ConstBytes chunk, ConstBytes crc,
                       ConstBytes index) {
  const ZarrArray& zarr = array.zarr;
  if (zarr.sharding) {
    const uint64_t value_bytes = chunk.size() + crc.size() + index.size();
    STEPWELL_ASSIGN_OR_RETURN(const std::vector<ZarrInnerPlace> places,
                              format::orbax::DecodeZarrIndex(zarr, index, value_bytes));
    const uint64_t expected_offset = zarr.sharding->index_at_start ? index.size() : 0;
    if (places.size() != 1 || places[0].absent || places[0].offset_bytes != expected_offset ||
        places[0].length_bytes != chunk.size() + crc.size()) {
      return FailedPreconditionError("a shard that is laid out in an unusual way");
    }
  }
  if (crc.empty()) return OkStatus();
  const auto expected = format::LoadLittle<uint32_t>(crc.data());
  if (format::Crc32c(chunk) != expected) return DataLossError("wrong CRC-32C of a chunk");
  return OkStatus();
}

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
