// SPDX-License-Identifier: Apache-2.0
// Plans for loading a step onto a mesh: records in, numbers out; no chunk is read.
#pragma once

#include <span>
#include <vector>

#include <stepwell/mesh.h>

#include "format/records.h"
#include "io/result.h"

namespace stepwell::db {

// `leaves`: records of one step in key order, with their chunks; nodes are passed over. The first
// rule that takes an array counts; without one it is replicated. A path's first component is the
// item; where "state" is the only one (`only_state`), its name may be left out. kNotFound for a
// rule that takes nothing, kInvalidArgument, naming the leaf, for what CheckShards refuses.
Result<LoadPlan> PlanMesh(std::span<const format::LeafRecord> leaves, bool only_state,
                          const Mesh& mesh, std::span<const SpecRule> rules);

}  // namespace stepwell::db
