// SPDX-License-Identifier: Apache-2.0
// Files that somebody else makes durable.
#pragma once

#include <memory>

#include "io/disk.h"

namespace stepwell::io {

// The file system `inner`, without a sync of anything that is opened or named through it: for what
// is made in a directory without its name yet. Who gives it the name syncs all of it before.
std::unique_ptr<FileSystem> WithoutSyncs(std::shared_ptr<FileSystem> inner);

}  // namespace stepwell::io
