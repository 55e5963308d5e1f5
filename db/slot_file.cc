// SPDX-License-Identifier: Apache-2.0
#include "db/slot_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <thread>

#include "db/layout.h"

namespace stepwell::db {

using format::kSlotBytes;
using format::StoreSlot;

namespace {

constexpr int kLooksMax = 8;

}  // namespace

Status SlotFile::Create(io::FileSystem* file_system, const std::string& store_path,
                        const StoreSlot& slot) {
  const std::string path = SlotFilePath(store_path);
  const std::string temporary = path + ".new";
  {
    STEPWELL_ASSIGN_OR_RETURN(
        auto file, file_system->Open(temporary, {.write = true, .create = true, .truncate = true}));
    StoreSlot first = slot;
    for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
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
  std::array<std::byte, 2 * kSlotBytes> bytes{};
  std::array<Result<StoreSlot>, 2> slots = {DataLossError(""), DataLossError("")};
  for (int look = 0; look < kLooksMax; ++look) {
    const auto before = bytes;
    STEPWELL_ASSIGN_OR_RETURN(const size_t size, file_->ReadAt(0, bytes));
    for (uint64_t i = 0; i < slots.size(); ++i) {
      if (size < (i + 1) * kSlotBytes) {
        slots[i] = UnimplementedError(StrCat(file_->path(), ": too short for a Stepwell store"));
      } else {
        slots[i] = format::DecodeSlot(ConstBytes(bytes).subspan(i * kSlotBytes, kSlotBytes));
      }
    }
    // A torn slot that stays as it is was left by a crash, not by a write under way.
    if ((slots[0].ok() && slots[1].ok()) || (look > 0 && bytes == before)) break;
    std::this_thread::yield();
  }
  std::optional<uint64_t> newest;
  for (uint64_t i = 0; i < slots.size(); ++i) {
    const Status status = slots[i].status();
    // A newer format in one slot: whoever wrote it owns the store now.
    if (status.code() == StatusCode::kUnimplemented &&
        status.message().find("format") != std::string::npos) {
      return status.WithContext(file_->path());
    }
    if (slots[i].ok() && (!newest || slots[i]->sequence > slots[*newest]->sequence)) newest = i;
  }
  if (newest) {
    sequence_ = std::max(sequence_, slots[*newest]->sequence);
    kept_ = *newest;
    settled_ = false;
    return *slots[*newest];
  }
  for (const auto& slot : slots) {
    if (slot.status().code() == StatusCode::kUnimplemented) {
      return slot.status().WithContext(file_->path());
    }
  }
  return DataLossError(StrCat(file_->path(), ": both slots are damaged"));
}

Status SlotFile::Write(StoreSlot slot, bool sync) {
  if (!settled_) {
    // What was read may be in the page cache only, after a kill.
    STEPWELL_RETURN_IF_ERROR(file_->Sync());
    settled_ = true;
  }
  slot.sequence = ++sequence_;
  const uint64_t target = 1 - kept_;
  STEPWELL_RETURN_IF_ERROR(file_->WriteAt(target * kSlotBytes, format::EncodeSlot(slot)));
  if (!sync) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(file_->Sync());
  kept_ = target;
  return OkStatus();
}

}  // namespace stepwell::db
