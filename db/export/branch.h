// SPDX-License-Identifier: Apache-2.0
// A copy of a store that shares its bytes: hard links of its segments (DESIGN.md, "Branches").
#pragma once

#include <string>

#include "db/store.h"
#include "io/disk.h"

namespace stepwell::db {

// Makes `destination`, which must not exist, a store with all steps that `store` has, under the
// same id. Both go on by themselves: a segment with two names is neither changed nor punched, only
// unlinked. Appears whole or not at all, and is durable when this returns. `store` is open for
// writing.
//
// kFailedPrecondition: no hard links are possible there, or steps have shares in other processes'
// stores. kUnavailable: a save kept a segment from being sealed; try again. kAlreadyExists,
// kInvalidArgument (no directory to put it in) and errors of the disk as they come. `file_system`
// has the destination and the store's path.
Status Branch(StoreReader& store, const std::string& destination,
              io::FileSystem* file_system = io::LocalFileSystem());

}  // namespace stepwell::db
