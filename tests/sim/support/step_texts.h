// SPDX-License-Identifier: Apache-2.0
// The metadata and metrics of the simulation's steps.
#pragma once

#include <string_view>

#include "db/store.h"
#include "tests/sim/support/store_model.h"

namespace stepwell::sim {

inline constexpr std::string_view kMetadata = "{\"seed\": ";  // how a step's metadata begins

// Checks the store's texts of these steps, which come from the index where there is one. kInternal
// if they differ, else the first error of reading.
Status CheckTexts(db::Store* store, const Steps& wanted);

}  // namespace stepwell::sim
