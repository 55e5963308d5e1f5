// SPDX-License-Identifier: Apache-2.0
// A step's records in another arrangement: some items only, or leaves at other places. For loading
// into a tree that differs from the stored one.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/read/step_tree.h"

namespace stepwell::db {

struct Rearranged {
  std::vector<format::LeafRecord> records;  // in key order, without their chunks
  std::vector<size_t> origins;  // by record, its number in the tree; kRoot: a node that is new
};

// From paths to paths, both from the place `top` on. Of several that match a leaf the first counts;
// a node moves with all below it. Wildcards stand for the same text on both sides, in order.
using Renames = std::vector<std::pair<std::string, std::string>>;

// `items`: only these; none: all. kInvalidArgument: malformed paths, other wildcards on one side
// than on the other, a place that is taken. kNotFound: nothing is at a path.
Result<Rearranged> Rearrange(const StepTree& tree,
                             const std::optional<std::vector<std::string>>& items,
                             const Renames& renames, size_t top);

}  // namespace stepwell::db
