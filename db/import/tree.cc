// SPDX-License-Identifier: Apache-2.0
#include "db/import/tree.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>

#include "db/export/orbax/numbers.h"
#include "db/export/orbax/records.h"
#include "format/endian.h"
#include "format/key.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/orbax_files.h"
#include "format/orbax/python_text.h"
#include "format/orbax/tree_metadata.h"
#include "io/small_file.h"

namespace stepwell::db::import {
namespace {

using format::ContainerKind;
using format::DType;
using format::LeafKind;
using format::orbax::OrbaxType;
using format::orbax::Printable;
using format::orbax::TreeEntry;
using format::orbax::TreeKey;
using format::orbax::TreeMetadata;
using StoredType = format::ValueType;

constexpr uint64_t kMetadataBytesMax = uint64_t{1} << 30;
// Smaller shards would make small chunks.
constexpr uint64_t kShardBytesMin = uint64_t{256} << 10;

// The facts about leaves that the small files hold, by name.
struct Notes {
  std::unordered_map<std::string, std::string> shardings;
  std::unordered_map<std::string, std::string> key_impls;  // of PRNG keys
  std::unordered_map<std::string, std::string> strings;
};

Status ReadShardings(io::FileSystem* file_system, const std::string& folder, Notes* notes) {
  const std::string path = StrCat(folder, "/", format::orbax::kShardingName);
  STEPWELL_ASSIGN_OR_RETURN(const auto text, io::ReadIfThere(file_system, path, kMetadataBytesMax));
  if (!text) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, format::orbax::DecodeShardings(path, *text));
  for (const format::orbax::LeafSharding& leaf : leaves) {
    // That of an export which is for any machine: it is of no devices in particular.
    if (std::holds_alternative<format::orbax::ReplicatedSharding>(leaf.sharding)) continue;
    STEPWELL_ASSIGN_OR_RETURN(notes->shardings[leaf.param_name],
                              format::orbax::EncodeSharding(leaf.sharding));
  }
  return OkStatus();
}

// One file of each process that wrote.
Status ReadKeyImpls(io::FileSystem* file_system, const std::string& folder, Notes* notes) {
  const std::string path = StrCat(folder, "/", format::orbax::kArrayMetadatasFolder);
  STEPWELL_ASSIGN_OR_RETURN(const auto info, io::StatIfThere(file_system, path));
  if (!info || !info->is_directory) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system->List(path));
  for (const std::string& name : names) {
    if (!name.starts_with("process_")) continue;
    const std::string file = StrCat(path, "/", name);
    STEPWELL_ASSIGN_OR_RETURN(const std::string text,
                              io::ReadSmallFile(file_system, file, kMetadataBytesMax));
    STEPWELL_ASSIGN_OR_RETURN(auto leaves, format::orbax::DecodeArrayMetadatas(file, text));
    for (auto& leaf : leaves) {
      if (leaf.random_key_impl) notes->key_impls[leaf.param_name] = *leaf.random_key_impl;
    }
  }
  return OkStatus();
}

Result<Notes> ReadNotes(io::FileSystem* file_system, const std::string& folder) {
  Notes notes;
  STEPWELL_RETURN_IF_ERROR(ReadShardings(file_system, folder, &notes));
  STEPWELL_RETURN_IF_ERROR(ReadKeyImpls(file_system, folder, &notes));
  const std::string path = StrCat(folder, "/", format::orbax::kStringsName);
  STEPWELL_ASSIGN_OR_RETURN(const auto text, io::ReadIfThere(file_system, path, kMetadataBytesMax));
  if (!text) return notes;
  STEPWELL_ASSIGN_OR_RETURN(auto strings, format::orbax::DecodeStrings(path, *text));
  for (auto& leaf : strings) notes.strings[leaf.param_name] = std::move(leaf.text);
  return notes;
}

// ---- structure ----

// A node of the tree, by its encoded key. One with indices and names is an object, as nnx.List is.
struct Node {
  ContainerKind kind = ContainerKind::kDict;
  std::string name;  // for messages
  uint64_t child_count = 0;
  int64_t index_max = -1;
};

class TreeReader {
 public:
  TreeReader(const OrbaxItem& source, uint64_t memory_bytes_max, std::vector<ImportArray>* arrays)
      : source_(source), memory_bytes_max_(memory_bytes_max), arrays_(arrays) {}

  Result<ImportTree> Read(io::FileSystem* file_system);

 private:
  std::string Label(const format::KeyPath& path) const {
    return StrCat("item '", Printable(source_.name), "', leaf '",
                  Printable(format::PathToText(path)), "'");
  }
  Status Bad(const format::KeyPath& path, std::string_view what) const {
    return DataLossError(StrCat(Label(path), ": ", what));
  }
  Status OpenIndex(io::FileSystem* file_system);
  Status CheckNames() const;
  Status AddEntry(const TreeEntry& entry);
  Status AddAncestors(const format::KeyPath& path);
  Status AddLeaf(const TreeEntry& entry, const format::KeyPath& path, std::string key);
  Status AddArray(const TreeEntry& entry, const format::KeyPath& path, std::string key);
  Status AddNodes();
  Status AddEntries();
  Status AddRecords(io::FileSystem* file_system);
  Result<std::set<std::string>> ReadValues(io::FileSystem* file_system,
                                           std::vector<format::LeafRecord>* records);
  Status RenameUnnamed();
  void AddValue(format::LeafRecord record);
  Status AddRecord(format::LeafRecord record, const TreeEntry& entry);

  const OrbaxItem& source_;
  const uint64_t memory_bytes_max_;
  std::vector<ImportArray>* const arrays_;
  TreeMetadata metadata_;
  Notes notes_;
  ImportTree tree_;
  std::map<std::string, Node> nodes_;
};

Status TreeReader::OpenIndex(io::FileSystem* file_system) {
  const auto has_data = [](const TreeEntry& entry) {
    return !format::orbax::IsEmptyNode(entry.type) && entry.type != OrbaxType::kString;
  };
  if (std::none_of(metadata_.entries.begin(), metadata_.entries.end(), has_data)) return OkStatus();
  bool is_ocdbt = metadata_.use_ocdbt.value_or(true);
  if (!metadata_.use_ocdbt) {
    STEPWELL_ASSIGN_OR_RETURN(
        is_ocdbt,
        io::HasFile(file_system, StrCat(source_.path, "/", format::orbax::kOcdbtManifestName)));
  }
  STEPWELL_ASSIGN_OR_RETURN(tree_.index, ValueIndex::Open(file_system, source_.path, is_ocdbt));
  return OkStatus();
}

// Two leaves with one name have one array: Orbax has lost the other.
Status TreeReader::CheckNames() const {
  std::vector<std::string> names;
  for (const TreeEntry& entry : metadata_.entries) {
    if (!format::orbax::IsEmptyNode(entry.type)) {
      names.push_back(format::orbax::ParamName(entry.keys));
    }
  }
  const auto collisions = format::orbax::FindNameCollisions(names);
  if (collisions.empty()) return OkStatus();
  return DataLossError(StrCat("item '", Printable(source_.name), "': ", collisions[0].leaves.size(),
                              " leaves have the name \"", Printable(collisions[0].name),
                              "\" (a key has a \".\"): Orbax kept the data of one of them only"));
}

// The nodes above a leaf or empty node. What stands at a node's place itself is in nodes_ too, but
// with no child.
Status TreeReader::AddAncestors(const format::KeyPath& path) {
  for (size_t depth = 0; depth < path.size(); ++depth) {
    const format::KeyPath above(path.begin(), path.begin() + static_cast<ptrdiff_t>(depth));
    STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(tree_.item.name, above));
    const bool is_index = path[depth].type == PathComponent::Type::kIndex;
    const ContainerKind kind = is_index ? ContainerKind::kList : ContainerKind::kDict;
    const auto [found, is_new] = nodes_.emplace(std::move(key), Node{kind, Label(above), 0, -1});
    if (found->second.kind != kind) found->second.kind = ContainerKind::kObject;
    if (is_index) found->second.index_max = std::max(found->second.index_max, path[depth].number);
  }
  return OkStatus();
}

Status TreeReader::AddArray(const TreeEntry& entry, const format::KeyPath& path, std::string key) {
  ImportArray array;
  array.label = Label(path);
  array.param_name =
      source_.kind == OrbaxItem::Kind::kArray ? "checkpoint" : format::orbax::ParamName(entry.keys);
  array.index = tree_.index.get();
  array.may_be_absent = !metadata_.store_array_data_equal_to_fill_value.value_or(false);
  STEPWELL_RETURN_IF_ERROR(DescribeArray(metadata_.use_zarr3 ? 3 : 2, memory_bytes_max_, &array));
  ImportTree::ArrayLeaf array_leaf;
  array_leaf.leaf = tree_.item.leaves.size();
  array_leaf.array = arrays_->size();
  array_leaf.is_scalar = entry.type == OrbaxType::kScalar;
  if (array_leaf.is_scalar && !array.zarr.shape.empty()) {
    return Bad(path, "a scalar that is stored as an array with axes");
  }
  LeafInput& leaf = tree_.item.leaves.emplace_back();
  format::LeafRecord& record = leaf.record;
  record.key = std::move(key);
  record.kind = LeafKind::kArray;
  record.dtype = array.zarr.dtype;
  record.shape = array.zarr.shape;
  record.value_type =
      entry.type == OrbaxType::kNumpyArray ? StoredType::kNumpyArray : StoredType::kJaxArray;
  if (entry.type == OrbaxType::kJaxArray) {
    const auto sharding = notes_.shardings.find(array.param_name);
    if (sharding != notes_.shardings.end()) record.sharding_json = sharding->second;
    const auto impl = notes_.key_impls.find(array.param_name);
    if (impl != notes_.key_impls.end()) {
      if (record.dtype != DType::kUInt32 || record.shape.empty()) {
        return Bad(path, "a PRNG key whose data is not a uint32 array");
      }
      record.value_type = StoredType::kPrngKey;
      record.prng_impl = impl->second;
    }
    if (entry.write_shape && entry.write_shape->size() == record.shape.size()) {
      uint64_t shard_bytes = array.dtype->item_bytes;
      for (size_t axis = 0; axis < record.shape.size(); ++axis) {
        array_leaf.shard_shape.push_back(std::clamp<uint64_t>(
            (*entry.write_shape)[axis], 1, std::max<uint64_t>(record.shape[axis], 1)));
        shard_bytes *= array_leaf.shard_shape.back();  // at most the array's
      }
      if (shard_bytes < kShardBytesMin) array_leaf.shard_shape.clear();
    }
  }
  arrays_->push_back(std::move(array));
  tree_.array_leaves.push_back(std::move(array_leaf));
  return OkStatus();
}

Status TreeReader::AddLeaf(const TreeEntry& entry, const format::KeyPath& path, std::string key) {
  const auto add_empty = [&](ContainerKind kind) {
    tree_.item.leaves.push_back(NodeInput(std::move(key), kind, 0));
    return OkStatus();
  };
  switch (entry.type) {
    case OrbaxType::kNone:
    case OrbaxType::kNamedTuple:  // without fields: Orbax gives None, too
      tree_.item.leaves.push_back(ValueInput(std::move(key), StoredType::kNone, {}));
      return OkStatus();
    case OrbaxType::kDict:
      return add_empty(ContainerKind::kDict);
    case OrbaxType::kList:
      return add_empty(ContainerKind::kList);
    case OrbaxType::kTuple:
      return add_empty(ContainerKind::kTuple);
    case OrbaxType::kString: {
      const auto found = notes_.strings.find(format::orbax::ParamName(entry.keys));
      if (found == notes_.strings.end()) {
        return Bad(path,
                   StrCat("its text is not in ", source_.path, "/", format::orbax::kStringsName));
      }
      tree_.item.leaves.push_back(ValueInput(std::move(key), StoredType::kStr, found->second));
      return OkStatus();
    }
    case OrbaxType::kJaxArray:
    case OrbaxType::kNumpyArray:
    case OrbaxType::kScalar:
      return AddArray(entry, path, std::move(key));
  }
  return Bad(path, "unknown type of value");
}

Status TreeReader::AddEntry(const TreeEntry& entry) {
  const bool is_array_item = source_.kind == OrbaxItem::Kind::kArray;
  STEPWELL_ASSIGN_OR_RETURN(const format::KeyPath path,
                            is_array_item ? Result<format::KeyPath>(format::KeyPath())
                                          : format::orbax::PathOfTreeKeys(entry.keys));
  Result<std::string> key = format::EncodeLeafKey(tree_.item.name, path);
  if (!key.ok()) return key.status().WithContext(Label(path));
  // Partial saves of Orbax leave the empty node that was there before its children.
  const bool has_children = nodes_.contains(*key);
  if (has_children && format::orbax::IsEmptyNode(entry.type)) return OkStatus();
  if (has_children) return Bad(path, "both a leaf and a node with children");
  return AddLeaf(entry, path, *std::move(key));
}

Status TreeReader::AddNodes() {
  // Children are counted by what is really there.
  std::map<std::string, uint64_t> counts;
  const auto count_parent = [&](std::string_view key) -> Status {
    STEPWELL_ASSIGN_OR_RETURN(format::LeafKey decoded, format::DecodeLeafKey(key));
    if (decoded.path.empty()) return OkStatus();
    decoded.path.pop_back();
    STEPWELL_ASSIGN_OR_RETURN(const std::string above,
                              format::EncodeLeafKey(decoded.item, decoded.path));
    ++counts[above];
    return OkStatus();
  };
  for (const LeafInput& leaf : tree_.item.leaves) {
    STEPWELL_RETURN_IF_ERROR(count_parent(leaf.record.key));
  }
  for (const auto& [key, node] : nodes_) STEPWELL_RETURN_IF_ERROR(count_parent(key));
  for (const auto& [key, node] : nodes_) {
    const uint64_t count = counts[key];
    const bool is_list = node.kind == ContainerKind::kList;
    if (is_list && static_cast<uint64_t>(node.index_max) + 1 != count) {
      return DataLossError(
          StrCat(node.name, ": a list with ", count, " elements has the index ", node.index_max));
    }
    tree_.item.leaves.push_back(NodeInput(key, node.kind, count));
  }
  return OkStatus();
}

Result<ImportTree> TreeReader::Read(io::FileSystem* file_system) {
  tree_.item.name = source_.target;
  const std::string path = StrCat(source_.path, "/", format::orbax::kTreeMetadataName);
  STEPWELL_ASSIGN_OR_RETURN(const std::string text,
                            io::ReadSmallFile(file_system, path, kMetadataBytesMax));
  STEPWELL_ASSIGN_OR_RETURN(metadata_, format::orbax::DecodeTreeMetadata(path, text));
  if (metadata_.custom_metadata != "null") tree_.custom_metadata = metadata_.custom_metadata;
  if (source_.kind == OrbaxItem::Kind::kArray && metadata_.entries.size() != 1) {
    return DataLossError(StrCat(path, ": ", metadata_.entries.size(), " leaves in an array"));
  }
  STEPWELL_RETURN_IF_ERROR(CheckNames());
  const std::string values = StrCat(source_.path, "/", kValuesName);
  STEPWELL_ASSIGN_OR_RETURN(const bool has_values, io::HasFile(file_system, values));
  if (has_values && !source_.has_values) {
    return DataLossError(StrCat(values, ": no digest of the checkpoint is of these values, which ",
                                "Orbax cannot hold. Import a whole copy of the checkpoint, or ",
                                "remove the file to import the rest"));
  }
  STEPWELL_ASSIGN_OR_RETURN(notes_, ReadNotes(file_system, source_.path));
  STEPWELL_RETURN_IF_ERROR(OpenIndex(file_system));
  STEPWELL_RETURN_IF_ERROR(source_.has_records ? AddRecords(file_system) : AddEntries());
  return std::move(tree_);
}

// The tree as Orbax describes it.
Status TreeReader::AddEntries() {
  if (source_.kind != OrbaxItem::Kind::kArray) {
    for (const TreeEntry& entry : metadata_.entries) {
      STEPWELL_ASSIGN_OR_RETURN(const format::KeyPath keys,
                                format::orbax::PathOfTreeKeys(entry.keys));
      STEPWELL_RETURN_IF_ERROR(AddAncestors(keys));
    }
  }
  for (const TreeEntry& entry : metadata_.entries) STEPWELL_RETURN_IF_ERROR(AddEntry(entry));
  return AddNodes();
}

// The tree as it was saved: our own export says of each of Orbax's entries which leaf it is.
Status TreeReader::AddRecords(io::FileSystem* file_system) {
  const std::string path = StrCat(source_.path, "/", kRecordsName);
  STEPWELL_ASSIGN_OR_RETURN(const std::string bytes,
                            io::ReadSmallFile(file_system, path, kMetadataBytesMax));
  Result<std::vector<format::LeafRecord>> records = format::DecodeRecords(AsBytes(bytes));
  if (!records.ok()) return records.status().WithContext(path);
  STEPWELL_ASSIGN_OR_RETURN(const auto values, ReadValues(file_system, &*records));
  Result<std::string> name = CheckRecords(*records);
  if (!name.ok()) return name.status().WithContext(path);
  tree_.item.name = *std::move(name);
  auto entry = metadata_.entries.begin();
  for (format::LeafRecord& record : *records) {
    if (record.kind == LeafKind::kNode && record.child_count > 0) {
      tree_.item.leaves.emplace_back().record = std::move(record);
      continue;
    }
    if (values.contains(record.key)) {
      AddValue(std::move(record));
      continue;
    }
    if (entry == metadata_.entries.end()) break;
    STEPWELL_RETURN_IF_ERROR(AddRecord(std::move(record), *entry++));
  }
  const bool is_whole =
      entry == metadata_.entries.end() && tree_.item.leaves.size() == records->size();
  return is_whole ? RenameUnnamed() : DataLossError(StrCat(path, ": records of another tree"));
}

// Values that Orbax has no type for, put among the tree's records. Gives their keys.
Result<std::set<std::string>> TreeReader::ReadValues(io::FileSystem* file_system,
                                                     std::vector<format::LeafRecord>* records) {
  std::set<std::string> keys;
  if (!source_.has_values) return keys;
  const std::string path = StrCat(source_.path, "/", kValuesName);
  STEPWELL_ASSIGN_OR_RETURN(const std::string bytes,
                            io::ReadSmallFile(file_system, path, kMetadataBytesMax));
  Result<std::vector<format::LeafRecord>> values = DecodeValues(bytes);
  if (!values.ok()) return values.status().WithContext(path);
  for (format::LeafRecord& value : *values) {
    keys.insert(value.key);
    records->push_back(std::move(value));
  }
  std::sort(records->begin(), records->end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  return keys;
}

// The facade of v0 saves a state without a name as the plain tree, so it is imported as one.
Status TreeReader::RenameUnnamed() {
  if (source_.target != kPlainItem || tree_.item.name != kUnnamedItems[0]) return OkStatus();
  tree_.item.name = source_.target;
  for (LeafInput& leaf : tree_.item.leaves) {
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(leaf.record.key));
    STEPWELL_ASSIGN_OR_RETURN(leaf.record.key, format::EncodeLeafKey(source_.target, key.path));
  }
  return OkStatus();
}

void TreeReader::AddValue(format::LeafRecord record) {
  LeafInput& leaf = tree_.item.leaves.emplace_back();
  leaf.value = std::move(record.inline_value);
  record.inline_value.clear();
  leaf.record = std::move(record);
}

Status TreeReader::AddRecord(format::LeafRecord record, const TreeEntry& entry) {
  STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(record.key));
  const bool has_array = record.kind == LeafKind::kArray;
  if (!has_array && entry.type != OrbaxType::kString) {
    AddValue(std::move(record));
    return OkStatus();
  }
  STEPWELL_RETURN_IF_ERROR(has_array ? AddArray(entry, key.path, record.key)
                                     : AddLeaf(entry, key.path, record.key));
  format::LeafRecord& made = tree_.item.leaves.back().record;
  made.variable_types = std::move(record.variable_types);
  if (!has_array) return OkStatus();
  tree_.array_leaves.back().is_scalar = false;
  const bool fits = record.value_type == StoredType::kNumpyScalar ? record.shape.empty()
                    : record.value_type == StoredType::kPrngKey
                        ? record.dtype == DType::kUInt32 && !record.shape.empty()
                        : record.value_type == StoredType::kNumpyArray ||
                              record.value_type == StoredType::kJaxArray;
  if (!fits || made.shape != record.shape) {
    return Bad(key.path, "its record is of another array");
  }
  made.value_type = record.value_type;  // its element type may be a wider one
  made.weak_type = record.weak_type;
  made.prng_impl = std::move(record.prng_impl);
  made.sharding_json = std::move(record.sharding_json);
  return OkStatus();
}

}  // namespace

LeafInput NodeInput(std::string key, ContainerKind container, uint64_t child_count) {
  LeafInput leaf;
  leaf.record.key = std::move(key);
  leaf.record.kind = LeafKind::kNode;
  leaf.record.container = container;
  leaf.record.child_count = child_count;
  return leaf;
}

LeafInput ValueInput(std::string key, StoredType type, std::string value) {
  LeafInput leaf;
  leaf.record.key = std::move(key);
  leaf.record.kind = LeafKind::kValue;
  leaf.record.value_type = type;
  leaf.record.logical_bytes = value.size();
  leaf.value = std::move(value);
  return leaf;
}

std::string FloatValue(double number) {
  std::byte bytes[sizeof(double)];
  format::StoreLittle(bytes, number);
  return std::string(AsText(bytes));
}

Result<ImportTree> ReadTree(io::FileSystem* file_system, const OrbaxItem& item,
                            uint64_t memory_bytes_max, std::vector<ImportArray>* arrays) {
  return TreeReader(item, memory_bytes_max, arrays).Read(file_system);
}

}  // namespace stepwell::db::import
