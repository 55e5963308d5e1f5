// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/records.h"

#include <algorithm>
#include <map>

#include "format/dtype.h"
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

// What describes a leaf, without where its bytes are.
LeafRecord Description(const LeafRecord& record, std::string key) {
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
  } else if (record.kind == LeafKind::kValue && record.value_type == format::ValueType::kStr) {
    out.inline_value.clear();  // Orbax's file of texts has it, whatever its length
    out.logical_bytes = 0;
  }
  return out;
}

}  // namespace

Result<std::vector<LeafRecord>> RecordsOfExport(const std::string& item,
                                                std::vector<SelectedRecord> selected) {
  std::vector<LeafRecord> records;
  records.reserve(selected.size());
  for (const auto& [record, path] : selected) {
    STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(item, path));
    records.push_back(Description(*record, std::move(key)));
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
  if (!CheckRecords(records).ok()) records.clear();
  return records;
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
