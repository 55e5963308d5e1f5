// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "io/disk.h"

namespace stepwell::db {

// Space that is given up when a disk is full, for the frames of an open and of deletes: so that
// room can be made. It grows with the store. Best effort; nothing where it is large enough, where
// little is free, and without `anew` where it was given up.
void KeepBallast(io::FileSystem* file_system, const std::string& store_path, bool anew);

}  // namespace stepwell::db
