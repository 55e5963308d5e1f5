// SPDX-License-Identifier: Apache-2.0
#include "db/slot_file.h"

#include <algorithm>
#include <array>
#include <optional>

#include "db/layout.h"

namespace stepwell::db {

using format::kSlotBytes;
using format::StoreSlot;

Status SlotFile::Create(io::FileSystem* file_system, const std::string& store_path,
                        const StoreSlot& slot) {
  const std::string path = SlotFilePath(store_path);
  const std::string temporary = path + ".new";
  {
    STEPWELL_ASSIGN_OR_RETURN(
        auto file, file_system->Open(temporary, {.write = true, .create = true, .truncate = true}));
    StoreSlot first = slot;
    for (uint64_t sequence : {1, 2}) {
      first.sequence = sequence;
      const auto bytes = format::EncodeSlot(first);
      STEPWELL_RETURN_IF_ERROR(file->WriteAt(sequence % 2 * kSlotBytes, bytes));
    }
    STEPWELL_RETURN_IF_ERROR(file->Sync());
  }
  STEPWELL_RETURN_IF_ERROR(file_system->Rename(temporary, path));
  return file_system->SyncDirectory(store_path);
}

Result<std::unique_ptr<SlotFile>> SlotFile::Open(io::FileSystem* file_system,
                                                 const std::string& store_path, bool write,
                                                 std::shared_ptr<io::Freeze> freeze) {
  STEPWELL_ASSIGN_OR_RETURN(
      auto file,
      file_system->Open(SlotFilePath(store_path), {.write = write, .freeze = std::move(freeze)}));
  return std::unique_ptr<SlotFile>(new SlotFile(std::move(file)));
}

Result<StoreSlot> SlotFile::Read() {
  std::optional<StoreSlot> newest;
  Status refused;
  Status damaged = DataLossError(StrCat(file_->path(), ": both slots are damaged"));
  std::array<std::byte, kSlotBytes> bytes;
  for (uint64_t i = 0; i < 2; ++i) {
    STEPWELL_ASSIGN_OR_RETURN(const size_t size, file_->ReadAt(i * kSlotBytes, bytes));
    if (size < kSlotBytes) {
      refused = UnimplementedError(StrCat(file_->path(), ": too short for a Stepwell store"));
      continue;
    }
    auto slot = format::DecodeSlot(bytes);
    if (!slot.ok()) {
      if (slot.status().code() == StatusCode::kUnimplemented) {
        refused = slot.status().WithContext(file_->path());
      }
      continue;
    }
    if (!newest || slot->sequence > newest->sequence) newest = *slot;
  }
  if (!newest) return refused.ok() ? damaged : refused;
  // A newer format in one slot: whoever wrote it owns the store now.
  if (refused.code() == StatusCode::kUnimplemented &&
      refused.message().find("format") != std::string::npos) {
    return refused;
  }
  sequence_ = std::max(sequence_, newest->sequence);
  return *newest;
}

Status SlotFile::Write(StoreSlot slot, bool sync) {
  slot.sequence = ++sequence_;
  STEPWELL_RETURN_IF_ERROR(
      file_->WriteAt(slot.sequence % 2 * kSlotBytes, format::EncodeSlot(slot)));
  return sync ? file_->Sync() : OkStatus();
}

}  // namespace stepwell::db
