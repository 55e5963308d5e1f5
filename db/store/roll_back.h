// SPDX-License-Identifier: Apache-2.0
// Back to an earlier step: what is above it is deleted, or tainted.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "db/store.h"
#include "io/result.h"

namespace stepwell::db {

// Deletes the steps of `store` above `to` in one commit; or taints them, unless `taint` is empty,
// also those that were tainted before. Gives them, ascending. Saves under way are not waited for:
// wait before. Steps that others delete meanwhile are passed over.
//
// kNotFound: `to` is not there. kInvalidArgument: it is tainted. Errors of StoreWriter::Delete and
// SetTaint as they come; after each nothing is changed.
Result<std::vector<uint64_t>> RollBack(Store& store, uint64_t to, std::string_view taint);

}  // namespace stepwell::db
