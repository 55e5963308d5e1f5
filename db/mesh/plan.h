// SPDX-License-Identifier: Apache-2.0
// Plans for loading a step onto a mesh: records in, numbers out; no chunk is read.
#pragma once

#include <span>
#include <vector>

#include <stepwell/mesh.h>

#include "db/read/step_tree.h"
#include "io/result.h"

namespace stepwell::db {

// `step`: all records of the step, with their chunks. The first rule that takes an array counts;
// without one it is replicated. kNotFound for a rule that takes nothing, kInvalidArgument, naming
// the leaf, for what CheckShards refuses.
Result<LoadPlan> PlanMesh(const StepTree& step, const Mesh& mesh, std::span<const SpecRule> rules);

}  // namespace stepwell::db
