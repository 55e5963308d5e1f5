// SPDX-License-Identifier: Apache-2.0
// The records of a step as a tree, and which of them a path names (format/path.h); and those that
// a path can lead to, without the rest of the step.
//
// A path starts in the step, whose children are the items. In a step with `state` as its only item
// it starts inside that item, and may also begin with the item's name.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/store.h"
#include "format/path.h"
#include "format/records.h"

namespace stepwell::db {

// The result of resolving a path: for a glob, leaves in key order; for any other path, one place.
struct PathSelection {
  bool is_glob = false;
  std::vector<size_t> numbers;
};

// Immutable. Records are named by their number in key order, in which a node comes before what is
// below it.
class StepTree {
 public:
  // The step itself, above its items.
  static constexpr size_t kRoot = static_cast<size_t>(-1);

  // `records`: in key order, as StepReader::Leaves and FindAlong give them; they
  // outlive the tree. `only_state`: whether `state` is the only item of the step. `is_part`: they
  // come from FindAlong; then paths match by components alone.
  static Result<StepTree> Make(uint64_t step, std::span<const format::LeafRecord> records,
                               bool only_state, bool is_part = false);

  std::span<const format::LeafRecord> records() const { return records_; }
  bool only_state() const { return only_state_; }
  size_t parent(size_t number) const { return places_[number].parent; }
  // The last of its path; of an item's root, its name as a key.
  const format::PathComponent& component(size_t number) const { return places_[number].component; }
  // From `above` (not included) down to `number`.
  format::KeyPath PathOf(size_t number, size_t above = kRoot) const;
  // One past the last record at or below `number`.
  size_t end(size_t number) const { return number == kRoot ? places_.size() : places_[number].end; }
  // Returns the record that the empty path names.
  size_t top() const;
  // The root of an item. kNotFound names the items.
  Result<size_t> Item(const std::string& name) const;

  // Resolves `path` from `below` on (a record or kRoot; none: as explained above). kNotFound names
  // the nearest places. kInvalidArgument: the path is not a glob and matches several places.
  Result<PathSelection> Resolve(const format::PathPattern& path,
                                std::optional<size_t> below = {}) const;
  bool IsNode(size_t number) const;
  // In key order; none of a leaf.
  std::vector<size_t> Children(size_t number) const;
  std::optional<size_t> FindChild(size_t number, const format::PathComponent& component) const;
  // Children that `component` can mean: for a literal with a type the one of that very type, else
  // those spelled alike, of which a number picks the int key or index, a name the key or attribute.
  std::vector<size_t> ChildrenLike(size_t number, const format::PatternComponent& component) const;

  // The path from `above` to a record; from the step, its item first.
  std::string Text(size_t number, size_t above = kRoot) const;
  // Returns the shortest path that Resolve takes.
  std::string ShortText(size_t number) const;
  // The child of `number` whose spelling is nearest to `name`, if half of that is in it; those
  // spelled as one of `taken` do not count.
  std::optional<size_t> NearestChild(size_t number, const std::string& name,
                                     const std::set<std::string>& taken) const;

 private:
  struct Place {
    size_t parent = kRoot;
    size_t end = 0;
    format::PathComponent component;
  };

  std::string_view KeyOf(size_t number) const;
  std::vector<size_t> Match(size_t start, const format::PathPattern& path) const;
  std::vector<size_t> MatchPlainText(size_t start, std::string_view wanted) const;
  Result<PathSelection> ResolveGlob(const std::vector<size_t>& starts,
                                    const format::PathPattern& path) const;
  Status NothingAt(const format::PathPattern& path, size_t start) const;
  Status Ambiguous(const format::PathPattern& path, const std::vector<size_t>& numbers) const;

  uint64_t step_ = 0;
  bool only_state_ = false;
  bool is_part_ = false;
  std::span<const format::LeafRecord> records_;
  std::vector<Place> places_;  // by record
};

// Returns true if paths may leave out the item's name.
bool IsOnlyState(const format::StepRecord& step);

// The shortest text of a path whose first component is the item's name, as StepTree::ShortText.
std::string ShortPathText(const format::KeyPath& path, bool only_state);

// The records on `path` and at its end, in key order; for a glob, or with `below`, also everything
// under them. It reads no other records. `above`: where the path starts, the item first; {}: where
// StepTree::Resolve starts. Empty if no record matches, or if the path starts with a wildcard.
Result<std::vector<format::LeafRecord>> FindAlong(StepReader& reader,
                                                  const format::PathPattern& path,
                                                  const format::KeyPath& above, bool below);

}  // namespace stepwell::db
