// SPDX-License-Identifier: Apache-2.0
#include "db/log/slot_file.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "db/layout.h"
#include "db/log/segment_files.h"

namespace stepwell::db {

using format::kSlotBytes;
using format::kSlotCount;
using format::StoreSlot;

namespace {

constexpr int kLooksMax = 8;

using SlotBytes = std::array<std::byte, kSlotBytes>;

Result<StoreSlot> ReadSlot(io::File& file, size_t number, SlotBytes* bytes) {
  bytes->fill(std::byte{});
  STEPWELL_ASSIGN_OR_RETURN(const size_t size, ReadWhole(file, number * kSlotBytes, *bytes));
  if (size == kSlotBytes) return format::DecodeSlot(*bytes);
  // Files of up to version 2 have two; a shorter one is none of ours.
  if (number == 0) return UnimplementedError("too short for a Stepwell store");
  return DataLossError("the slot is missing");
}

// Makes a file anew. A file that has the temporary name may have another name, too, and is not
// written to. The new file gets the mode, and the lock, of `like`, whose place it takes.
Result<std::unique_ptr<io::File>> MakeFile(io::FileSystem* file_system,
                                           const std::string& store_path, const StoreSlot& slot,
                                           const io::FileInfo* like,
                                           std::shared_ptr<io::Freeze> freeze) {
  const std::string path = SlotFilePath(store_path);
  const std::string temporary = path + ".new";
  const Status removed = file_system->Remove(temporary);
  if (!removed.ok() && removed.code() != StatusCode::kNotFound) return removed;
  std::unique_ptr<io::File> file;
  {
    STEPWELL_ASSIGN_OR_RETURN(
        auto written,
        file_system->Open(temporary, {.write = true, .create = true, .exclusive = true}));
    StoreSlot first = slot;
    for (size_t number = 0; number < kSlotCount; ++number) {
      ++first.sequence;
      STEPWELL_RETURN_IF_ERROR(written->WriteAt(number * kSlotBytes, format::EncodeSlot(first)));
    }
    STEPWELL_RETURN_IF_ERROR(written->Sync());
  }
  if (like != nullptr) {
    STEPWELL_RETURN_IF_ERROR(file_system->SetMode(temporary, like->mode));
    STEPWELL_ASSIGN_OR_RETURN(
        file, file_system->Open(temporary, {.write = true, .freeze = std::move(freeze)}));
    STEPWELL_ASSIGN_OR_RETURN(const bool locked, file->TryLock(io::LockKind::kExclusive));
    if (!locked) return UnavailableError(StrCat(temporary, ": another process has locked it"));
  }
  STEPWELL_RETURN_IF_ERROR(file_system->Rename(temporary, path));
  STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(store_path));
  return file;
}

}  // namespace

Status SlotFile::Create(io::FileSystem* file_system, const std::string& store_path,
                        const StoreSlot& slot) {
  return MakeFile(file_system, store_path, slot, /*like=*/nullptr, nullptr).status();
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
  std::array<SlotBytes, kSlotCount> bytes{};
  std::array<Result<StoreSlot>, kSlotCount> slots = {DataLossError(""), DataLossError(""),
                                                     DataLossError("")};
  for (int look = 0; look < kLooksMax; ++look) {
    const auto before = bytes;
    size_t good = 0;
    for (size_t i = 0; i < kSlotCount; ++i) {
      slots[i] = ReadSlot(*file_, i, &bytes[i]);
      good += slots[i].ok() ? 1 : 0;
    }
    // A torn slot that stays as it is was left by a crash, not by a write under way.
    if (good == kSlotCount || (look > 0 && bytes == before)) break;
    std::this_thread::yield();
  }
  std::optional<size_t> newest;
  for (size_t i = 0; i < kSlotCount; ++i) {
    const Status status = slots[i].status();
    // A newer format in one slot: its writer owns the store now.
    if (status.code() == StatusCode::kUnimplemented &&
        status.message().find("format") != std::string::npos) {
      return status.WithContext(file_->path());
    }
    if (slots[i].ok() && (!newest || slots[i]->sequence > slots[*newest]->sequence)) newest = i;
  }
  if (newest) {
    sequence_ = std::max(sequence_, slots[*newest]->sequence);
    newest_ = durable_ = *newest;
    settled_ = false;
    return *slots[*newest];
  }
  // An error of the device says more than what the other slots hold.
  for (const auto& slot : slots) {
    if (slot.status().os_error() != 0) return slot.status().WithContext(file_->path());
  }
  for (const auto& slot : slots) {
    if (slot.status().code() == StatusCode::kUnimplemented) {
      return slot.status().WithContext(file_->path());
    }
  }
  return DataLossError(StrCat(file_->path(), ": all slots are damaged"));
}

Status SlotFile::Write(StoreSlot slot, bool sync) {
  if (!settled_) {
    // After a kill, the bytes that were read may be in the page cache only.
    STEPWELL_RETURN_IF_ERROR(file_->Sync());
    settled_ = true;
  }
  slot.sequence = ++sequence_;
  slot.format_version = format::kFormatVersion;  // what was read may have been an older one
  // In turn, so that a reader that meets a write half done finds the slot before it.
  size_t target = (newest_ + 1) % kSlotCount;
  while (target == durable_ || target == syncing_) target = (target + 1) % kSlotCount;
  STEPWELL_RETURN_IF_ERROR(file_->WriteAt(target * kSlotBytes, format::EncodeSlot(slot)));
  newest_ = target;
  if (!sync) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(file_->Sync());
  durable_ = target;
  return OkStatus();
}

Status SlotFile::LeaveCopies(io::FileSystem* file_system, const std::string& store_path) {
  const auto info =
      file_->Info();  // where it cannot be looked at, nothing is known of another name
  if (!info.ok() || info->link_count < 2) return OkStatus();
  SlotBytes bytes;
  STEPWELL_ASSIGN_OR_RETURN(const StoreSlot slot, ReadSlot(*file_, newest_, &bytes));
  STEPWELL_ASSIGN_OR_RETURN(auto anew,
                            MakeFile(file_system, store_path, slot, &*info, file_->freeze()));
  // It is the copy's now, to lock.
  STEPWELL_RETURN_IF_ERROR(file_->Unlock());
  left_.push_back(std::exchange(file_, std::move(anew)));
  sequence_ = slot.sequence + kSlotCount;
  newest_ = durable_ = kSlotCount - 1;
  syncing_.reset();
  settled_ = true;
  return OkStatus();
}

void SlotFile::BeginSync() { syncing_ = newest_; }

void SlotFile::EndSync(bool durable) {
  if (durable && syncing_) durable_ = *syncing_;
  syncing_.reset();
}

}  // namespace stepwell::db
