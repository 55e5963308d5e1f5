// SPDX-License-Identifier: Apache-2.0
#include "db/export_widen.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "format/codec.h"
#include "format/grid.h"

namespace stepwell::db {
namespace {

// The whole chunk, edges padded with zeros.
Status LoadChunk(StepReader& reader, const format::LeafRecord& leaf, uint64_t index,
                 std::vector<uint8_t>* elements) {
  std::fill(elements->begin(), elements->end(), uint8_t{0});
  LoadRequest request;
  request.leaf = &leaf;
  request.box.start = format::ChunkOrigin(index, leaf.shape, leaf.chunk_shape);
  for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
    request.box.stop.push_back(
        std::min(request.box.start[axis] + leaf.chunk_shape[axis], leaf.shape[axis]));
  }
  request.out = reinterpret_cast<std::byte*>(elements->data());
  request.strides_bytes = format::CStrides(leaf.chunk_shape, 1);
  return reader.Load({&request, 1}).status();
}

// Appends every chunk to `out`.
Status WidenArray(StepReader& reader, const format::LeafRecord& leaf, io::File* out, uint64_t* end,
                  format::LeafRecord* widened) {
  const uint64_t count = format::ChunkBytes(leaf.chunk_shape, 1);
  if (count > format::kPayloadLogicalMax) return DataLossError("a chunk of an impossible size");
  std::vector<uint8_t> narrow(count);
  std::vector<uint16_t> wide(count);
  std::vector<std::byte> stored(
      format::PayloadBytesMax(format::CodecId::kRaw, count * sizeof(uint16_t)));
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    STEPWELL_RETURN_IF_ERROR(LoadChunk(reader, leaf, i, &narrow));
    std::transform(narrow.begin(), narrow.end(), wide.begin(), Float16OfFloat8E4M3);
    STEPWELL_ASSIGN_OR_RETURN(const format::Payload payload,
                              format::EncodePayload(format::CodecId::kRaw, sizeof(uint16_t),
                                                    std::as_bytes(std::span(wide)), stored));
    STEPWELL_RETURN_IF_ERROR(out->WriteAt(*end, ConstBytes(stored.data(), payload.size_bytes)));
    format::ChunkRecord& chunk = widened->chunks.emplace_back();
    chunk.offset_bytes = *end;
    chunk.stored_bytes = static_cast<uint32_t>(payload.size_bytes);
    *end += payload.size_bytes;
  }
  return OkStatus();
}

}  // namespace

uint16_t Float16OfFloat8E4M3(uint8_t bits) {
  constexpr int kBiasDifference = 15 - 7;
  const auto sign = static_cast<unsigned>(bits & 0x80U) << 8;
  int exponent = (bits >> 3) & 15;
  unsigned mantissa = bits & 7U;
  unsigned rest = 0;
  if (exponent == 15) {
    rest = mantissa == 0 ? 0x7c00U : 0x7e00U;  // infinity, and the one quiet NaN
  } else if (exponent != 0 || mantissa != 0) {
    if (exponent == 0) {  // subnormal there, normal here
      for (exponent = 1; (mantissa & 8U) == 0; --exponent) mantissa <<= 1;
      mantissa &= 7U;
    }
    rest = (static_cast<unsigned>(exponent + kBiasDifference) << 10) | (mantissa << 7);
  }
  return static_cast<uint16_t>(sign | rest);
}

Status WidenArrays(StepReader& reader, const std::string& file, ExportFolder* folder,
                   ExportItem* item, std::deque<format::LeafRecord>* records) {
  std::unique_ptr<io::File> out;
  uint64_t end = 0;
  for (ExportArray& array : item->arrays) {
    if (!array.convert) continue;
    if (out == nullptr) {
      STEPWELL_ASSIGN_OR_RETURN(out, folder->NewFile(file));
    }
    format::LeafRecord& widened = records->emplace_back();
    STEPWELL_RETURN_IF_ERROR(WidenArray(reader, *array.leaf, out.get(), &end, &widened));
    array.leaf = &widened;
  }
  return out == nullptr ? OkStatus() : folder->Finish(out.get());
}

}  // namespace stepwell::db
