// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/records.h"

#include <algorithm>
#include <map>
#include <set>

#include "format/dtype.h"
#include "format/endian.h"
#include "format/grid.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

using format::LeafKind;
using format::LeafRecord;

bool HasChildren(const LeafRecord& record) {
  return record.kind == LeafKind::kNode && record.child_count > 0;
}

// The key of the container; "": it has none.
Result<std::string> ParentKey(std::string_view encoded) {
  STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(encoded));
  if (key.path.empty()) return std::string();
  key.path.pop_back();
  return format::EncodeLeafKey(key.item, key.path);
}

// Describes a leaf without the places of its bytes.
LeafRecord Description(const LeafRecord& record, std::string key, bool in_orbax) {
  LeafRecord out = record;
  out.key = std::move(key);
  out.chunks.clear();
  out.pieces.clear();
  out.partial = false;
  out.chunk_count = 0;
  if (record.kind == LeafKind::kArray) {
    if (record.partial || !record.pieces.empty()) {
      const auto* const dtype = format::FindDType(record.dtype);
      out.chunk_shape = format::ChooseChunkShape(record.shape, dtype->item_bytes, {});
    }
    out.chunk_count = format::ChunkCount(out.shape, out.chunk_shape);
  } else if (!in_orbax) {
    out.logical_bytes = out.inline_value.size();
  } else if (record.kind == LeafKind::kValue && record.value_type == format::ValueType::kStr) {
    out.inline_value.clear();  // Orbax's file of texts has it, whatever its length
    out.logical_bytes = 0;
  }
  return out;
}

void AppendPart(std::string_view part, std::string* out) {
  format::AppendLittle<uint64_t>(part.size(), out);
  *out += part;
}

Result<std::string_view> TakePart(std::string_view* bytes) {
  if (bytes->size() < sizeof(uint64_t)) return DataLossError("values that are cut off");
  const auto size = format::LoadLittle<uint64_t>(AsBytes(*bytes).data());
  bytes->remove_prefix(sizeof(uint64_t));
  if (bytes->size() < size) return DataLossError("values that are cut off");
  const std::string_view part = bytes->substr(0, size);
  bytes->remove_prefix(size);
  return part;
}

}  // namespace

Result<ExportRecords> RecordsOfExport(const std::string& item,
                                      const std::vector<SelectedRecord>& selected) {
  std::vector<LeafRecord> records;
  records.reserve(selected.size());
  std::set<std::string> values;  // their keys
  for (const auto& [record, path, in_orbax] : selected) {
    STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(item, path));
    if (!in_orbax) values.insert(key);
    records.push_back(Description(*record, std::move(key), in_orbax));
  }
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  // Children come behind their container. Some of them may have been skipped.
  std::map<std::string, uint64_t> counts;
  for (size_t i = records.size(); i-- > 0;) {
    LeafRecord& record = records[i];
    if (HasChildren(record)) {
      const uint64_t left = counts[record.key];
      if (left == 0) {
        record.key.clear();
        continue;
      }
      // A list or tuple with gaps is none: its indices stay.
      const bool has_gaps =
          left != record.child_count && (record.container == format::ContainerKind::kList ||
                                         record.container == format::ContainerKind::kTuple);
      if (has_gaps) record.container = format::ContainerKind::kObject;
      record.child_count = left;
    }
    STEPWELL_ASSIGN_OR_RETURN(const std::string parent, ParentKey(record.key));
    ++counts[parent];
  }
  std::erase_if(records, [](const LeafRecord& record) { return record.key.empty(); });
  ExportRecords out;
  if (!CheckRecords(records).ok()) return out;
  for (LeafRecord& record : records) {
    auto& those = values.contains(record.key) ? out.values : out.entries;
    those.push_back(std::move(record));
  }
  return out;
}

std::string EncodeValues(const std::vector<LeafRecord>& values) {
  std::vector<LeafRecord> records = values;
  for (LeafRecord& record : records) {
    record.inline_value.clear();
    record.logical_bytes = 0;
  }
  std::string out;
  AppendPart(format::EncodeRecords(records), &out);
  for (const LeafRecord& value : values) AppendPart(value.inline_value, &out);
  return out;
}

Result<std::vector<LeafRecord>> DecodeValues(std::string_view bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view records, TakePart(&bytes));
  STEPWELL_ASSIGN_OR_RETURN(auto values, format::DecodeRecords(AsBytes(records)));
  for (LeafRecord& value : values) {
    if (value.kind != LeafKind::kValue) return DataLossError("what is no value");
    STEPWELL_ASSIGN_OR_RETURN(value.inline_value, TakePart(&bytes));
    value.logical_bytes = value.inline_value.size();
  }
  if (!bytes.empty()) return DataLossError("bytes behind the last value");
  return values;
}

Result<std::string> CheckRecords(const std::vector<LeafRecord>& records) {
  if (records.empty()) return DataLossError("no records of a tree");
  std::map<std::string, uint64_t> missing;  // children, by the key of their container
  for (size_t i = 0; i < records.size(); ++i) {
    const LeafRecord& record = records[i];
    STEPWELL_ASSIGN_OR_RETURN(const std::string parent, ParentKey(record.key));
    if (parent.empty() != (i == 0)) return DataLossError("records of more than one tree");
    if (i > 0 && (record.key <= records[i - 1].key || missing[parent]-- == 0)) {
      return DataLossError("records that are no tree");
    }
    if (HasChildren(record)) missing[record.key] = record.child_count;
  }
  const bool is_whole = std::all_of(missing.begin(), missing.end(),
                                    [](const auto& each) { return each.second == 0; });
  if (!is_whole) return DataLossError("records of a part of a tree");
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(records[0].key));
  return key.item;
}

}  // namespace stepwell::db
