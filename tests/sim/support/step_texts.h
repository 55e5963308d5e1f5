// SPDX-License-Identifier: Apache-2.0
// What the simulation's steps have for metadata and metrics.
#pragma once

#include <string_view>

#include "db/store.h"
#include "tests/sim/support/store_model.h"

namespace stepwell::sim {

inline constexpr std::string_view kMetadata = "{\"seed\": ";  // how a step's metadata begins

// Whether the store's texts of these steps, by the index where there is one, are theirs: kInternal
// if not, else the first error of reading.
Status CheckTexts(db::Store* store, const Steps& wanted);

}  // namespace stepwell::sim
