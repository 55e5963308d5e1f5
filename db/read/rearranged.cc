// SPDX-License-Identifier: Apache-2.0
#include "db/read/rearranged.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "io/bytes.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;
using format::PathComponent;
using format::PathPattern;
using format::PatternComponent;
using Kind = PatternComponent::Kind;
using Names = std::vector<std::string>;

std::string Wildcards(const PathPattern& pattern) {
  std::string found;
  for (const PatternComponent& component : pattern.components()) {
    if (component.kind == Kind::kAnyDepth) found += "/";
    for (size_t i = 0; i < component.wild.size() && component.kind == Kind::kGlob; ++i) {
      if (component.wild[i]) found += component.text[i];
    }
  }
  return found;
}

class Rule {
 public:
  static Result<Rule> Make(const std::string& from, const std::string& to) {
    Rule rule;
    STEPWELL_ASSIGN_OR_RETURN(rule.from_, PathPattern::Parse(from));
    STEPWELL_ASSIGN_OR_RETURN(rule.to_, PathPattern::Parse(to));
    if (Wildcards(rule.from_) == Wildcards(rule.to_)) return rule;
    return InvalidArgumentError(
        StrCat("rename: '", from, "' and '", to, "' need the same wildcards in the same order"));
  }

  bool used() const { return used_; }
  const PathPattern& from() const { return from_; }

  // Where a leaf goes; none: it stays.
  std::optional<Names> Apply(const Names& names) {
    std::vector<Names> taken;
    const std::optional<size_t> below = Match(names, 0, 0, &taken);
    if (!below) return std::nullopt;
    used_ = true;
    Names path;
    auto next = taken.begin();
    for (const PatternComponent& component : to_.components()) {
      if (component.kind == Kind::kAnyDepth) {
        path.insert(path.end(), next->begin(), next->end());
        ++next;
        continue;
      }
      std::string& name = path.emplace_back();
      for (size_t i = 0; i < component.text.size(); ++i) {
        const bool is_wild = component.kind == Kind::kGlob && component.wild[i];
        name += is_wild ? (next++)->front() : std::string(1, component.text[i]);
      }
    }
    path.insert(path.end(), names.begin() + static_cast<ptrdiff_t>(*below), names.end());
    return path;
  }

 private:
  // How many names the pattern's components from `at` on take of those from `from` on, the names
  // before counted; `taken`: what wildcards stand for, ** for as few names as it can.
  std::optional<size_t> Match(const Names& names, size_t at, size_t from,
                              std::vector<Names>* taken) const {
    if (at == from_.components().size()) return from;
    const PatternComponent& component = from_.components()[at];
    const size_t known = taken->size();
    const size_t last = component.kind == Kind::kAnyDepth ? names.size() : from + 1;
    for (size_t end = component.kind == Kind::kAnyDepth ? from : from + 1;
         end <= last && end <= names.size(); ++end) {
      if (component.kind == Kind::kAnyDepth) {
        taken->emplace_back(names.begin() + static_cast<ptrdiff_t>(from),
                            names.begin() + static_cast<ptrdiff_t>(end));
      } else {
        const auto found = component.Capture(names[from]);
        if (!found) return std::nullopt;
        for (const std::string& text : *found) taken->push_back({text});
      }
      if (const auto below = Match(names, at + 1, end, taken)) return below;
      taken->resize(known);
    }
    return std::nullopt;
  }

  PathPattern from_, to_;
  bool used_ = false;
};

// The tree with places that change; numbers go on behind those of the records.
class Arrangement {
 public:
  explicit Arrangement(const StepTree& tree) : tree_(tree), root_(tree.records().size()) {
    places_.resize(root_ + 1);
    for (size_t number = 0; number < root_; ++number) {
      const size_t parent = tree.parent(number);
      places_[number].component = tree.component(number);
      places_[number].parent = parent == StepTree::kRoot ? root_ : parent;
      Add(number);
    }
  }

  size_t At(size_t number) const { return number == StepTree::kRoot ? root_ : number; }

  // Takes a leaf out, and the nodes above it, below `top`, that nothing is left in.
  void Detach(size_t number, size_t top) {
    while (number != top) {
      const Place& place = places_[number];
      std::vector<size_t>& alike =
          places_[place.parent].children[format::Spelling(place.component)];
      std::erase(alike, number);
      std::map<std::string, std::vector<size_t>>& children = places_[place.parent].children;
      if (alike.empty()) children.erase(format::Spelling(place.component));
      if (!children.empty()) return;
      number = place.parent;
    }
  }

  Status Attach(size_t leaf, size_t top, const Names& path) {
    size_t parent = top;
    for (size_t i = 0; i < path.size(); ++i) {
      const bool is_last = i + 1 == path.size();
      std::vector<size_t>& alike = places_[parent].children[path[i]];
      const auto node = std::ranges::find_if(alike, [&](size_t child) { return IsNode(child); });
      if (!is_last && node != alike.end()) {
        parent = *node;
        continue;
      }
      if (!alike.empty()) {
        format::KeyPath keys;
        for (const std::string& name : path) keys.push_back(PathComponent::Key(name));
        return InvalidArgumentError(StrCat("rename: '", format::PathToText(keys),
                                           "' is the place of another leaf already"));
      }
      const size_t number = is_last ? leaf : places_.size();
      alike.push_back(number);
      if (!is_last) places_.emplace_back();
      places_[number].component = PathComponent::Key(path[i]);
      places_[number].parent = parent;
      parent = number;
    }
    return OkStatus();
  }

  Result<Rearranged> Records() const {
    std::vector<std::pair<LeafRecord, size_t>> made;
    STEPWELL_RETURN_IF_ERROR(Collect(root_, "", &made));
    std::ranges::sort(made, {},
                      [](const auto& one) -> const std::string& { return one.first.key; });
    Rearranged found;
    for (auto& [record, origin] : made) {
      found.records.push_back(std::move(record));
      found.origins.push_back(origin);
    }
    return found;
  }

 private:
  struct Place {
    PathComponent component;
    size_t parent = 0;
    std::map<std::string, std::vector<size_t>> children;  // by spelling
  };

  bool IsNode(size_t number) const { return number >= root_ || tree_.IsNode(number); }

  void Add(size_t number) {
    const Place& place = places_[number];
    places_[place.parent].children[format::Spelling(place.component)].push_back(number);
  }

  Status Collect(size_t number, const std::string& key,
                 std::vector<std::pair<LeafRecord, size_t>>* made) const {
    for (const auto& [spelling, alike] : places_[number].children) {
      for (const size_t child : alike) {
        const PathComponent& component = places_[child].component;
        LeafRecord record;
        record.kind = format::LeafKind::kNode;
        record.value_type = format::ValueType::kNone;
        record.container = format::ContainerKind::kDict;
        if (child < root_) {
          record = tree_.records()[child];
          record.chunks.clear();
        }
        record.key = number == root_ ? format::EncodeItem(component.name) : key;
        if (number != root_) {
          STEPWELL_ASSIGN_OR_RETURN(const std::string last, format::EncodePath({component}));
          record.key += last;
        }
        const std::string below = record.key;
        made->emplace_back(std::move(record), child < root_ ? child : StepTree::kRoot);
        STEPWELL_RETURN_IF_ERROR(Collect(child, below, made));
      }
    }
    return OkStatus();
  }

  const StepTree& tree_;
  const size_t root_;  // the step
  std::vector<Place> places_;
};

Status Unused(const StepTree& tree, const Rule& rule, size_t top) {
  const auto start = top == tree.top() ? std::optional<size_t>() : std::optional<size_t>(top);
  const Status nothing = tree.Resolve(rule.from(), start).status();
  if (nothing.code() == StatusCode::kNotFound) {  // it names what is near
    return NotFoundError(StrCat("rename: ", nothing.message()));
  }
  return InvalidArgumentError(StrCat("rename: nothing that is loaded is left at '",
                                     rule.from().text(),
                                     "'; of several rules the first that matches applies"));
}

}  // namespace

Result<Rearranged> Rearrange(const StepTree& tree,
                             const std::optional<std::vector<std::string>>& items,
                             const Renames& renames, size_t top) {
  std::vector<Rule> rules;
  for (const auto& [from, to] : renames) {
    STEPWELL_ASSIGN_OR_RETURN(Rule rule, Rule::Make(from, to));
    rules.push_back(std::move(rule));
  }
  Arrangement arrangement(tree);
  const size_t place = arrangement.At(top);
  if (items) {
    const std::set<std::string> kept(items->begin(), items->end());
    for (const size_t item : tree.Children(StepTree::kRoot)) {
      if (!kept.contains(tree.component(item).name)) {
        arrangement.Detach(item, arrangement.At(StepTree::kRoot));
      }
    }
  }
  std::vector<std::pair<size_t, Names>> moves;
  for (size_t n = top == StepTree::kRoot ? 0 : top; n < tree.end(top); ++n) {
    if (tree.IsNode(n)) continue;
    const format::KeyPath whole = tree.PathOf(n);
    if (items && std::ranges::find(*items, whole.front().name) == items->end()) continue;
    const Names names = format::Spellings(tree.PathOf(n, top));
    for (Rule& rule : rules) {
      if (auto moved = rule.Apply(names)) {
        moves.emplace_back(n, *std::move(moved));
        break;
      }
    }
  }
  for (const Rule& rule : rules) {
    if (!rule.used()) return Unused(tree, rule, top);
  }
  for (const auto& move : moves) arrangement.Detach(move.first, place);
  for (const auto& [leaf, path] : moves) {
    STEPWELL_RETURN_IF_ERROR(arrangement.Attach(leaf, place, path));
  }
  return arrangement.Records();
}

}  // namespace stepwell::db
