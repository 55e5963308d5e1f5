// SPDX-License-Identifier: Apache-2.0
// The records that a path can lead to, without the rest of the step.
#pragma once

#include <vector>

#include "db/store.h"
#include "format/path.h"
#include "format/records.h"

namespace stepwell::db {

// Whether the item's name may be left out of paths.
bool IsOnlyState(const format::StepRecord& step);

// The records that lie where `path` can lead, in key order: the nodes on the way and what stands at
// its end; with `below`, and of a glob, all below nodes at the end, too. It reads no more than
// that. `above`: where the path starts, the item first; {}: as StepTree::Resolve. Empty: nothing is
// there, or the path can lead anywhere.
Result<std::vector<format::LeafRecord>> FindAlong(StepReader& reader,
                                                  const format::PathPattern& path,
                                                  const format::KeyPath& above, bool below);

}  // namespace stepwell::db
