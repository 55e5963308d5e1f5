// SPDX-License-Identifier: Apache-2.0
// Loads from several steps of one store at once.
#pragma once

#include <span>

#include "db/store.h"

namespace stepwell::db {

// A request, and the reader of the step whose leaf it wants.
struct StepRequest {
  StepReader* reader = nullptr;
  LoadRequest request;
};

// Fills every request, as StepReader::Load does. A chunk that several steps refer to is read once.
// All readers are of one open store. The error is that of the step in which it is.
Result<LoadStats> LoadFromSteps(std::span<const StepRequest> requests);

}  // namespace stepwell::db
