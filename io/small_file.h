// SPDX-License-Identifier: Apache-2.0
// Files that other programs wrote, read whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/disk.h"
#include "io/result.h"

namespace stepwell::io {

// All of a file; kNotFound when there is none, kUnimplemented when it is longer than `bytes_max`.
Result<std::string> ReadSmallFile(FileSystem* file_system, const std::string& path,
                                  uint64_t bytes_max);
// The same; nothing when there is none.
Result<std::optional<std::string>> ReadIfThere(FileSystem* file_system, const std::string& path,
                                               uint64_t bytes_max);
// Nothing when there is no such file or directory.
Result<std::optional<FileInfo>> StatIfThere(FileSystem* file_system, const std::string& path);
// Returns true if there is such a file. A directory is none.
Result<bool> HasFile(FileSystem* file_system, const std::string& path);

// `length_bytes` from `offset_bytes` on; less where the file ends before.
Result<std::string> ReadRange(File* file, uint64_t offset_bytes, uint64_t length_bytes);

}  // namespace stepwell::io
