// SPDX-License-Identifier: Apache-2.0
// What one store of a group has by itself, for processes that cannot reach the others' stores
// (DESIGN.md, "Many processes"). For stores that are open for writing; kInvalidArgument otherwise.
#pragma once

#include <cstdint>
#include <memory>

#include "db/store.h"

namespace stepwell::db {

// A step as Store::Read gives it, of this store's records and chunks alone: part 0 has a record of
// each leaf, and of arrays that others have, too, those pieces that it wrote itself.
Result<std::shared_ptr<StepReader>> ReadShare(Store& store, uint64_t step);

// Store::Verify without the other parts.
Result<VerifyReport> VerifyShare(Store& store, const VerifyOptions& options);

}  // namespace stepwell::db
