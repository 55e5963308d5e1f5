// SPDX-License-Identifier: Apache-2.0
#include <stepwell/npy.h>

#include "format/orbax/zarr_metadata.h"
#include "io/result.h"

namespace stepwell::format::orbax {
namespace {

using internal::DTypeClass;

void AppendShape(std::span<const uint64_t> shape, std::string* out) {
  out->push_back('[');
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) out->push_back(',');
    out->append(std::to_string(shape[axis]));
  }
  out->push_back(']');
}

// bytes -> compressor -> crc32c of v3. Single bytes have no order.
std::string CodecChain(const ZarrCodecs& codecs, uint64_t item_bytes) {
  std::string out = item_bytes > 1 ? R"([{"configuration":{"endian":"little"},"name":"bytes"})"
                                   : R"([{"name":"bytes"})";
  const char* const shuffles[] = {"noshuffle", "shuffle", "bitshuffle"};
  switch (codecs.compressor) {
    case ZarrCompressor::kNone:
    case ZarrCompressor::kZlib:  // CheckEncodable refuses it
      break;
    case ZarrCompressor::kZstd:
      out.append(R"(,{"configuration":{)");
      if (codecs.zstd_checksum) {
        out.append(StrCat(R"("checksum":)", *codecs.zstd_checksum ? "true," : "false,"));
      }
      out.append(StrCat(R"("level":)", codecs.level, R"(},"name":"zstd"})"));
      break;
    case ZarrCompressor::kGzip:
      out.append(StrCat(R"(,{"configuration":{"level":)", codecs.level, R"(},"name":"gzip"})"));
      break;
    case ZarrCompressor::kBlosc:
      out.append(StrCat(R"(,{"configuration":{"blocksize":)", codecs.blosc_block_bytes,
                        R"(,"clevel":)", codecs.level, R"(,"cname":")", codecs.blosc_codec,
                        R"(","shuffle":")", shuffles[codecs.blosc_shuffle], "\""));
      if (codecs.blosc_item_bytes > 0) {
        out.append(StrCat(R"(,"typesize":)", codecs.blosc_item_bytes));
      }
      out.append(R"(},"name":"blosc"})");
      break;
  }
  if (codecs.crc32c) out.append(R"(,{"name":"crc32c"})");
  return out.append("]");
}

std::string ShardingChain(const ZarrSharding& sharding, const std::string& inner) {
  std::string out = R"([{"configuration":{"chunk_shape":)";
  AppendShape(sharding.inner_shape, &out);
  out.append(StrCat(R"(,"codecs":)", inner, R"(,"index_codecs":)"));
  ZarrCodecs index;
  index.crc32c = sharding.index_crc32c;
  out.append(CodecChain(index, sizeof(uint64_t)));
  if (sharding.index_at_start) out.append(R"(,"index_location":"start")");
  return out.append(R"(},"name":"sharding_indexed"}])");
}

std::string EncodeV3(const ZarrArray& array, const DTypeInfo& dtype) {
  std::string out = R"({"chunk_grid":{"configuration":{"chunk_shape":)";
  AppendShape(array.chunk_shape, &out);
  out.append(R"(},"name":"regular"},"chunk_key_encoding":{)");
  if (array.key_separator != (array.key_prefix ? '/' : '.')) {
    out.append(StrCat(R"("configuration":{"separator":")", array.key_separator, R"("},)"));
  }
  out.append(StrCat(R"("name":")", array.key_prefix ? "default" : "v2", R"("},"codecs":)"));
  const std::string chain = CodecChain(array.codecs, dtype.item_bytes);
  out.append(array.sharding ? ShardingChain(*array.sharding, chain) : chain);
  out.append(StrCat(R"(,"data_type":")", dtype.name, R"(","fill_value":)", array.fill_value,
                    R"(,"node_type":"array","shape":)"));
  AppendShape(array.shape, &out);
  return out.append(R"(,"zarr_format":3})");
}

std::string Compressor(const ZarrCodecs& codecs) {
  switch (codecs.compressor) {
    case ZarrCompressor::kNone:
      break;
    case ZarrCompressor::kZstd:
      return StrCat(R"({"id":"zstd","level":)", codecs.level, "}");
    case ZarrCompressor::kGzip:
      return StrCat(R"({"id":"gzip","level":)", codecs.level, "}");
    case ZarrCompressor::kZlib:
      return StrCat(R"({"id":"zlib","level":)", codecs.level, "}");
    case ZarrCompressor::kBlosc:
      return StrCat(R"({"blocksize":)", codecs.blosc_block_bytes, R"(,"clevel":)", codecs.level,
                    R"(,"cname":")", codecs.blosc_codec, R"(","id":"blosc","shuffle":)",
                    codecs.blosc_shuffle, "}");
  }
  return "null";
}

std::string EncodeV2(const ZarrArray& array, const DTypeInfo& dtype) {
  std::string out = R"({"chunks":)";
  AppendShape(array.chunk_shape, &out);
  out.append(StrCat(R"(,"compressor":)", Compressor(array.codecs), R"(,"dimension_separator":")",
                    array.key_separator, R"(","dtype":")", internal::V2DTypeName(dtype),
                    R"(","fill_value":)", array.fill_value,
                    R"(,"filters":null,"order":"C","shape":)"));
  AppendShape(array.shape, &out);
  return out.append(R"(,"zarr_format":2})");
}

Status CheckEncodable(const ZarrArray& array) {
  if (!OrbaxHolds(array.dtype)) {
    const DTypeInfo* info = FindDType(array.dtype);
    return InvalidArgumentError(
        StrCat("zarr arrays in TensorStore and Orbax cannot have elements of ",
               info == nullptr ? "an unknown type" : info->name));
  }
  if (array.zarr_format != 2 && array.zarr_format != 3) {
    return InvalidArgumentError(StrCat("zarr format ", array.zarr_format, " is not written"));
  }
  if (array.shape.size() != array.chunk_shape.size()) {
    return InvalidArgumentError("a zarr chunk has as many axes as its array");
  }
  const ZarrCodecs& codecs = array.codecs;
  const bool v2_only = codecs.compressor == ZarrCompressor::kZlib || codecs.blosc_shuffle < 0;
  const bool v3_only = codecs.crc32c || array.sharding.has_value() || array.key_prefix;
  if (array.zarr_format == 3 ? v2_only : v3_only) {
    return InvalidArgumentError(
        StrCat("zarr format ", array.zarr_format, " cannot say how the chunks are stored"));
  }
  return OkStatus();
}

// Spells zero as TensorStore does.
std::string ZeroJson(DType dtype) {
  switch (internal::ClassOf(dtype)) {
    case DTypeClass::kBool:
      return "false";
    case DTypeClass::kInteger:
      return "0";
    case DTypeClass::kFloat:
      return "0.0";
    case DTypeClass::kComplex:
      return "[0.0,0.0]";
  }
  return "null";
}

}  // namespace

namespace internal {

DTypeClass ClassOf(DType dtype) {
  if (dtype == DType::kBool) return DTypeClass::kBool;
  if (dtype >= DType::kInt2 && dtype <= DType::kUInt64) return DTypeClass::kInteger;
  if (dtype == DType::kComplex64 || dtype == DType::kComplex128) return DTypeClass::kComplex;
  return DTypeClass::kFloat;
}

std::string V2DTypeName(const DTypeInfo& dtype) {
  const std::string numpy = NpyDescr(dtype.dtype);
  return numpy.empty() ? std::string(dtype.name) : numpy;
}

}  // namespace internal

bool OrbaxHolds(DType dtype) {
  const DTypeInfo* info = FindDType(dtype);
  return info != nullptr && info->tensorstore;
}

ZarrArray StepwellZarrArray(int zarr_format, DType dtype, Shape shape, Shape chunk_shape,
                            CodecId codec) {
  const CodecInfo* const known = FindCodec(codec);
  STEPWELL_CHECK(known != nullptr && known->zarr != ZarrChain::kNone, "a codec of arrays");
  ZarrArray array;
  array.zarr_format = zarr_format;
  array.dtype = dtype;
  array.shape = std::move(shape);
  array.chunk_shape = std::move(chunk_shape);
  if (known->zarr == ZarrChain::kBlosc) {
    const DTypeInfo* info = FindDType(dtype);
    array.codecs.compressor = ZarrCompressor::kBlosc;
    array.codecs.level = 5;
    array.codecs.blosc_codec = "lz4";
    array.codecs.blosc_shuffle = 2;
    if (zarr_format == 3) array.codecs.blosc_item_bytes = info == nullptr ? 1 : info->item_bytes;
  }
  if (zarr_format == 3) {
    array.codecs.crc32c = true;
    array.fill_value = ZeroJson(dtype);
  } else {
    array.key_prefix = false;
    array.key_separator = '.';
    array.fill_value = "null";
  }
  return array;
}

std::string_view ZarrMetadataName(int zarr_format) {
  return zarr_format == 2 ? ".zarray" : "zarr.json";
}

Result<std::string> EncodeZarrMetadata(const ZarrArray& array) {
  STEPWELL_RETURN_IF_ERROR(CheckEncodable(array));
  const DTypeInfo& dtype = *FindDType(array.dtype);
  return array.zarr_format == 2 ? EncodeV2(array, dtype) : EncodeV3(array, dtype);
}

std::string ZarrChunkKey(const ZarrArray& array, std::span<const uint64_t> indices) {
  STEPWELL_CHECK(indices.size() == array.shape.size(), "one index for each axis");
  if (!array.key_prefix && indices.empty()) return "0";
  std::string key = array.key_prefix ? "c" : "";
  for (const uint64_t index : indices) {
    if (!key.empty()) key.push_back(array.key_separator);
    key.append(std::to_string(index));
  }
  return key;
}

}  // namespace stepwell::format::orbax
