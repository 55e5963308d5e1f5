// SPDX-License-Identifier: Apache-2.0
// Loads into the memory of GPUs; there when configured with STEPWELL_CUDA.
#pragma once

#include <span>

#include "db/store.h"

namespace stepwell {

// Fills every request, whose `out` is memory of a GPU (any of them) in C order. Chunks are decoded
// into pinned memory near the GPU while what came before is copied from there; each is read once.
// Returns when all copies are done. kInvalidArgument: memory that is not a GPU's.
Result<LoadStats> LoadIntoCuda(db::StepReader* reader, std::span<const db::LoadRequest> requests);

}  // namespace stepwell
