// SPDX-License-Identifier: Apache-2.0
#include "db/read/step_tree.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "io/bytes.h"

namespace stepwell::db {
namespace {

using format::LeafKind;
using format::LeafRecord;
using format::PathPattern;
using format::PatternComponent;
using Kind = PatternComponent::Kind;

constexpr size_t kNearestMax = 3;
constexpr size_t kListedMax = 8;
constexpr size_t kComparedMax = 5000;       // places that an error compares with a path
constexpr size_t kComparedBytesMax = 1000;  // of each

// Insertions, deletions and substitutions of bytes between two texts.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string_view LastComponent(std::string_view text) { return text.substr(text.rfind('/') + 1); }

std::string Join(const std::vector<std::string>& texts, std::string_view separator) {
  std::string joined;
  for (const std::string& text : texts) joined += StrCat(joined.empty() ? "" : separator, text);
  return joined;
}

// At most kNearestMax of the texts: those that more than half of `wanted` is in, the siblings of
// what is missing first, the nearest first; else those with the same last component.
std::vector<std::string> Nearest(const std::vector<std::pair<std::string, bool>>& candidates,
                                 const std::string& wanted) {
  using Ranked = std::pair<std::pair<bool, size_t>, std::string>;
  std::vector<Ranked> near;
  for (const auto& [text, is_sibling] : candidates) {
    const size_t longest = std::max(text.size(), wanted.size());
    if (longest > kComparedBytesMax) continue;
    const size_t edits = EditDistance(text, wanted);
    if (2 * edits < longest) near.push_back({{!is_sibling, edits}, text});
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> nearest;
  for (const Ranked& ranked : near) nearest.push_back(ranked.second);
  for (const auto& [text, is_sibling] : candidates) {
    if (near.empty() && LastComponent(text) == LastComponent(wanted)) nearest.push_back(text);
  }
  nearest.resize(std::min(nearest.size(), kNearestMax));
  return nearest;
}

std::string_view TypeName(format::PathComponent::Type type) {
  switch (type) {
    case format::PathComponent::Type::kIntKey:
      return "int key";
    case format::PathComponent::Type::kIndex:
      return "index";
    case format::PathComponent::Type::kKey:
      return "key";
    case format::PathComponent::Type::kAttribute:
      return "attribute";
    case format::PathComponent::Type::kLiteral:
      return "literal key";
  }
  return "component";
}

using FoundRecords = std::map<std::string, LeafRecord>;
using Levels = std::vector<format::KeyPath>;  // of a path's components, each with all its meanings

// Finds `key`; whether it is there.
Result<bool> Take(StepReader& reader, const std::string& key, FoundRecords* found) {
  if (found->contains(key)) return true;
  STEPWELL_ASSIGN_OR_RETURN(std::optional<LeafRecord> record, reader.Find(key));
  if (!record) return false;
  found->emplace(key, *std::move(record));
  return true;
}

// Returns true if the container names its children by components of this type. A container whose
// type has a name is a class of the user's, which may name them as it likes.
bool IsUsual(const LeafRecord& node, format::PathComponent::Type type) {
  if (!node.type_name.empty()) return false;
  switch (node.container) {
    case format::ContainerKind::kDict:
      return type == format::PathComponent::Type::kKey ||
             type == format::PathComponent::Type::kIntKey ||
             type == format::PathComponent::Type::kLiteral;
    case format::ContainerKind::kList:
    case format::ContainerKind::kTuple:
      return type == format::PathComponent::Type::kIndex;
    default:
      return false;
  }
}

// Finds the children of `key` that `level` means. Each look reads a page of records; the looks for
// children that the container cannot have beside what was found are left out.
Status FollowLevel(StepReader& reader, const std::string& key, const format::KeyPath& level,
                   FoundRecords* found, std::vector<std::string>* next) {
  const LeafRecord& node = found->at(key);
  if (node.kind != LeafKind::kNode) return OkStatus();
  const size_t before = next->size();
  for (const bool usual : {true, false}) {
    if (next->size() > before) break;
    for (const format::PathComponent& component : level) {
      if (IsUsual(node, component.type) != usual) continue;
      STEPWELL_ASSIGN_OR_RETURN(const std::string last, format::EncodePath({component}));
      STEPWELL_ASSIGN_OR_RETURN(const bool there, Take(reader, key + last, found));
      if (there) next->push_back(key + last);
    }
  }
  return OkStatus();
}

Status Follow(StepReader& reader, const std::string& item, std::span<const format::KeyPath> levels,
              bool below, FoundRecords* found) {
  std::vector<std::string> keys = {format::EncodeItem(item)};
  STEPWELL_ASSIGN_OR_RETURN(const bool root, Take(reader, keys.front(), found));
  if (!root) return OkStatus();
  for (const format::KeyPath& level : levels) {
    std::vector<std::string> next;
    for (const std::string& key : keys) {
      STEPWELL_RETURN_IF_ERROR(FollowLevel(reader, key, level, found, &next));
    }
    keys = std::move(next);
  }
  if (!below) return OkStatus();
  for (const std::string& key : keys) {
    if (found->at(key).kind != LeafKind::kNode) continue;
    STEPWELL_ASSIGN_OR_RETURN(std::vector<LeafRecord> records, reader.Leaves(key));
    for (LeafRecord& record : records) {
      found->insert_or_assign(found->end(), record.key, std::move(record));
    }
  }
  return OkStatus();
}

}  // namespace

Result<StepTree> StepTree::Make(uint64_t step, std::span<const LeafRecord> records, bool only_state,
                                bool is_part) {
  StepTree tree;
  tree.step_ = step;
  tree.only_state_ = only_state;
  tree.is_part_ = is_part;
  tree.records_ = records;
  tree.places_.resize(records.size());
  std::vector<size_t> open;  // the records that hold the current one, outermost first
  const auto close = [&](size_t end) {
    tree.places_[open.back()].end = end;
    open.pop_back();
  };
  for (size_t number = 0; number < records.size(); ++number) {
    const std::string& key = records[number].key;
    // The key of a record below another begins with that one's key.
    while (!open.empty() && !key.starts_with(records[open.back()].key)) close(number);
    Place& place = tree.places_[number];
    if (open.empty()) {
      STEPWELL_ASSIGN_OR_RETURN(format::LeafKey decoded, format::DecodeLeafKey(key));
      place.component = decoded.path.empty() ? format::PathComponent::Key(std::move(decoded.item))
                                             : std::move(decoded.path.back());
    } else {
      place.parent = open.back();
      STEPWELL_ASSIGN_OR_RETURN(
          format::KeyPath path,
          format::DecodePath(std::string_view(key).substr(records[place.parent].key.size())));
      if (path.empty()) return DataLossError("two records of a step have the same key");
      place.component = std::move(path.back());
    }
    open.push_back(number);
  }
  while (!open.empty()) close(records.size());
  return tree;
}

size_t StepTree::top() const {
  if (!only_state_) return kRoot;
  return FindChild(kRoot, format::PathComponent::Key("state")).value_or(kRoot);
}

bool StepTree::IsNode(size_t number) const {
  return number == kRoot || records_[number].kind == LeafKind::kNode;
}

std::string_view StepTree::KeyOf(size_t number) const {
  return number == kRoot ? std::string_view() : std::string_view(records_[number].key);
}

format::KeyPath StepTree::PathOf(size_t number, size_t above) const {
  format::KeyPath path;
  for (; number != above && number != kRoot; number = places_[number].parent) {
    path.push_back(places_[number].component);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::string StepTree::Text(size_t number, size_t above) const {
  return PathToText(PathOf(number, above));
}

std::string StepTree::ShortText(size_t number) const {
  return ShortPathText(PathOf(number), only_state_);
}

std::optional<size_t> StepTree::NearestChild(size_t number, const std::string& name,
                                             const std::set<std::string>& taken) const {
  std::optional<size_t> nearest;
  size_t fewest = 0;
  for (const size_t child : Children(number)) {
    const std::string spelling = format::Spelling(places_[child].component);
    const size_t longest = std::max(spelling.size(), name.size());
    if (taken.contains(spelling) || longest > kComparedBytesMax) continue;
    const size_t edits = EditDistance(spelling, name);
    if (2 * edits > longest || (nearest && fewest <= edits)) continue;
    nearest = child;
    fewest = edits;
  }
  return nearest;
}

std::vector<size_t> StepTree::Children(size_t number) const {
  std::vector<size_t> children;
  const size_t stop = end(number);
  for (size_t child = number == kRoot ? 0 : number + 1; child < stop; child = end(child)) {
    children.push_back(child);
  }
  return children;
}

std::optional<size_t> StepTree::FindChild(size_t number,
                                          const format::PathComponent& component) const {
  std::string key(KeyOf(number));
  if (number == kRoot) {
    key = format::EncodeItem(component.name);
  } else {
    const Result<std::string> last = format::EncodePath({component});
    if (!last.ok()) return std::nullopt;
    key += *last;
  }
  const auto found = std::lower_bound(
      records_.begin(), records_.end(), key,
      [](const LeafRecord& record, const std::string& wanted) { return record.key < wanted; });
  if (found == records_.end() || found->key != key) return std::nullopt;
  return static_cast<size_t>(found - records_.begin());
}

std::vector<size_t> StepTree::ChildrenLike(size_t number, const PatternComponent& component) const {
  std::vector<size_t> alike;
  if (component.kind != Kind::kLiteral) {
    for (const size_t child : Children(number)) {
      if (component.Matches(format::Spelling(places_[child].component))) alike.push_back(child);
    }
    return alike;
  }
  if (number == kRoot) {
    if (const auto item = FindChild(kRoot, format::PathComponent::Key(component.text))) {
      alike.push_back(*item);
    }
    return alike;
  }
  if (component.typed) {
    if (const auto exact = FindChild(number, *component.typed)) return {*exact};
  }
  for (const format::PathComponent& meaning : format::ComponentsSpelled(component.text)) {
    if (const auto child = FindChild(number, meaning)) alike.push_back(*child);
  }
  if (component.typed && alike.size() > 1) {
    std::vector<size_t> same;
    for (const size_t child : alike) {
      if (format::IsNumber(places_[child].component.type) ==
          format::IsNumber(component.typed->type))
        same.push_back(child);
    }
    if (same.size() == 1) return same;
  }
  return alike;
}

// Records that the path names, in key order.
std::vector<size_t> StepTree::Match(size_t start, const PathPattern& path) const {
  const std::vector<PatternComponent>& components = path.components();
  std::set<size_t> found;
  using State = std::pair<size_t, size_t>;  // a record, and how many components led to it
  std::vector<State> todo = {{start, 0}};
  std::set<State> seen(todo.begin(), todo.end());
  while (!todo.empty()) {
    const auto [number, depth] = todo.back();
    todo.pop_back();
    if (depth == components.size()) {
      found.insert(number);
      continue;
    }
    const auto add = [&](size_t next, size_t next_depth) {
      if (seen.insert({next, next_depth}).second) todo.emplace_back(next, next_depth);
    };
    if (components[depth].kind == Kind::kAnyDepth) {
      add(number, depth + 1);
      for (const size_t child : Children(number)) add(child, depth);
    } else {
      for (const size_t child : ChildrenLike(number, components[depth])) add(child, depth + 1);
    }
  }
  return {found.begin(), found.end()};
}

// Places whose spellings, joined with "/" and without a backslash, are the text: keys with a "/".
std::vector<size_t> StepTree::MatchPlainText(size_t start, std::string_view wanted) const {
  std::vector<size_t> found;
  std::vector<std::pair<size_t, size_t>> todo = {{start, 0}};  // a record, and the bytes before it
  while (!todo.empty()) {
    const auto [number, at] = todo.back();
    todo.pop_back();
    for (const size_t child : Children(number)) {
      const std::string spelling = format::Spelling(places_[child].component);
      if (!wanted.substr(at).starts_with(spelling)) continue;
      const size_t next = at + spelling.size();
      if (next == wanted.size()) found.push_back(child);
      if (next < wanted.size() && wanted[next] == '/') todo.emplace_back(child, next + 1);
    }
  }
  return found;
}

Result<size_t> StepTree::Item(const std::string& name) const {
  if (const auto item = FindChild(kRoot, format::PathComponent::Key(name))) return *item;
  std::vector<std::string> names;
  for (const size_t item : Children(kRoot)) names.push_back(Text(item));
  return NotFoundError(
      StrCat("step ", step_, " has no item \"", name, "\"; there are: ", Join(names, ", ")));
}

Result<PathSelection> StepTree::ResolveGlob(const std::vector<size_t>& starts,
                                            const PathPattern& path) const {
  // Inside the item first; the item's own name counts only where that finds nothing.
  PathSelection selection{.is_glob = true, .numbers = {}};
  for (const size_t start : starts) {
    const std::vector<size_t> matches = Match(start, path);
    if (matches.empty()) continue;
    std::set<size_t> leaves;
    for (const size_t match : matches) {
      for (size_t n = match == kRoot ? 0 : match; n < end(match); ++n) {
        if (!IsNode(n)) leaves.insert(leaves.end(), n);
      }
    }
    selection.numbers.assign(leaves.begin(), leaves.end());
    break;
  }
  if (selection.numbers.empty()) return NothingAt(path, starts.front());
  return selection;
}

Result<PathSelection> StepTree::Resolve(const PathPattern& path,
                                        std::optional<size_t> below) const {
  std::vector<size_t> starts = {below.value_or(top())};
  if (!below && top() != kRoot) starts.push_back(kRoot);
  if (path.empty()) return PathSelection{.numbers = {starts.front()}};
  if (path.is_glob()) return ResolveGlob(starts, path);
  std::set<size_t> numbers;
  for (const size_t start : starts) {
    const std::vector<size_t> matches = Match(start, path);
    numbers.insert(matches.begin(), matches.end());
  }
  std::string_view text = path.text();
  while (numbers.empty() && !is_part_ && path.is_plain_text()) {
    for (const size_t start : starts) {
      const std::vector<size_t> matches = MatchPlainText(start, text);
      numbers.insert(matches.begin(), matches.end());
    }
    // A "/" at the end, as shells append one, counts only where something is called so.
    if (text != path.text() || !text.ends_with('/')) break;
    text.remove_suffix(1);
  }
  if (numbers.empty()) return NothingAt(path, starts.front());
  const std::vector<size_t> found(numbers.begin(), numbers.end());
  if (found.size() > 1) return Ambiguous(path, found);
  return PathSelection{.numbers = found};
}

Status StepTree::NothingAt(const PathPattern& path, size_t start) const {
  // Follows the path as far as it leads. The error then names the children there.
  size_t deepest = start;
  for (const PatternComponent& component : path.components()) {
    if (component.kind != Kind::kLiteral) break;
    const std::vector<size_t> next = ChildrenLike(deepest, component);
    if (next.size() != 1) break;
    deepest = next.front();
  }
  const std::vector<size_t> siblings = Children(deepest);
  const std::string head = StrCat("step ", step_, " has nothing at \"", path.text(), "\"; ");
  if (siblings.empty()) {
    return NotFoundError(head + (deepest == start
                                     ? "there is nothing below"
                                     : StrCat(Text(deepest, start), " has nothing below it")));
  }
  std::vector<std::pair<std::string, bool>> candidates;
  for (const size_t child : siblings) {
    if (candidates.size() < kComparedMax) candidates.emplace_back(Text(child, start), true);
  }
  for (size_t n = start == kRoot ? 0 : start + 1; n < end(start); ++n) {
    if (candidates.size() == kComparedMax) break;
    const bool on_the_way = n <= deepest && deepest < end(n);
    if (places_[n].parent != deepest && !on_the_way) candidates.emplace_back(Text(n, start), false);
  }
  std::vector<std::string> names = Nearest(candidates, path.text());
  if (!names.empty()) return NotFoundError(StrCat(head, "nearest: ", Join(names, ", ")));
  for (size_t i = 0; i < std::min(siblings.size(), kListedMax); ++i) {
    names.push_back(Text(siblings[i], start));
  }
  if (siblings.size() > kListedMax) names.emplace_back("…");
  return NotFoundError(StrCat(head, "there are: ", Join(names, ", ")));
}

Status StepTree::Ambiguous(const PathPattern& path, const std::vector<size_t>& numbers) const {
  std::vector<std::string> meanings;
  for (const size_t number : numbers) {
    std::string types;
    for (size_t n = number; n != kRoot; n = places_[n].parent) {
      const bool is_item = places_[n].parent == kRoot;
      const std::string_view type = is_item ? "item" : TypeName(places_[n].component.type);
      types = types.empty() ? std::string(type) : StrCat(type, "/", types);
    }
    meanings.push_back(StrCat(Text(number), " (", types, ")"));
  }
  return InvalidArgumentError(
      StrCat("step ", step_, ": path \"", path.text(), "\" is ambiguous: ", Join(meanings, " or "),
             "; give the path as components with types (in Python a tuple: int for int keys and "
             "indices, str for names), or put the item's name in front"));
}

std::string ShortPathText(const format::KeyPath& path, bool only_state) {
  if (!only_state || path.empty()) return PathToText(path);
  const std::string inside = PathToText(format::KeyPath(path.begin() + 1, path.end()));
  // A path that begins like the item's name needs the item's name in front.
  const bool is_clear =
      path.size() == 1 || (!inside.empty() && format::Spelling(path[1]) != "state");
  return is_clear ? inside : PathToText(path);
}

bool IsOnlyState(const format::StepRecord& step) {
  return step.items.size() == 1 && step.items[0].name == "state";
}

Result<std::vector<LeafRecord>> FindAlong(StepReader& reader, const PathPattern& path,
                                          const format::KeyPath& above, bool below) {
  Levels levels;
  for (size_t i = 1; i < above.size(); ++i) levels.push_back({above[i]});
  for (const PatternComponent& component : path.components()) {
    if (component.kind != PatternComponent::Kind::kLiteral) break;
    levels.push_back(format::ComponentsSpelled(component.text));
  }
  below |= path.is_glob();
  const std::span<const format::KeyPath> all = levels;
  FoundRecords found;
  if (!above.empty()) {
    STEPWELL_RETURN_IF_ERROR(Follow(reader, above.front().name, all, below, &found));
  } else {
    const bool only_state = IsOnlyState(reader.step());
    if (levels.empty() && (path.is_glob() || !only_state)) return std::vector<LeafRecord>();
    if (only_state) STEPWELL_RETURN_IF_ERROR(Follow(reader, "state", all, below, &found));
    const std::string* first = levels.empty() ? nullptr : &levels.front().front().name;
    for (const format::ItemRecord& item : reader.step().items) {
      if (first == nullptr || item.name != *first) continue;
      STEPWELL_RETURN_IF_ERROR(Follow(reader, item.name, all.subspan(1), below, &found));
    }
  }
  std::vector<LeafRecord> records;
  records.reserve(found.size());
  for (auto& [key, record] : found) records.push_back(std::move(record));
  return records;
}

}  // namespace stepwell::db
