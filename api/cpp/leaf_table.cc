// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/leaf_table.h"

#include <utility>

#include "db/read/path_lookup.h"
#include "format/key.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

bool IsNode(const format::LeafRecord& record) { return record.kind == format::LeafKind::kNode; }

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

}  // namespace

Result<LeafInfo> ToPublic(const format::LeafRecord& record) {
  STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(record.key));
  LeafInfo info;
  info.path = Path::In(std::move(key.item), std::move(key.path));
  info.type = TypeOf(record);
  info.dtype = info.type == LeafType::kArray ? record.dtype : DType::kInvalid;
  info.shape = record.shape;
  info.chunk_shape = record.chunk_shape;
  info.stored_bytes = record.inline_value.size();
  for (const format::ChunkRecord& chunk : record.chunks) info.stored_bytes += chunk.stored_bytes;
  info.logical_bytes = record.logical_bytes;
  if (info.type != LeafType::kArray) return info;
  const DTypeInfo* dtype = FindDType(record.dtype);
  if (dtype == nullptr) return DataLossError(StrCat(info.path.ToText(), ": unknown dtype"));
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t count,
                            format::ElementCount(record.shape, dtype->item_bytes));
  info.logical_bytes = count * dtype->item_bytes;
  return info;
}

Result<LeafTable> LeafTable::Make(const format::StepRecord& step,
                                  std::vector<format::LeafRecord> records) {
  LeafTable table;
  table.step_ = step.step;
  table.records_ = std::move(records);
  STEPWELL_ASSIGN_OR_RETURN(table.tree_,
                            db::StepTree::Make(step.step, table.records_, db::IsOnlyState(step)));
  return table;
}

Result<db::PathSelection> LeafTable::Resolve(const Path& path) const {
  std::optional<size_t> below;
  if (path.item()) {
    STEPWELL_ASSIGN_OR_RETURN(below, tree_.Item(*path.item()));
  }
  if (path.components()) {
    return tree_.Resolve(format::PathPattern::Of(*path.components()), below);
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto pattern, format::PathPattern::Parse(path.text()));
  return tree_.Resolve(pattern, below);
}

Result<size_t> LeafTable::FindPlace(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const db::PathSelection selection, Resolve(path));
  if (selection.is_glob) {
    return InvalidArgumentError(
        StrCat("path \"", path.ToText(), "\" has a wildcard; one leaf or subtree is wanted here"));
  }
  return selection.numbers.front();
}

Result<std::vector<const format::LeafRecord*>> LeafTable::Leaves(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const db::PathSelection selection, Resolve(path));
  std::vector<const format::LeafRecord*> leaves;
  if (selection.is_glob) {
    for (const size_t number : selection.numbers) leaves.push_back(&records_[number]);
    return leaves;
  }
  const size_t place = selection.numbers.front();
  for (size_t n = place == db::StepTree::kRoot ? 0 : place; n < tree_.end(place); ++n) {
    if (!IsNode(records_[n])) leaves.push_back(&records_[n]);
  }
  return leaves;
}

Result<const format::LeafRecord*> LeafTable::FindLeaf(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const size_t place, FindPlace(path));
  if (place == db::StepTree::kRoot || IsNode(records_[place])) {
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, Leaves(path));
    return InvalidArgumentError(StrCat("step ", step_, ": \"", path.ToText(), "\" is a subtree of ",
                                       leaves.size(), " leaves, not a leaf"));
  }
  return &records_[place];
}

Result<std::string> LeafTable::FindKey(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const size_t place, FindPlace(path));
  return place == db::StepTree::kRoot ? std::string() : records_[place].key;
}

}  // namespace stepwell
