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

using format::Shape;
using format::orbax::ZarrArray;
using format::orbax::ZarrCompressor;
using format::orbax::ZarrInnerPlace;

// Copies a chunk of the grid of `chunk_shape` to where it belongs.
void Scatter(const ImportArray& array, const Shape& chunk_shape, uint64_t chunk_index,
             ConstBytes chunk) {
  const std::vector<int64_t> strides = format::CStrides(array.zarr.shape, array.dtype->item_bytes);
  const format::MutableArrayView out{array.data, array.zarr.shape, strides};
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

}  // namespace stepwell::db::import
