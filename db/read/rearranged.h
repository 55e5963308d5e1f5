// SPDX-License-Identifier: Apache-2.0
// A step's records in another arrangement: some items only, or leaves at other places. For loading
// into a tree that differs from the stored one.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "db/read/step_tree.h"

namespace stepwell::db {

struct Rearranged {
  std::vector<format::LeafRecord> records;  // in key order, without their chunks
  std::vector<size_t> origins;  // by record, its number in the tree; kRoot: a node that is new
};

// A leaf at another place, or an array that is made of stored ones.
struct Move {
  size_t leaf = 0;                     // whose record it gets
  size_t origin = 0;                   // what Rearranged::origins say
  std::vector<std::string> names;      // of its place, from `top` on, as they are spelled
  std::optional<format::Shape> shape;  // another one than the leaf's; then also without shards
};

// `items`: only these; none: all. `taken`: leaves that are at their places no more; `moves` come in
// their stead. kInvalidArgument: a place that is taken.
Result<Rearranged> Rearrange(const StepTree& tree,
                             const std::optional<std::vector<std::string>>& items,
                             std::span<const size_t> taken, std::span<const Move> moves,
                             size_t top);

}  // namespace stepwell::db
