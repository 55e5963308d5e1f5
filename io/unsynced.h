// SPDX-License-Identifier: Apache-2.0
// A file system that leaves all syncs to its user.
#pragma once

#include <memory>

#include "io/disk.h"

namespace stepwell::io {

// Wraps `inner` and skips each sync of a file or directory. For what is built in a temporary
// directory: the caller syncs the whole directory before it renames it.
std::unique_ptr<FileSystem> WithoutSyncs(std::shared_ptr<FileSystem> inner);

}  // namespace stepwell::io
