// SPDX-License-Identifier: Apache-2.0
// The records of one step, and which of them a path means.
#pragma once

#include <string>
#include <vector>

#include <stepwell/store.h>

#include "db/read/step_tree.h"
#include "format/records.h"

namespace stepwell {

// Immutable once made.
class LeafTable {
 public:
  LeafTable(LeafTable&&) = default;
  LeafTable& operator=(LeafTable&&) = default;

  // `records` in key order, as StepReader::Leaves gives them.
  static Result<LeafTable> Make(const format::StepRecord& step,
                                std::vector<format::LeafRecord> records);

  // Returns the entry at a path and all below it, in key order; for a glob, the leaves that it
  // matches.
  Result<std::vector<const format::LeafRecord*>> Records(const Path& path) const;
  // The arrays and values among them.
  Result<std::vector<const format::LeafRecord*>> Leaves(const Path& path) const;
  // The one array or value at `path`.
  Result<const format::LeafRecord*> FindLeaf(const Path& path) const;
  // The key of the node or leaf at `path`, with which the keys of all below it begin; "" for the
  // whole step.
  Result<std::string> FindKey(const Path& path) const;

  const db::StepTree& tree() const { return tree_; }

 private:
  LeafTable() = default;
  Result<db::PathSelection> Resolve(const Path& path) const;
  Result<size_t> FindPlace(const Path& path) const;

  uint64_t step_ = 0;
  std::vector<format::LeafRecord> records_;
  db::StepTree tree_;  // of records_
};

}  // namespace stepwell
