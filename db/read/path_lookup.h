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

// The records on `path` and at its end, in key order; for a glob, or with `below`, also everything
// under them. It reads no other records. `above`: where the path starts, the item first; {}: where
// StepTree::Resolve starts. Empty if no record matches, or if the path starts with a wildcard.
Result<std::vector<format::LeafRecord>> FindAlong(StepReader& reader,
                                                  const format::PathPattern& path,
                                                  const format::KeyPath& above, bool below);

}  // namespace stepwell::db
