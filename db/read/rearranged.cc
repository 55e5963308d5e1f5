// SPDX-License-Identifier: Apache-2.0
#include "db/read/rearranged.h"

#include <algorithm>
#include <map>
#include <utility>

#include "format/dtype.h"
#include "format/grid.h"
#include "io/bytes.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;
using format::PathComponent;
using Names = std::vector<std::string>;

using Places = std::map<std::string, std::pair<LeafRecord, size_t>>;  // by key, with the origin

// Keys of what the place `parent` (a key; "": the step) may have that is spelled `name`; the first
// is the one that is made where there is none.
Result<std::vector<std::string>> KeysSpelled(const std::string& parent, const std::string& name) {
  if (parent.empty()) return std::vector<std::string>{format::EncodeItem(name)};
  std::vector<std::string> keys;
  format::KeyPath meanings = format::ComponentsSpelled(name);
  meanings.insert(meanings.begin(), PathComponent::Key(name));
  for (const PathComponent& component : meanings) {
    STEPWELL_ASSIGN_OR_RETURN(const std::string last, format::EncodePath({component}));
    keys.push_back(parent + last);
  }
  return keys;
}

// Puts a leaf at the path below `key`, with the nodes that are missing above it.
Status Put(LeafRecord leaf, size_t origin, std::string key, const Names& path, Places* places) {
  for (size_t i = 0; i < path.size(); ++i) {
    STEPWELL_ASSIGN_OR_RETURN(const std::vector<std::string> keys, KeysSpelled(key, path[i]));
    const bool is_last = i + 1 == path.size();
    bool taken = false;
    std::string node;
    for (const std::string& each : keys) {
      const auto found = places->find(each);
      if (found == places->end()) continue;
      taken = true;
      if (found->second.first.kind == format::LeafKind::kNode && node.empty()) node = each;
    }
    if (!is_last && !node.empty()) {
      key = node;
      continue;
    }
    if (taken) {
      format::KeyPath names;
      for (const std::string& name : path) names.push_back(PathComponent::Key(name));
      return InvalidArgumentError(
          StrCat("rename: '", format::PathToText(names), "' is the place of another leaf already"));
    }
    key = keys.front();
    LeafRecord made;
    made.kind = format::LeafKind::kNode;
    made.value_type = format::ValueType::kNone;
    made.container = format::ContainerKind::kDict;
    if (is_last) made = std::move(leaf);
    made.key = key;
    places->emplace(key, std::pair(std::move(made), is_last ? origin : StepTree::kRoot));
  }
  return OkStatus();
}

LeafRecord WithoutChunks(const LeafRecord& record) {
  LeafRecord copy = record;
  copy.chunks.clear();
  return copy;
}

Result<LeafRecord> RecordOf(const StepTree& tree, const Move& move) {
  LeafRecord record = WithoutChunks(tree.records()[move.leaf]);
  if (!move.shape) return record;
  const format::DTypeInfo* const info = format::FindDType(record.dtype);
  if (info == nullptr) return DataLossError("the leaf's record is damaged: its element type");
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t count,
                            format::ElementCount(*move.shape, info->item_bytes));
  record.logical_bytes = count * info->item_bytes;
  record.shape = record.chunk_shape = *move.shape;
  record.shard_shape.clear();
  record.sharding_json.clear();
  record.partial = false;
  record.pieces.clear();
  record.statistics.reset();
  return record;
}

}  // namespace

Result<Rearranged> Rearrange(const StepTree& tree,
                             const std::optional<std::vector<std::string>>& items,
                             std::span<const size_t> taken, std::span<const Move> moves,
                             size_t top) {
  const auto is_above_top = [&](size_t n) {
    return top != StepTree::kRoot && n <= top && top < tree.end(n);
  };
  const size_t count = tree.records().size();
  // A node stays where something below it does, or nothing ever was.
  std::vector<bool> stays(count);
  const auto is_kept = [&](size_t n) {
    return !items || std::ranges::find(*items, tree.PathOf(n).front().name) != items->end();
  };
  for (size_t n = 0; n < count; ++n) {
    stays[n] = is_kept(n) && (!tree.IsNode(n) || tree.end(n) == n + 1 || is_above_top(n));
  }
  for (const size_t n : taken) stays[n] = false;
  Places places;
  for (size_t n = count; n-- > 0;) {
    if (!stays[n]) continue;
    if (tree.parent(n) != StepTree::kRoot) stays[tree.parent(n)] = true;
    places.emplace(tree.records()[n].key, std::pair(WithoutChunks(tree.records()[n]), n));
  }
  const std::string start = top == StepTree::kRoot ? "" : tree.records()[top].key;
  for (const Move& move : moves) {
    STEPWELL_ASSIGN_OR_RETURN(LeafRecord record, RecordOf(tree, move));
    STEPWELL_RETURN_IF_ERROR(Put(std::move(record), move.origin, start, move.names, &places));
  }
  Rearranged made;
  for (auto& [key, place] : places) {
    made.records.push_back(std::move(place.first));
    made.origins.push_back(place.second);
  }
  return made;
}

}  // namespace stepwell::db
