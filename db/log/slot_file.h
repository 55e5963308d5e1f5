// SPDX-License-Identifier: Apache-2.0
// The STEPWELL file: the store's identity and its marks, in three slots. One of them is known to be
// on the device, one may be on its way there, and only the others are written: a crash damages
// neither of the first two.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/records.h"
#include "io/disk.h"

namespace stepwell::db {

class SlotFile {
 public:
  // Writes a new STEPWELL file durably (temporary name, sync, rename, directory sync); its slots
  // come behind that of `slot`.
  static Status Create(io::FileSystem* file_system, const std::string& store_path,
                       const format::StoreSlot& slot);
  // kNotFound when there is none.
  static Result<std::unique_ptr<SlotFile>> Open(io::FileSystem* file_system,
                                                const std::string& store_path, bool write,
                                                std::shared_ptr<io::Freeze> freeze);
  // The valid slot with the highest sequence; one that cannot be read does not hide the others.
  // kUnimplemented: not a store, or a newer format; kDataLoss: every slot is damaged. Beside a
  // writer a write half done may be met: then it looks again.
  Result<format::StoreSlot> Read();
  // Writes `slot` with the next sequence into a slot that is neither known durable nor being
  // synced. Durable with `sync`, which no sync under way may meet. After Read.
  Status Write(format::StoreSlot slot, bool sync);

  // STEPWELL has another name: another store was made of this one by links (`cp -al`), and what is
  // written here would be written there. Makes it anew, durable and locked, with what it has; the
  // one before stays open, for a sync that may be under way. OK, and nothing done, where it has
  // none. After Read.
  Status LeaveCopies(io::FileSystem* file_system, const std::string& store_path);

  // A sync of the newest slot, by the caller, as an operation on file(): between the two calls that
  // slot is not written.
  void BeginSync();
  void EndSync(bool durable);
  // Its lock is the writer's, exclusively, as that of LOCK, which may have been removed.
  io::File* file() { return file_.get(); }

 private:
  explicit SlotFile(std::unique_ptr<io::File> file) : file_(std::move(file)) {}
  std::unique_ptr<io::File> file_;
  std::vector<std::unique_ptr<io::File>> left_;  // by LeaveCopies
  uint64_t sequence_ = 0;                        // sequence of the newest slot read or written
  size_t newest_ = 0;                            // that slot
  size_t durable_ = 0;                           // the newest one known to be on the device
  std::optional<size_t> syncing_;                // on its way there
  bool settled_ = false;                         // `durable_` is known to be on the device
};

}  // namespace stepwell::db
