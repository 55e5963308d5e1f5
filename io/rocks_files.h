// SPDX-License-Identifier: Apache-2.0
// The parts of the RocksDB adapter: its open files, and RocksChanges, through which every change
// passes. Private to rocks_file_system.cc.
#pragma once

#include <rocksdb/file_system.h>

#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "io/disk.h"

namespace stepwell::io {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;

IOStatus ToIOStatus(const Status& status);

// Runs `call`; an exception (memory) becomes an error, for RocksDB is not exception-safe.
template <typename Call>
IOStatus Guarded(Call&& call) noexcept {
  try {
    return call();
  } catch (const std::exception&) {
    return IOStatus::IOError();
  }
}

// Thread-safe. Lets changes through until the first one fails; from then on they are dropped and
// reported as done. Ghosts are the files that RocksDB made after that: they exist nowhere else, but
// RocksDB asks for the size of what it has just written and asserts that it is there.
class RocksChanges {
 public:
  explicit RocksChanges(std::shared_ptr<Freeze> freeze) : freeze_(std::move(freeze)) {}

  const std::shared_ptr<Freeze>& freeze() const { return freeze_; }
  bool frozen() const { return freeze_->frozen(); }

  // Runs `change`, or only `when_frozen` after the freeze. The caller's own mistakes (no such
  // file, already there) are reported; any other failure freezes.
  template <typename MakeChange, typename WhenFrozen>
  IOStatus Change(MakeChange&& change, WhenFrozen&& when_frozen) noexcept {
    try {
      if (!frozen()) {
        const Status status = change();
        const bool mistake =
            status.code() == StatusCode::kNotFound || status.code() == StatusCode::kAlreadyExists;
        if (mistake && !frozen()) return ToIOStatus(status);
        if (status.ok()) return IOStatus::OK();
        freeze_->Trip(status);
      }
      when_frozen();
    } catch (const std::exception&) {
      freeze_->Trip(out_of_memory_);
    }
    return IOStatus::OK();
  }
  template <typename MakeChange>
  IOStatus Change(MakeChange&& change) noexcept {
    return Change(change, [] {});
  }

  std::optional<uint64_t> GhostSize(const std::string& name) const;
  void SetGhost(const std::string& name, uint64_t size_bytes);
  void ForgetGhost(const std::string& name);
  void RenameGhost(const std::string& from, const std::string& to);

 private:
  const std::shared_ptr<Freeze> freeze_;
  // Made ahead, when there is memory.
  const Status out_of_memory_{StatusCode::kUnknown, "out of memory in a change to the index"};
  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> ghosts_;  // name to size; guarded by mutex_
};

std::unique_ptr<rocksdb::FSSequentialFile> MakeRocksSequentialFile(std::unique_ptr<File> file);
std::unique_ptr<rocksdb::FSRandomAccessFile> MakeRocksRandomAccessFile(std::unique_ptr<File> file);
// `file` is null for a ghost.
std::unique_ptr<rocksdb::FSWritableFile> MakeRocksWritableFile(
    std::string name, std::unique_ptr<File> file, uint64_t size_bytes,
    std::shared_ptr<RocksChanges> changes);
std::unique_ptr<rocksdb::FSDirectory> MakeRocksDirectory(FileSystem* files, std::string name,
                                                         std::shared_ptr<RocksChanges> changes);

}  // namespace stepwell::io
