// SPDX-License-Identifier: Apache-2.0
#include "db/import/arrays.h"

#include "db/import/decode.h"
#include "format/grid.h"
#include "format/orbax/tree_metadata.h"
#include "format/orbax/zarr_metadata.h"
#include "format/piece.h"

namespace stepwell::db::import {

format::Shape ChunkIndices(const ImportArray& array, uint64_t chunk_index) {
  format::Shape indices =
      format::ChunkOrigin(chunk_index, array.zarr.shape, array.zarr.chunk_shape);
  for (size_t axis = 0; axis < indices.size(); ++axis) {
    indices[axis] = (array.origin[axis] + indices[axis]) / array.zarr.chunk_shape[axis];
  }
  return indices;
}

std::string ChunkKey(const ImportArray& array, uint64_t chunk_index) {
  return format::orbax::StoreKey(
      array.param_name, format::orbax::ZarrChunkKey(array.zarr, ChunkIndices(array, chunk_index)));
}

ImportArray BoxOf(const ImportArray& array, const format::Box& box) {
  ImportArray part = array;
  part.origin = box.start;
  part.zarr.shape = format::Extents(box);
  part.size_bytes = format::ChunkBytes(part.zarr.shape, part.dtype->item_bytes);
  return part;
}

Status DescribeArray(int zarr_format, uint64_t memory_bytes_max, ImportArray* array) {
  const std::string key =
      format::orbax::StoreKey(array->param_name, format::orbax::ZarrMetadataName(zarr_format));
  STEPWELL_ASSIGN_OR_RETURN(const auto place, array->index->Find(key));
  if (!place) return DataLossError(StrCat(array->label, ": ", array->index->DescribeAbsent(key)));
  Result<std::string> text = array->index->Read(*place);
  if (!text.ok()) return text.status().WithContext(array->label);
  const std::string file = StrCat(array->label, ": ", key);
  STEPWELL_ASSIGN_OR_RETURN(array->zarr, zarr_format == 2
                                             ? format::orbax::DecodeZarray(file, *text)
                                             : format::orbax::DecodeZarrJson(file, *text));
  array->dtype = format::FindDType(array->zarr.dtype);
  if (array->dtype == nullptr) return DataLossError(StrCat(file, ": no type of elements"));
  const uint64_t item_bytes = array->dtype->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t elements,
                            format::ElementCount(array->zarr.shape, item_bytes));
  array->size_bytes = elements * item_bytes;
  array->whole_shape = array->zarr.shape;
  array->origin.assign(array->whole_shape.size(), 0);
  const uint64_t chunk_bytes = format::ChunkBytes(array->zarr.chunk_shape, item_bytes);
  // Index entries are 16 bytes, as stored and as decoded.
  const uint64_t index_limit = array->zarr.sharding ? memory_bytes_max / 32 : UINT64_MAX;
  if (chunk_bytes > memory_bytes_max || format::orbax::ZarrInnerCount(array->zarr) > index_limit) {
    return ResourceExhaustedError(StrCat(
        file, ": chunks of ", chunk_bytes, " bytes in ", format::orbax::ZarrInnerCount(array->zarr),
        " parts; the limit is ", memory_bytes_max, " bytes of memory"));
  }
  STEPWELL_ASSIGN_OR_RETURN(array->kept, PayloadCodec(*array));
  if (!array->may_be_absent) return OkStatus();
  Result<std::string> fill = format::orbax::ZarrFillElement(file, array->zarr);
  array->may_be_absent = fill.ok();  // a value that is not read here matters only where it is used
  if (fill.ok()) {
    array->fill = *std::move(fill);
  } else {
    array->fill_problem = fill.status().message();
  }
  return OkStatus();
}

}  // namespace stepwell::db::import
