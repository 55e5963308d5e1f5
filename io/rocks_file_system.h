// SPDX-License-Identifier: Apache-2.0
// RocksDB on Stepwell's FileSystem, so that the index and the log share one disk (and, in the
// simulation, one crash).
//
// Writes, syncs, renames and deletions that fail, or come after the freeze of `freeze`, report
// success to RocksDB and change nothing: Debian's RocksDB 7.8 is built with asserts and aborts the
// process when a write of its own fails. The freeze tells the engine. RocksDB's info LOG never
// freezes. No exception leaves these functions (RocksDB is not exception-safe).
#pragma once

#include <memory>

#include "io/disk.h"

namespace rocksdb {
class FileSystem;
class IOStatus;
}  // namespace rocksdb

namespace stepwell::io {

std::shared_ptr<rocksdb::FileSystem> MakeRocksFileSystem(FileSystem* file_system,
                                                         std::shared_ptr<Freeze> freeze);

// Translates a status for RocksDB.
rocksdb::IOStatus ToIOStatus(const Status& status);

}  // namespace stepwell::io
