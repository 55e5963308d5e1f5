// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/leaf_table.h"

#include <algorithm>
#include <set>

#include "format/key.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

constexpr size_t kNearestMax = 8;

bool IsNode(const format::LeafRecord& record) { return record.kind == format::LeafKind::kNode; }

std::string ItemText(const std::string& item) { return PathToText({PathComponent::Key(item)}); }

std::string Join(const std::vector<std::string>& texts, size_t count) {
  std::string joined;
  for (size_t i = 0; i < count; ++i) joined += StrCat(i == 0 ? "" : "/", texts[i]);
  return joined;
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

Result<LeafTable> LeafTable::Make(const StepInfo& info, std::vector<format::LeafRecord> records) {
  LeafTable table;
  table.step_ = info.step;
  table.only_state_ = info.items.size() == 1 && info.items[0].name == "state";
  table.records_ = std::move(records);
  STEPWELL_RETURN_IF_ERROR(table.Index());
  return table;
}

// Records are in key order, so what lies below one place is a run. Walks them with the places that
// hold the current one, outermost (the item) first.
Status LeafTable::Index() {
  struct Place {
    PathComponent component;
    std::string text;  // from the item on
    size_t begin;
  };
  std::vector<Place> open;
  const auto close_to = [&](size_t depth, size_t end) {
    for (; open.size() > depth; open.pop_back()) {
      ranges_[open.back().text].push_back({open.back().begin, end});
    }
  };
  for (size_t i = 0; i < records_.size(); ++i) {
    STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(records_[i].key));
    KeyPath places;
    places.push_back(PathComponent::Key(std::move(key.item)));
    places.insert(places.end(), std::make_move_iterator(key.path.begin()),
                  std::make_move_iterator(key.path.end()));
    size_t common = 0;
    while (common < std::min(open.size(), places.size()) &&
           open[common].component == places[common]) {
      ++common;
    }
    close_to(common, i);
    for (; common < places.size(); ++common) {
      const std::string text = PathToText({places[common]});
      open.push_back(
          {places[common], open.empty() ? text : StrCat(open.back().text, "/", text), i});
    }
  }
  close_to(0, records_.size());
  return OkStatus();
}

Result<LeafTable::Range> LeafTable::FindExact(const std::string& item, const KeyPath& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const std::string key, format::EncodeLeafKey(item, path));
  const auto below = [](const format::LeafRecord& record, const std::string& k) {
    return record.key < k;
  };
  const auto begin = std::lower_bound(records_.begin(), records_.end(), key, below);
  const auto end = std::find_if_not(
      begin, records_.end(), [&](const auto& record) { return record.key.starts_with(key); });
  return Range{static_cast<size_t>(begin - records_.begin()),
               static_cast<size_t>(end - records_.begin())};
}

Result<LeafTable::Range> LeafTable::Find(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const KeyPath components, path.Components());
  std::vector<std::string> texts;
  if (path.item()) texts.push_back(ItemText(*path.item()));
  for (const PathComponent& component : components) texts.push_back(PathToText({component}));
  if (path.exact()) {
    STEPWELL_ASSIGN_OR_RETURN(const Range range, FindExact(*path.item(), components));
    if (range.begin == range.end) return NotFound(path, texts);
    return range;
  }
  if (texts.empty()) return Range{0, records_.size()};
  const std::string joined = Join(texts, texts.size());
  auto found = ranges_.end();
  if (!path.item() && only_state_) found = ranges_.find(StrCat("state/", joined));
  if (found == ranges_.end()) found = ranges_.find(joined);
  if (found == ranges_.end()) {
    if (!path.item() && only_state_) texts.insert(texts.begin(), "state");
    return NotFound(path, texts);
  }
  if (found->second.size() > 1) {
    return InvalidArgumentError(StrCat("step ", step_, ": ", found->second.size(),
                                       " leaves or subtrees are spelled \"", path.ToText(),
                                       "\": keys, indices or attributes; give components instead"));
  }
  return found->second.front();
}

Result<const format::LeafRecord*> LeafTable::FindLeaf(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const Range range, Find(path));
  if (range.end - range.begin != 1 || IsNode(records_[range.begin])) {
    const auto leaves = std::count_if(records_.begin() + static_cast<ptrdiff_t>(range.begin),
                                      records_.begin() + static_cast<ptrdiff_t>(range.end),
                                      [](const auto& record) { return !IsNode(record); });
    return InvalidArgumentError(StrCat("step ", step_, ": \"", path.ToText(), "\" is a subtree of ",
                                       leaves, " leaves, not a leaf"));
  }
  return &records_[range.begin];
}

// Names what there is instead of the first component that is missing.
Status LeafTable::NotFound(const Path& path, const std::vector<std::string>& components) const {
  size_t depth = components.size();
  const std::vector<Range>* parents = nullptr;
  while (depth > 0 && parents == nullptr) {
    --depth;
    const auto found = ranges_.find(Join(components, depth));
    if (found != ranges_.end()) parents = &found->second;
  }
  const std::vector<Range> whole = {{0, records_.size()}};
  std::set<std::string> children;
  for (const Range& range : parents == nullptr ? whole : *parents) {
    for (size_t i = range.begin; i < range.end && children.size() <= kNearestMax; ++i) {
      const auto key = format::DecodeLeafKey(records_[i].key);
      if (!key.ok()) continue;
      if (depth == 0) {
        children.insert(ItemText(key->item));
      } else if (key->path.size() >= depth) {
        children.insert(PathToText({key->path[depth - 1]}));
      }
    }
  }
  std::string text = StrCat("step ", step_, " has nothing at \"", path.ToText(), "\"");
  const std::string where = Join(components, depth);
  if (children.empty())
    return NotFoundError(StrCat(text, "; \"", where, "\" has nothing below it"));
  text += where.empty() ? "; there are: " : StrCat("; \"", where, "\" has: ");
  size_t named = 0;
  for (const std::string& child : children) {
    if (named == kNearestMax) {
      text += ", …";
      break;
    }
    text += StrCat(named++ == 0 ? "" : ", ", child);
  }
  return NotFoundError(text);
}

}  // namespace stepwell
