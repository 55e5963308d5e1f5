// SPDX-License-Identifier: Apache-2.0
// The STEPWELL file: the store's identity and its marks, in two slots. At any moment one of them is
// known to be on the device and only the other is written, so a crash tears at most one.
#pragma once

#include <memory>
#include <string>

#include "format/records.h"
#include "io/disk.h"

namespace stepwell::db {

class SlotFile {
 public:
  // Writes a new STEPWELL file durably (temporary name, sync, rename, directory sync).
  static Status Create(io::FileSystem* file_system, const std::string& store_path,
                       const format::StoreSlot& slot);
  // kNotFound when there is none.
  static Result<std::unique_ptr<SlotFile>> Open(io::FileSystem* file_system,
                                                const std::string& store_path, bool write,
                                                std::shared_ptr<io::Freeze> freeze);
  // The valid slot with the higher sequence. kUnimplemented: not a store, or a newer format. Beside
  // a writer a write half done may be met: then it looks again.
  Result<format::StoreSlot> Read();
  // Writes `slot` with the next sequence, never over the newest one that is on the device; durable
  // with `sync`. After Read.
  Status Write(format::StoreSlot slot, bool sync);

 private:
  explicit SlotFile(std::unique_ptr<io::File> file) : file_(std::move(file)) {}
  std::unique_ptr<io::File> file_;
  uint64_t sequence_ = 0;  // of the newest slot read or written
  uint64_t kept_ = 0;      // the slot that is not written
  bool settled_ = false;   // it is known to be on the device
};

}  // namespace stepwell::db
