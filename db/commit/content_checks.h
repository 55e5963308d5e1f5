// SPDX-License-Identifier: Apache-2.0
// Looks at the contents of a save before it is committed: elements that are not finite, and a state
// that has stopped changing. Engine thread only.
#pragma once

#include <cstdint>

#include "db/commit/engine_options.h"
#include "db/commit/save_job.h"

namespace stepwell::db {

// Once a leaf has changed in so many saves in a row, it is noticed when it does not. Trainings that
// update some leaves every few steps should not be, so it is more than a few.
inline constexpr uint8_t kStaleAfterSaves = 5;

// Does what OpenOptions::on_nonfinite says; kInvalidArgument: the step is not to be committed.
Status CheckFinite(const EngineOptions& options, const SaveJob& job);

// Returns BaseLeaf::changed_saves after this save.
uint8_t ChangedSaves(const PlannedLeaf& leaf);

// Warns of items of which no leaf changed, although some had changed in every save lately. Once:
// each of these leaves is noticed again only after as many saves that change it.
void WarnIfStale(const EngineOptions& options, const SaveJob& job);

}  // namespace stepwell::db
