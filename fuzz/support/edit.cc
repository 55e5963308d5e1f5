// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/edit.h"

#include <algorithm>
#include <array>

#include "db/layout.h"
#include "format/endian.h"
#include "format/records.h"
#include "fuzz/support/frames.h"

namespace stepwell::fuzz {
namespace {

constexpr int kEditsMax = 16;
constexpr uint64_t kDiskBlockBytes = 4096;
constexpr uint64_t kExtendBytesMax = uint64_t{256} << 10;
constexpr uint64_t kBytesMax = 64;  // of one edit

void AddFiles(io::FileSystem* files, const std::string& folder, std::vector<std::string>* paths) {
  const auto names = files->List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = folder + "/" + name;
    const auto info = files->Stat(path);
    if (!info.ok()) continue;
    if (info->is_directory) {
      AddFiles(files, path, paths);
    } else {
      paths->push_back(path);
    }
  }
}

std::vector<std::string> FilesOf(io::FileSystem* files, const std::string& store_path) {
  std::vector<std::string> paths;
  AddFiles(files, store_path, &paths);
  return paths;
}

uint64_t SizeOf(io::FileSystem* files, const std::string& path) {
  const auto info = files->Stat(path);
  return info.ok() ? info->size_bytes : 0;
}

uint64_t BytesOf(io::FileSystem* files, const std::string& store_path) {
  uint64_t bytes = 0;
  for (const std::string& path : FilesOf(files, store_path)) {
    if (!path.ends_with("/BALLAST")) bytes += SizeOf(files, path);
  }
  return bytes;
}

// One edit as the input has it: every kind takes the same fields, so that a mutated kind keeps the
// rest.
struct Edit {
  EditKind kind = EditKind::kFlip;
  std::string path;
  std::string other;  // another file, or the same
  uint64_t size = 0;  // of the file
  uint32_t where = 0;
  std::string bytes;
};

class Editor {
 public:
  Editor(io::FileSystem* files, std::string store_path)
      : files_(files), store_path_(std::move(store_path)) {}

  void Apply(const Edit& edit, EditResult* result) {
    result_ = result;
    const uint64_t blocks = std::max<uint64_t>(1, edit.size / kDiskBlockBytes);
    const uint64_t block = edit.where % blocks * kDiskBlockBytes;
    switch (edit.kind) {
      case EditKind::kOverwrite:
        return Write(edit.path, edit.where % (edit.size + 1), edit.bytes);
      case EditKind::kOverwriteBlock:
        return Write(edit.path, block + (edit.where >> 16) % 256, edit.bytes);
      case EditKind::kFlip:
        return Flip(edit);
      case EditKind::kTruncate:
        return Truncate(edit.path, edit.where % 2 == 0 ? block : edit.where % (edit.size + 1));
      case EditKind::kExtend:
        return Write(edit.path, edit.size + edit.where % kExtendBytesMax, edit.bytes);
      case EditKind::kRemove:
        return Remove(edit.path);
      case EditKind::kSwapBlocks:
        return Swap(edit);
      case EditKind::kZeroBlocks:
        return Write(edit.path, block,
                     std::string((1 + (edit.where >> 16) % 16) * kDiskBlockBytes, '\0'));
      case EditKind::kDuplicate:
        return Copy(edit.path, NewName(edit));
      case EditKind::kRename:
        return Rename(edit.path, NewName(edit));
      case EditKind::kSlot:
        return ChangeSlot(edit);
      case EditKind::kForge:
        return Forge(edit);
      case EditKind::kCount:
        return;
    }
  }

 private:
  void Note(const std::string& path) {
    if (path == db::SlotFilePath(store_path_)) result_->slots_damaged = true;
    if (path.starts_with(db::SegmentsPath(store_path_))) result_->log_damaged = true;
  }

  void Write(const std::string& path, uint64_t at, std::string_view bytes) {
    Note(path);
    if (!bytes.empty()) WriteFile(files_, path, at, bytes);
  }

  void Remove(const std::string& path) {
    Note(path);
    files_->Remove(path).IgnoreError("not there");
  }

  void Rename(const std::string& from, const std::string& to) {
    Note(from);
    Note(to);
    files_->Rename(from, to).IgnoreError("not there");
  }

  void Truncate(const std::string& path, uint64_t size) {
    Note(path);
    const auto file = files_->Open(path, {.write = true});
    if (file.ok()) (*file)->Truncate(size).IgnoreError("an edit that cannot be made");
  }

  void Flip(const Edit& edit) {
    std::string bytes = ReadFile(files_, edit.path);
    if (bytes.empty()) return;
    const uint64_t at = edit.where % bytes.size();
    const auto bit = static_cast<uint8_t>(1U << (edit.where >> 29));
    bytes[at] = static_cast<char>(static_cast<uint8_t>(bytes[at]) ^ bit);
    Write(edit.path, at, std::string_view(bytes).substr(at, 1));
  }

  void Swap(const Edit& edit) {
    std::string from = ReadFile(files_, edit.path);
    std::string to = ReadFile(files_, edit.other);
    if (from.size() < kDiskBlockBytes || to.size() < kDiskBlockBytes) return;
    const uint64_t from_at =
        (edit.where & 0xFFFF) % (from.size() / kDiskBlockBytes) * kDiskBlockBytes;
    const uint64_t to_at = (edit.where >> 16) % (to.size() / kDiskBlockBytes) * kDiskBlockBytes;
    Write(edit.path, from_at, std::string_view(to).substr(to_at, kDiskBlockBytes));
    Write(edit.other, to_at, std::string_view(from).substr(from_at, kDiskBlockBytes));
  }

  void Copy(const std::string& from, const std::string& to) {
    const std::string bytes = ReadFile(files_, from);
    Truncate(to, 0);
    Write(to, 0, bytes);
  }

  // A segment takes another number (any, when there are bytes for one); others another's name.
  std::string NewName(const Edit& edit) const {
    if (!edit.path.ends_with(".seg")) return edit.other;
    uint64_t number = edit.where % 16;
    if (edit.bytes.size() >= sizeof(number)) {
      number = format::LoadLittle<uint64_t>(AsBytes(edit.bytes).data());
    }
    return db::SegmentPath(store_path_, number);
  }

  void ChangeSlot(const Edit& edit) {
    const std::string path = db::SlotFilePath(store_path_);
    const std::string bytes = ReadFile(files_, path);
    const uint64_t at = (edit.where & 1) * format::kSlotBytes;
    if (bytes.size() < at + format::kSlotBytes) return;
    auto slot = format::DecodeSlot(AsBytes(bytes).subspan(at, format::kSlotBytes));
    if (!slot.ok()) return;
    uint64_t number = 0;
    std::memcpy(&number, edit.bytes.data(), std::min(sizeof(number), edit.bytes.size()));
    const std::array<uint64_t*, 7> fields = {&slot->sequence,
                                             &slot->epoch,
                                             &slot->durable_commit,
                                             &slot->durable_place.segment,
                                             &slot->durable_place.offset_bytes,
                                             &slot->catalog_place.segment,
                                             &slot->catalog_place.offset_bytes};
    *fields[(edit.where >> 1) % fields.size()] = number;
    slot->clean = (edit.where & 0x100) != 0;
    if ((edit.where & 0x200) != 0) slot->durable_place.length_bytes = edit.where >> 12;
    result_->slot_forged = true;
    const auto encoded = format::EncodeSlot(*slot);
    Write(path, at, AsText(encoded));
  }

  // Bytes of a frame's payload, or a number of its header.
  void Forge(const Edit& edit) {
    std::vector<StoredFrame> frames = FindFrames(files_, store_path_);
    if (frames.empty() || edit.bytes.empty()) return;
    const size_t which = (edit.where & 0xFFF) % frames.size();
    StoredFrame& frame = frames[which];
    const uint32_t target = edit.where >> 12;
    if (target % 8 == 0) {
      uint64_t number = 0;
      std::memcpy(&number, edit.bytes.data(), std::min(sizeof(number), edit.bytes.size()));
      format::FrameHeader& header = frame.header;
      const std::array<uint64_t*, 6> fields = {
          &header.epoch,           &header.commit,           &header.previous_commit,
          &header.durable_through, &header.previous.segment, &header.previous.offset_bytes};
      *fields[target / 8 % fields.size()] = number;
    } else {
      if (frame.payload.empty()) return;
      const uint64_t at = target / 8 * 8 % frame.payload.size();
      const size_t size = std::min<size_t>(edit.bytes.size(), frame.payload.size() - at);
      std::copy_n(edit.bytes.begin(), size, frame.payload.begin() + static_cast<ptrdiff_t>(at));
    }
    result_->forged = true;
    WriteForged(files_, store_path_, std::move(frames), which);
  }

  io::FileSystem* const files_;
  const std::string store_path_;
  EditResult* result_ = nullptr;
};

}  // namespace

EditResult ApplyEdits(io::FileSystem* files, const std::string& store_path, Input* input) {
  EditResult result;
  const uint64_t bytes_before = BytesOf(files, store_path);
  Editor editor(files, store_path);
  for (int i = 0; i < kEditsMax && !input->empty(); ++i) {
    const std::vector<std::string> paths = FilesOf(files, store_path);
    if (paths.empty()) break;
    Edit edit;
    edit.kind = static_cast<EditKind>(input->Byte() % static_cast<uint8_t>(EditKind::kCount));
    const uint8_t file = input->Byte();
    edit.path = paths[file % paths.size()];
    edit.where = input->Take<uint32_t>();
    edit.other = paths[(file + edit.where % 7) % paths.size()];
    edit.bytes = input->Text(input->Below(kBytesMax + 1));
    edit.size = SizeOf(files, edit.path);
    editor.Apply(edit, &result);
  }
  result.input_bytes = std::max(bytes_before, BytesOf(files, store_path));
  return result;
}

std::string EncodeEdit(EditKind kind, uint8_t file, uint32_t where, std::string_view bytes) {
  std::string edit(6, '\0');
  edit[0] = static_cast<char>(kind);
  edit[1] = static_cast<char>(file);
  format::StoreLittle(reinterpret_cast<std::byte*>(edit.data()) + 2, where);
  edit.push_back(static_cast<char>(bytes.size()));
  edit.append(bytes);
  return edit;
}

}  // namespace stepwell::fuzz
