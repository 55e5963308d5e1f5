// SPDX-License-Identifier: Apache-2.0
#include "io/small_file.h"

namespace stepwell::io {

Result<std::string> ReadRange(File* file, uint64_t offset_bytes, uint64_t length_bytes) {
  std::string bytes(length_bytes, '\0');
  STEPWELL_ASSIGN_OR_RETURN(
      const size_t size,
      file->ReadAt(offset_bytes, {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}));
  bytes.resize(size);
  return bytes;
}

Result<std::string> ReadSmallFile(FileSystem* file_system, const std::string& path,
                                  uint64_t bytes_max) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, file_system->Open(path, {}));
  STEPWELL_ASSIGN_OR_RETURN(const FileInfo info, file->Info());
  if (info.is_directory) return DataLossError(StrCat(path, " is a directory, not a file"));
  if (info.size_bytes > bytes_max) {
    return UnimplementedError(
        StrCat(path, ": ", info.size_bytes, " bytes; at most ", bytes_max, " are read"));
  }
  return ReadRange(file.get(), 0, info.size_bytes);
}

Result<std::optional<std::string>> ReadIfThere(FileSystem* file_system, const std::string& path,
                                               uint64_t bytes_max) {
  Result<std::string> text = ReadSmallFile(file_system, path, bytes_max);
  if (text.ok()) return std::optional(*std::move(text));
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  return text.status();
}

Result<std::optional<FileInfo>> StatIfThere(FileSystem* file_system, const std::string& path) {
  Result<FileInfo> info = file_system->Stat(path);
  if (info.ok()) return std::optional(*info);
  if (info.status().code() == StatusCode::kNotFound) return std::optional<FileInfo>();
  return info.status();
}

Result<bool> HasFile(FileSystem* file_system, const std::string& path) {
  STEPWELL_ASSIGN_OR_RETURN(const auto info, StatIfThere(file_system, path));
  return info && !info->is_directory;
}

}  // namespace stepwell::io
