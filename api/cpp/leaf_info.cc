// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/leaf_info.h"

#include <utility>

#include "api/cpp/core.h"
#include "format/key.h"
#include "format/names.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

std::string CodecName(const format::LeafRecord& record) {
  const std::optional<format::CodecId> codec = record.codec();
  if (!codec) return "mixed";
  const format::CodecInfo* const info = format::FindCodec(*codec);
  return info == nullptr ? StrCat("codec ", static_cast<unsigned>(*codec)) : info->name;
}

LeafType TypeOf(const format::LeafRecord& record) {
  if (record.kind == format::LeafKind::kArray) return LeafType::kArray;
  switch (record.value_type) {
    case format::ValueType::kNone:
      return LeafType::kNone;
    case format::ValueType::kBool:
      return LeafType::kBool;
    case format::ValueType::kInt:
      return LeafType::kInt;
    case format::ValueType::kFloat:
      return LeafType::kFloat;
    case format::ValueType::kComplex:
      return LeafType::kComplex;
    case format::ValueType::kStr:
      return LeafType::kStr;
    default:
      return LeafType::kBytes;
  }
}

// Decoded, of an array or a value. Of an element type that this version does not know: 0.
Result<uint64_t> LogicalBytes(const format::LeafRecord& record) {
  if (record.kind != format::LeafKind::kArray) return record.logical_bytes;
  const DTypeInfo* dtype = FindDType(record.dtype);
  const uint64_t item_bytes = dtype == nullptr ? 0 : dtype->item_bytes;
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t count, format::ElementCount(record.shape, item_bytes));
  return count * item_bytes;
}

}  // namespace

StepInfo ToPublic(const format::StepRecord& record) {
  StepInfo info;
  info.step = record.step;
  info.time = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(record.time_ns)));
  info.save_time = std::chrono::nanoseconds(record.save_ns);
  info.commit = record.commit;
  info.pinned = record.pinned;
  info.taint = record.taint;
  info.verified = record.verified;
  for (const format::ItemRecord& item : record.items) {
    info.items.push_back({.name = item.name,
                          .leaves = item.leaf_count,
                          .logical_bytes = item.logical_bytes,
                          .stored_bytes = item.stored_bytes,
                          .nonfinite = item.nonfinite});
  }
  info.leaves = record.leaf_count;
  info.chunks = record.chunk_count;
  info.logical_bytes = record.logical_bytes;
  info.stored_bytes = record.stored_bytes;
  info.referenced_bytes = record.referenced_bytes;
  if (record.group && record.group->parts.size() > 1) info.processes = record.group->parts;
  info.metadata_json = record.metadata_json;
  info.metrics_json = record.metrics_json;
  return info;
}

Result<LeafInfo> Describe(const format::LeafRecord& record) {
  STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(record.key));
  LeafInfo info;
  info.path = Path::In(std::move(key.item), std::move(key.path));
  info.variable_types = record.variable_types;
  if (record.kind == format::LeafKind::kNode) {
    info.type = LeafType::kNode;
    info.kind = format::NameOf(record.container);
    info.type_name = record.type_name;
    info.children = record.child_count;
    return info;
  }
  info.type = TypeOf(record);
  info.kind = format::NameOf(record.value_type);
  info.shape = record.shape;
  info.chunk_shape = record.chunk_shape;
  info.codec = CodecName(record);
  info.chunks = record.chunk_count;
  info.stored_bytes = record.inline_value.size();
  for (const format::ChunkRecord& chunk : record.chunks)
    info.stored_bytes += chunk.all_stored_bytes();
  STEPWELL_ASSIGN_OR_RETURN(info.logical_bytes, LogicalBytes(record));
  if (record.kind == format::LeafKind::kArray) {
    const bool known = FindDType(record.dtype) != nullptr;
    info.dtype = known ? record.dtype : DType::kInvalid;
    info.shard_shape = record.shard_shape.empty() ? record.shape : record.shard_shape;
    info.sharding_json = record.sharding_json;
    info.prng_impl = record.prng_impl;
    info.statistics = record.statistics;
  } else if (record.chunk_count == 0) {
    Result<Value> value = DecodeValue(record.value_type, record.inline_value);
    if (value.ok()) info.value = *std::move(value);
  }
  return info;
}

}  // namespace stepwell
