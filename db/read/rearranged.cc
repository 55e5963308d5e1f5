// SPDX-License-Identifier: Apache-2.0
#include "db/read/rearranged.h"

#include <algorithm>
#include <map>
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

  // Returns the new names of a leaf; none: it stays.
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
  // Returns how many names of those from `from` on, the names before counted, match the pattern's
  // components from `at` on. `taken` gets the text of each wildcard. ** matches as few names as it
  // can.
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
  const auto is_above_top = [&](size_t n) {
    return top != StepTree::kRoot && n <= top && top < tree.end(n);
  };
  const size_t count = tree.records().size();
  std::vector<bool> stays(
      count);  // a node stays where something below it does, or nothing ever was
  std::vector<std::pair<size_t, Names>> moves;
  const auto is_kept = [&](size_t n) {
    return !items || std::ranges::find(*items, tree.PathOf(n).front().name) != items->end();
  };
  for (size_t n = 0; n < count; ++n) {
    stays[n] = is_kept(n) && (!tree.IsNode(n) || tree.end(n) == n + 1 || is_above_top(n));
    if (tree.IsNode(n) || !stays[n] ||
        (top != StepTree::kRoot && (n < top || n >= tree.end(top)))) {
      continue;
    }
    const Names names = format::Spellings(tree.PathOf(n, top));
    for (Rule& rule : rules) {
      auto moved = rule.Apply(names);
      if (!moved) continue;
      moves.emplace_back(n, *std::move(moved));
      stays[n] = false;
      break;
    }
  }
  for (const Rule& rule : rules) {
    if (!rule.used()) return Unused(tree, rule, top);
  }
  Places places;
  for (size_t n = count; n-- > 0;) {
    if (!stays[n]) continue;
    if (tree.parent(n) != StepTree::kRoot) stays[tree.parent(n)] = true;
    places.emplace(tree.records()[n].key, std::pair(WithoutChunks(tree.records()[n]), n));
  }
  const std::string start = top == StepTree::kRoot ? "" : tree.records()[top].key;
  for (const auto& [leaf, path] : moves) {
    STEPWELL_RETURN_IF_ERROR(Put(WithoutChunks(tree.records()[leaf]), leaf, start, path, &places));
  }
  Rearranged made;
  for (auto& [key, place] : places) {
    made.records.push_back(std::move(place.first));
    made.origins.push_back(place.second);
  }
  return made;
}

}  // namespace stepwell::db
