// SPDX-License-Identifier: Apache-2.0
// Everything that can be done with a store, done to one that may be damaged.
#pragma once

#include <functional>
#include <memory>

#include "fuzz/support/stores.h"

namespace stepwell::fuzz {

using OpenFunction = std::function<Result<std::unique_ptr<db::Store>>(db::StoreOptions)>;

// Opens it for reading and for writing, lists, loads everything, verifies, saves, deletes, pins,
// reclaims, closes, opens again. Any call may fail with an error; none may crash. Unless `forged`:
// what loads is what was saved for that step and path, all of one save; and what is saved now is
// there afterwards.
void Exercise(const OpenFunction& open, History history, bool forged);

}  // namespace stepwell::fuzz
