// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written beside its name, synced, renamed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/disk.h"

namespace stepwell::db {

class ExportTemporary {
 public:
  // Makes "<path>.stepwell-tmp", instead of what an export that died left there.
  // kAlreadyExists: `path` is there; kUnavailable: another export works on it; kInvalidArgument:
  // there is no directory to put it in.
  static Result<std::unique_ptr<ExportTemporary>> Create(io::FileSystem* file_system,
                                                         std::string path);
  // Removes it unless Commit() succeeded.
  ~ExportTemporary();

  io::File* file() { return file_.get(); }
  // Durable under its name; the size in bytes.
  Result<uint64_t> Commit();

 private:
  ExportTemporary(io::FileSystem* file_system, std::string path);
  Status Taken() const;
  Status Busy() const;
  Status CheckFree() const;
  Status Claim();
  Status GiveName() const;

  io::FileSystem* const file_system_;
  const std::string path_;
  const std::string temporary_;
  std::unique_ptr<io::File> file_;  // locked while this lives; null: not ours
};

}  // namespace stepwell::db
