// SPDX-License-Identifier: Apache-2.0
#include "api/cpp/leaf_table.h"

#include <utility>

#include "db/read/step_tree.h"
#include "format/key.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

bool IsNode(const format::LeafRecord& record) { return record.kind == format::LeafKind::kNode; }

}  // namespace

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

Result<std::vector<const format::LeafRecord*>> LeafTable::Records(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const db::PathSelection selection, Resolve(path));
  std::vector<const format::LeafRecord*> records;
  if (selection.is_glob) {
    for (const size_t number : selection.numbers) records.push_back(&records_[number]);
    return records;
  }
  const size_t place = selection.numbers.front();
  for (size_t n = place == db::StepTree::kRoot ? 0 : place; n < tree_.end(place); ++n) {
    records.push_back(&records_[n]);
  }
  return records;
}

Result<std::vector<const format::LeafRecord*>> LeafTable::Leaves(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(auto leaves, Records(path));
  std::erase_if(leaves, [](const auto* record) { return IsNode(*record); });
  return leaves;
}

Result<const format::LeafRecord*> LeafTable::FindLeaf(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const size_t place, FindPlace(path));
  if (place == db::StepTree::kRoot || IsNode(records_[place])) {
    STEPWELL_ASSIGN_OR_RETURN(const auto leaves, Leaves(path));
    return InvalidArgumentError(StrCat("step ", step_, ": \"", path.ToText(), "\" is a subtree of ",
                                       Counted(leaves.size(), "leaf", "leaves"), ", not a leaf"));
  }
  return &records_[place];
}

Result<std::string> LeafTable::FindKey(const Path& path) const {
  STEPWELL_ASSIGN_OR_RETURN(const size_t place, FindPlace(path));
  return place == db::StepTree::kRoot ? std::string() : records_[place].key;
}

}  // namespace stepwell
