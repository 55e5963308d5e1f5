// SPDX-License-Identifier: Apache-2.0
#include "db/import/source.h"

#include <algorithm>

#include "format/orbax/ocdbt.h"
#include "format/orbax/ocdbt_read.h"
#include "format/orbax/python_text.h"
#include "io/small_file.h"

namespace stepwell::db::import {
namespace {

constexpr uint64_t kManifestBytesMax = uint64_t{256} << 20;
constexpr uint64_t kNodeBytesMax = uint64_t{1} << 30;
constexpr uint64_t kSmallValueBytesMax = uint64_t{16} << 20;
// Keys share their beginnings on disk, so that few bytes there may be many here.
constexpr size_t kIndexBytesMax = size_t{4} << 30;

}  // namespace

Result<std::unique_ptr<ValueIndex>> ValueIndex::Open(io::FileSystem* file_system,
                                                     const std::string& folder, bool is_ocdbt) {
  std::unique_ptr<ValueIndex> index(new ValueIndex(file_system, folder, is_ocdbt));
  if (is_ocdbt) STEPWELL_RETURN_IF_ERROR(index->Fill());
  return index;
}

uint32_t ValueIndex::FileOf(const std::string& path) {
  const auto [found, is_new] = files_.emplace(path, static_cast<uint32_t>(paths_.size()));
  if (is_new) paths_.push_back(StrCat(folder_, "/", path));
  return found->second;
}

Status ValueIndex::Fill() {
  const std::string manifest_path = StrCat(folder_, "/", format::orbax::kOcdbtManifestName);
  Result<std::string> manifest = io::ReadSmallFile(file_system_, manifest_path, kManifestBytesMax);
  if (manifest.status().code() == StatusCode::kNotFound) {
    return DataLossError(StrCat(manifest_path,
                                " is missing: the checkpoint is damaged, or its save was never "
                                "finished"));
  }
  if (!manifest.ok()) return manifest.status();
  const auto newest = format::orbax::NewestOcdbtManifest(
      *std::move(manifest), [&] { return file_system_->List(folder_); },
      [&](const std::string& name) {
        return io::ReadSmallFile(file_system_, StrCat(folder_, "/", name), kManifestBytesMax);
      });
  if (!newest.ok()) return newest.status().WithContext(manifest_path);
  // Nodes of one file mostly lie together: it stays open.
  std::string open_path;
  std::unique_ptr<io::File> open_file;
  const auto read = [&](const std::string& path, uint64_t offset_bytes,
                        uint64_t length_bytes) -> Result<std::string> {
    STEPWELL_RETURN_IF_ERROR(format::orbax::CheckOcdbtPath(path));
    const std::string full = StrCat(folder_, "/", path);
    if (open_file == nullptr || open_path != full) {
      Result<std::unique_ptr<io::File>> file = file_system_->Open(full, {});
      if (file.status().code() == StatusCode::kNotFound) {
        return DataLossError(StrCat(full, " is missing; it has nodes of the database"));
      }
      if (!file.ok()) return file.status();
      open_file = *std::move(file);
      open_path = full;
    }
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, open_file->Info());
    if (length_bytes > kNodeBytesMax || offset_bytes > info.size_bytes ||
        length_bytes > info.size_bytes - offset_bytes) {
      return DataLossError(StrCat(full, ": no node of ", length_bytes, " bytes at ", offset_bytes,
                                  " in a file of ", info.size_bytes));
    }
    return io::ReadRange(open_file.get(), offset_bytes, length_bytes);
  };
  const auto visit = [&](std::string_view key, const format::orbax::OcdbtValue& value) -> Status {
    Entry entry;
    entry.key_offset = text_.size();
    entry.key_bytes = static_cast<uint32_t>(key.size());
    text_.append(key);
    if (value.is_inline) {
      entry.offset_bytes = text_.size();
      entry.length_bytes = value.inline_value.size();
      text_.append(value.inline_value);
    } else {
      STEPWELL_RETURN_IF_ERROR(format::orbax::CheckOcdbtPath(value.path));
      entry.file = FileOf(std::string(value.path));
      entry.offset_bytes = value.offset_bytes;
      entry.length_bytes = value.length_bytes;
    }
    entries_.push_back(entry);
    if (text_.size() + entries_.size() * sizeof(Entry) > kIndexBytesMax) {
      return UnimplementedError(
          StrCat("a database of more than ", kIndexBytesMax >> 30, " GiB of keys"));
    }
    return OkStatus();
  };
  return format::orbax::WalkOcdbt(AsBytes(newest->bytes), {}, read, visit)
      .WithContext(StrCat(folder_, "/", newest->name));
}

Result<std::optional<ValuePlace>> ValueIndex::Find(std::string_view key) {
  ValuePlace place;
  if (is_ocdbt_) {
    const auto found = std::lower_bound(
        entries_.begin(), entries_.end(), key,
        [this](const Entry& entry, std::string_view wanted) { return KeyOf(entry) < wanted; });
    if (found == entries_.end() || KeyOf(*found) != key) return std::optional<ValuePlace>();
    place = {found->file, found->offset_bytes, found->length_bytes, {}};
    if (place.file == ValuePlace::kInline) {
      place.inline_value = std::string_view(text_).substr(found->offset_bytes, found->length_bytes);
      place.offset_bytes = 0;
    }
    return std::optional(place);
  }
  STEPWELL_RETURN_IF_ERROR(format::orbax::CheckOcdbtPath(key));
  STEPWELL_ASSIGN_OR_RETURN(const auto info,
                            io::StatIfThere(file_system_, StrCat(folder_, "/", key)));
  if (!info || info->is_directory) {
    if (!files_.contains(std::string(key))) return std::optional<ValuePlace>();
    // It was there at a look before: the checkpoint is being removed, and this is no fill value.
    return DataLossError(StrCat(folder_, "/", key, " is missing; it was there before"));
  }
  place.file = FileOf(std::string(key));
  place.length_bytes = info->size_bytes;
  return std::optional(place);
}

Result<std::string> ValueIndex::Read(const ValuePlace& place) {
  if (place.file == ValuePlace::kInline) return std::string(place.inline_value);
  if (place.length_bytes > kSmallValueBytesMax) {
    return DataLossError(StrCat(Describe(place), ": ", place.length_bytes, " bytes"));
  }
  Result<std::unique_ptr<io::File>> file = file_system_->Open(paths_[place.file], {});
  if (file.status().code() == StatusCode::kNotFound) {
    return DataLossError(StrCat(paths_[place.file], " is missing"));
  }
  if (!file.ok()) return file.status();
  STEPWELL_ASSIGN_OR_RETURN(std::string bytes,
                            io::ReadRange(file->get(), place.offset_bytes, place.length_bytes));
  if (bytes.size() != place.length_bytes) {
    return DataLossError(StrCat(Describe(place), ": the file ends early"));
  }
  return bytes;
}

const ChunkDigest* ValueIndex::DigestOf(const ValuePlace& place) const {
  if (digests_ == nullptr || place.file == ValuePlace::kInline) return nullptr;
  const auto data = digests_->find(paths_[place.file]);
  if (data == digests_->end()) return nullptr;
  const auto& chunks = data->second.chunks;
  const auto found = std::lower_bound(
      chunks.begin(), chunks.end(), place.offset_bytes,
      [](const ChunkDigest& chunk, uint64_t offset) { return chunk.offset_bytes < offset; });
  if (found == chunks.end() || found->offset_bytes != place.offset_bytes) return nullptr;
  return &*found;
}

std::string ValueIndex::Describe(const ValuePlace& place) const {
  if (place.file == ValuePlace::kInline) return StrCat(folder_, "/manifest.ocdbt (inline)");
  return StrCat(paths_[place.file], ": offset ", place.offset_bytes);
}

std::string ValueIndex::DescribeAbsent(std::string_view key) const {
  const std::string name = format::orbax::Printable(key);
  if (is_ocdbt_) return StrCat("key \"", name, "\" is missing in ", folder_, "/manifest.ocdbt");
  return StrCat(folder_, "/", name, " is missing");
}

}  // namespace stepwell::db::import
