// SPDX-License-Identifier: Apache-2.0
// Where an export goes, and the root of a CheckpointManager that it may make on the way.
#pragma once

#include <cstdint>
#include <string>

#include "db/export/export.h"
#include "io/disk.h"

namespace stepwell::db {

struct ExportTarget {
  std::string path;      // of the checkpoint's directory
  std::string new_root;  // that has to be made for it; "": none
};

// kInvalidArgument: no path, or one in the store.
Result<ExportTarget> FindExportTarget(io::FileSystem* file_system, const std::string& store,
                                      uint64_t step, const std::string& destination,
                                      const ExportOptions& options);

// A manager's root; it goes again unless Keep() was called.
class NewRoot {
 public:
  // `path` may be "": then there is nothing to do.
  NewRoot(io::FileSystem* file_system, std::string path);
  ~NewRoot();
  NewRoot(const NewRoot&) = delete;
  NewRoot& operator=(const NewRoot&) = delete;

  // Durable when this returns. `custom_metadata`: of the root, a JSON object; "": none.
  // kUnavailable: it appeared meanwhile, and has no place for that.
  Status Make(const std::string& custom_metadata, uint32_t file_mode);
  void Keep() { made_ = false; }

 private:
  Status WriteMetadata(const std::string& custom_metadata, uint32_t file_mode);

  io::FileSystem* const file_system_;
  const std::string path_;
  bool made_ = false;
  bool has_metadata_ = false;
};

}  // namespace stepwell::db
