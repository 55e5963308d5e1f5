// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/leaves.h"

#include "db/export/orbax/numbers.h"
#include "db/read/restore_plan.h"
#include "format/codec.h"
#include "format/dtype.h"
#include "format/endian.h"
#include "format/orbax/python_text.h"

namespace stepwell::db {
namespace {

using format::DType;
using format::LeafKind;
using format::LeafRecord;
using format::orbax::OrbaxType;

std::string_view DTypeName(DType dtype) {
  const format::DTypeInfo* info = format::FindDType(dtype);
  return info == nullptr ? "of an unknown type" : info->name;
}

// The next wider type that Orbax has.
DType Wider(DType dtype) {
  const bool has_one =
      dtype == DType::kUInt2 || dtype == DType::kUInt4 || dtype == DType::kFloat8E4M3;
  return has_one ? WiderNumpyType(dtype) : DType::kInvalid;
}

// A NumPy scalar that .item() makes a Python number without loss: Orbax's "scalar". Not complex
// ones: Orbax v1 takes no complex as a target.
bool IsNumpyNumber(DType dtype) {
  return dtype == DType::kBool || IsSignedInteger(dtype) || IsUnsignedInteger(dtype) ||
         dtype == DType::kFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

Status Contradiction(std::string_view what) {
  return DataLossError(StrCat("the leaf's record is damaged: ", what));
}

// The shares of a merged step are disjoint, so counting elements suffices.
bool HasAllElements(const LeafRecord& leaf) {
  uint64_t missing = 1;
  for (const uint64_t extent : leaf.shape) missing *= extent;
  for (const format::PieceRecord& piece : leaf.pieces) {
    uint64_t elements = 1;
    for (const uint64_t extent : piece.shape) elements *= extent;
    if (elements > missing) return false;
    missing -= elements;
  }
  return missing == 0;
}

Result<LeafTranslation> TranslateArray(const LeafRecord& leaf, const ExportOptions& options) {
  LeafTranslation out;
  const bool in_pieces = leaf.partial || !leaf.pieces.empty();
  STEPWELL_RETURN_IF_ERROR(CheckLeaf(leaf));
  // One zarr.json describes all chunks of an array.
  const std::optional<format::CodecId> codec = leaf.codec();
  bool has_chain = codec.has_value();
  for (const format::ChunkRecord& chunk : leaf.chunks) {
    if (chunk.stored_bytes < format::kCrcBytes) return Contradiction("the size of a chunk");
    const format::CodecInfo* const info = format::FindCodec(chunk.codec);
    if (info == nullptr) {
      out.unsupported = "its chunks are encoded in a way that this version does not know";
      return out;
    }
    has_chain = has_chain && info->zarr != format::ZarrChain::kNone;
  }
  if (in_pieces && !HasAllElements(leaf)) {
    out.unsupported =
        "is in the stores of several processes, of which this is one; export the step of their "
        "root";
    return out;
  }
  DType dtype = leaf.dtype;
  if (!format::orbax::OrbaxHolds(dtype)) {
    const DType wider = Wider(dtype);
    if (options.on_unsupported != OnUnsupported::kWiden || wider == DType::kInvalid) {
      out.unsupported = StrCat("is ", DTypeName(dtype), ", which TensorStore lacks");
      return out;
    }
    out.widened = StrCat(DTypeName(dtype), " became ", DTypeName(wider));
    dtype = wider;
  }
  // A sub-byte integer is stored in a byte, with zero high bits.
  const bool same_bytes =
      format::FindDType(dtype)->item_bytes == format::FindDType(leaf.dtype)->item_bytes;
  ExportArray array;
  array.leaf = &leaf;
  array.rewrite = !same_bytes || in_pieces || !has_chain;
  array.codec = same_bytes && has_chain ? *codec : format::CodecId::kRaw;
  // Pieces with grids of their own get one for the whole array.
  const format::Shape chunk_shape =
      in_pieces
          ? format::ChooseChunkShape(leaf.shape, format::FindDType(leaf.dtype)->item_bytes, {})
          : leaf.chunk_shape;
  array.zarr = format::orbax::StepwellZarrArray(options.zarr_format, dtype, leaf.shape, chunk_shape,
                                                array.codec);
  out.array = std::move(array);
  // NumPy has no PRNG keys: as its array one would be mere uint32.
  const bool is_jax =
      leaf.value_type == format::ValueType::kPrngKey ||
      (leaf.value_type == format::ValueType::kJaxArray && options.leaves == ExportLeaves::kJax);
  if (leaf.value_type == format::ValueType::kNumpyScalar && leaf.shape.empty() &&
      IsNumpyNumber(dtype)) {
    out.type = OrbaxType::kScalar;
  } else if (is_jax) {
    out.type = OrbaxType::kJaxArray;
  } else {
    out.type = OrbaxType::kNumpyArray;
  }
  return out;
}

// A 0-d array of these bytes.
Result<LeafTranslation> Element(DType dtype, ConstBytes value, const ExportOptions& options) {
  std::string stored(format::PayloadBytesMax(format::CodecId::kRaw, value.size()), '\0');
  STEPWELL_ASSIGN_OR_RETURN(const format::Payload payload,
                            format::EncodePayload(format::CodecId::kRaw, value.size(), value,
                                                  std::as_writable_bytes(std::span(stored))));
  stored.resize(payload.size_bytes - (options.zarr_format == 2 ? format::kCrcBytes : 0));
  LeafTranslation out;
  out.type = OrbaxType::kScalar;
  out.array.emplace();
  out.array->zarr =
      format::orbax::StepwellZarrArray(options.zarr_format, dtype, {}, {}, format::CodecId::kRaw);
  out.array->element = std::move(stored);
  return out;
}

Result<LeafTranslation> TranslateValue(const LeafRecord& leaf, const ExportOptions& options) {
  LeafTranslation out;
  const ConstBytes bytes = AsBytes(leaf.inline_value);
  switch (leaf.value_type) {
    case format::ValueType::kNone:
      out.type = OrbaxType::kNone;
      return out;
    case format::ValueType::kInt: {
      const auto number = IntegerElement(leaf.inline_value, leaf.dtype);
      if (leaf.chunk_count == 0 && number) {
        return Element(number->dtype, AsBytes(number->bytes), options);
      }
      out.unsupported = "is an integer beyond 64 bits";
      return out;
    }
    case format::ValueType::kFloat: {
      if (bytes.size() != sizeof(double)) return Contradiction("the size of a float");
      const auto number = FloatElement(format::LoadLittle<double>(bytes.data()), leaf.dtype);
      return Element(number.dtype, AsBytes(number.bytes), options);
    }
    case format::ValueType::kBool:
      if (bytes.size() != 1) return Contradiction("the size of a bool");
      return Element(DType::kBool, bytes, options);
    case format::ValueType::kStr:
      if (!format::orbax::IsUtf8(leaf.inline_value)) {
        out.unsupported = "is a str with lone surrogates, which is not UTF-8";
        return out;
      }
      out.type = OrbaxType::kString;
      out.text = leaf.inline_value;
      return out;
    case format::ValueType::kBytes:
      out.unsupported = "is of type bytes";
      return out;
    case format::ValueType::kComplex: {
      if (bytes.size() != 2 * sizeof(double)) return Contradiction("the size of a complex");
      if (options.on_unsupported != OnUnsupported::kWiden) {
        out.unsupported = "is a Python complex";
        return out;
      }
      STEPWELL_ASSIGN_OR_RETURN(out, Element(DType::kComplex128, bytes, options));
      out.type = OrbaxType::kNumpyArray;
      out.widened = "Python's complex became a complex128 array of rank 0";
      return out;
    }
    default:
      out.unsupported = "is of a type that this version does not know";
      return out;
  }
}

LeafTranslation TranslateNode(const LeafRecord& leaf) {
  LeafTranslation out;
  if (leaf.child_count > 0) return out;
  switch (leaf.container) {
    case format::ContainerKind::kList:
      out.type = OrbaxType::kList;
      break;
    case format::ContainerKind::kTuple:
      out.type = OrbaxType::kTuple;
      break;
    case format::ContainerKind::kNamedTuple:
    case format::ContainerKind::kObject:
      out.type = OrbaxType::kNone;  // as Orbax writes them
      break;
    default:
      out.type = OrbaxType::kDict;
  }
  return out;
}

}  // namespace

Result<LeafTranslation> TranslateLeaf(const LeafRecord& leaf, const ExportOptions& options) {
  switch (leaf.kind) {
    case LeafKind::kNode:
      return TranslateNode(leaf);
    case LeafKind::kArray:
      return TranslateArray(leaf, options);
    case LeafKind::kValue:
      return TranslateValue(leaf, options);
  }
  return Contradiction("its kind is not known");
}

const std::optional<format::orbax::Sharding>& ShardingCache::Get(const std::string& json) {
  const auto [it, is_new] = parsed_.try_emplace(json);
  if (!is_new || json.empty() || !format::orbax::IsUtf8(json)) return it->second;
  // Orbax's decoder reads files: one with a single leaf.
  std::string file = R"({"YQ==":)";
  format::orbax::AppendJsonString(json, &file);
  auto decoded = format::orbax::DecodeShardings("sharding", file + "}");
  if (!decoded.ok() || decoded->size() != 1) return it->second;
  format::orbax::Sharding& sharding = decoded->front().sharding;
  if (!std::holds_alternative<format::orbax::UnknownSharding>(sharding)) {
    it->second = std::move(sharding);
  }
  return it->second;
}

}  // namespace stepwell::db
