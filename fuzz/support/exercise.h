// SPDX-License-Identifier: Apache-2.0
// Everything that can be done with a store, done to one that may be damaged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "fuzz/support/edit.h"
#include "fuzz/support/stores.h"

namespace stepwell::fuzz {

using OpenFunction = std::function<Result<std::unique_ptr<db::Store>>(db::StoreOptions)>;

// The results that a damaged store may give.
enum class Damage : uint8_t {
  kNamed,   // the newest state; what is missing or wrong is an error, and named by the open or
            // Verify
  kOlder,   // of each step any state that was saved
  kForged,  // anything
};

// By what was done to it; `marked` as in BaseStore.
Damage DamageOf(const EditResult& edits, bool marked);

// Opens it for reading and for writing, lists, loads everything, verifies, saves, deletes, pins,
// reclaims, repairs, closes, opens again. Any call may fail with an error; none may crash. Unless
// `damage` is kForged: all of a step that loads is of one save, and what is saved now is there
// afterwards. With kNamed: it is the newest acknowledged one, with metadata, metrics and pin; what
// was deleted stays so; and whatever is less than that is named.
void Exercise(const OpenFunction& open, History history, Damage damage);

}  // namespace stepwell::fuzz
