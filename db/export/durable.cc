// SPDX-License-Identifier: Apache-2.0
#include "db/export/durable.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <random>
#include <utility>

#include "db/layout.h"
#include "format/orbax/orbax_files.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// Both begin names that are nobody else's. Orbax takes a name with its mark for nothing.
constexpr std::string_view kOwn = ".stepwell-";
constexpr std::string_view kTrashMark = ".removed";
constexpr std::string_view kFileMark = ".stepwell-tmp";
constexpr int kDepthMax = 80;

std::string Fresh(const std::string& folder, std::string_view mark) {
  std::random_device random;
  char name[32];
  std::snprintf(name, sizeof(name), "%016" PRIx64, (uint64_t{random()} << 32) | random());
  return StrCat(folder, "/", kOwn, name, mark);
}

std::string Trash(const std::string& folder) {
  return Fresh(folder, StrCat(kTrashMark, format::orbax::kTemporaryMark));
}

// Also a symbolic link to nothing.
Result<bool> IsThere(io::FileSystem* file_system, const std::string& path) {
  const auto info = file_system->Stat(path);
  if (info.ok() || IsLink(path)) return true;
  if (info.status().code() == StatusCode::kNotFound) return false;
  return info.status();
}

// A new file, locked, so that no sweep removes it. `path`: its own, also after an error.
Result<std::unique_ptr<io::File>> NewFileIn(io::FileSystem* file_system, const std::string& folder,
                                            std::string* path) {
  constexpr int kTries = 50;  // a sweep may have it between the two calls
  for (int i = 0; i < kTries; ++i) {
    *path = Fresh(folder, kFileMark);
    STEPWELL_ASSIGN_OR_RETURN(
        auto file, file_system->Open(*path, {.write = true, .create = true, .exclusive = true}));
    STEPWELL_ASSIGN_OR_RETURN(const bool ours, LockNamed(file_system, file.get()));
    if (ours) return file;
    file_system->Remove(*path).IgnoreError("the sweep removes it");
  }
  return UnavailableError(StrCat(folder, ": other processes remove each new file"));
}

Status Unknown(const Status& status) {
  return {StatusCode::kOutcomeUnknown,
          StrCat(status.message(), "; whether the change survives a power cut is not known"),
          status.os_error()};
}

bool IsTaken(const Status& status) {
  const int error = status.os_error();
  return error == ENOTEMPTY || error == EEXIST || error == ENOTDIR || error == EISDIR;
}

Status SyncBelow(io::FileSystem* file_system, const std::string& path, int depth) {
  if (IsLink(path)) return OkStatus();
  const auto names = file_system->List(path);
  if (!names.ok()) {
    if (names.status().os_error() != ENOTDIR) return names.status();
    STEPWELL_ASSIGN_OR_RETURN(const auto file, file_system->Open(path, {}));
    return file->Sync();
  }
  if (depth == 0) return InvalidArgumentError(StrCat(path, ": the directories are too deep"));
  for (const std::string& name : *names) {
    STEPWELL_RETURN_IF_ERROR(SyncBelow(file_system, StrCat(path, "/", name), depth - 1));
  }
  return file_system->SyncDirectory(path);
}

}  // namespace

Status PathTakenError(const std::string& path) {
  return AlreadyExistsError(StrCat(path, " is there already; delete it, or choose another"));
}

Status SyncTree(io::FileSystem* file_system, const std::string& path) {
  return SyncBelow(file_system, path, kDepthMax);
}

DurableFolder::DurableFolder(io::FileSystem* file_system, std::unique_ptr<ExportFolder> folder,
                             bool replace)
    : file_system_(file_system),
      whole_sync_(file_system->TakeWholeSync(folder->temporary())),
      folder_(std::move(folder)),
      path_(folder_->path()),
      temporary_(folder_->temporary()),
      replace_(replace) {}

Result<std::unique_ptr<DurableFolder>> DurableFolder::Create(io::FileSystem* file_system,
                                                             std::string path, bool replace,
                                                             uint32_t file_mode) {
  STEPWELL_ASSIGN_OR_RETURN(
      auto folder, ExportFolder::Create(file_system, std::move(path),
                                        {.file_mode = file_mode, .may_be_there = replace}));
  return std::unique_ptr<DurableFolder>(new DurableFolder(file_system, std::move(folder), replace));
}

// The one way of the new to the path where the old is: at one instant, or by two renames where the
// file system cannot. The old is in the temporary directory then, and goes with it.
Status DurableFolder::PlaceInPlaceOf(const std::string& made) {
  const Status exchanged = file_system_->Exchange(made, path_);
  if (exchanged.ok()) {
    exchanged_ = true;
    aside_ = made;
    return OkStatus();
  }
  if (exchanged.code() != StatusCode::kUnimplemented) return exchanged;
  const std::string aside = StrCat(made, ".replaced");
  STEPWELL_RETURN_IF_ERROR(file_system_->Rename(path_, aside));
  if (const Status placed = file_system_->Rename(made, path_); !placed.ok()) {
    file_system_->Rename(aside, path_).IgnoreError("the error says that it failed");
    return placed;
  }
  aside_ = aside;
  return OkStatus();
}

Status DurableFolder::Place(const std::string& made) {
  constexpr int kTries = 3;  // the path may come and go meanwhile
  Status status;
  for (int i = 0; i < kTries; ++i) {
    STEPWELL_ASSIGN_OR_RETURN(const bool is_there, IsThere(file_system_, path_));
    if (is_there && !replace_) return PathTakenError(path_);
    status = is_there ? PlaceInPlaceOf(made) : file_system_->Rename(made, path_);
    if (status.ok()) return status;
    const bool came_or_went = IsTaken(status) || status.code() == StatusCode::kNotFound;
    if (!came_or_went) return status;
  }
  return IsTaken(status) ? PathTakenError(path_) : status;
}

void DurableFolder::UndoPlace(const std::string& made) {
  Status status;
  if (exchanged_) {
    status = file_system_->Exchange(made, path_);
  } else {
    status = file_system_->Rename(path_, made);
    if (status.ok() && !aside_.empty()) status = file_system_->Rename(aside_, path_);
  }
  status.IgnoreError("the outcome is unknown either way");
}

// By one call, where that is sure: a small checkpoint has a dozen files.
Status DurableFolder::SyncMade(const std::string& made) {
  // A failure may be of another program's file, and of long ago; the files' own syncs tell.
  if (whole_sync_ != nullptr && whole_sync_->Sync().ok()) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(SyncTree(file_system_, made));
  return file_system_->SyncDirectory(temporary_);
}

Status DurableFolder::Commit(std::string_view inner) {
  if (folder_ == nullptr) return FailedPreconditionError(StrCat(path_, " is made already"));
  const std::string made = folder_->Now(inner);
  STEPWELL_RETURN_IF_ERROR(SyncMade(made));
  STEPWELL_RETURN_IF_ERROR(Place(made));
  if (const Status synced = file_system_->SyncDirectory(ParentOf(path_)); !synced.ok()) {
    UndoPlace(made);
    return Unknown(synced);
  }
  // Removes what was replaced.
  folder_.reset();
  return OkStatus();
}

Status RemoveDurably(io::FileSystem* file_system, const std::string& path) {
  const std::string parent = ParentOf(path);
  const std::string trash = Trash(parent);
  STEPWELL_RETURN_IF_ERROR(file_system->Rename(path, trash));
  if (const Status synced = file_system->SyncDirectory(parent); !synced.ok()) {
    file_system->Rename(trash, path).IgnoreError("the outcome is unknown either way");
    return Unknown(synced);
  }
  RemoveTree(file_system, trash);
  return OkStatus();
}

Status WriteDurably(io::FileSystem* file_system, const std::string& path, std::string_view bytes,
                    uint32_t mode) {
  const std::string parent = ParentOf(path);
  std::string fresh;
  const auto write = [&]() -> Status {
    STEPWELL_ASSIGN_OR_RETURN(const auto file, NewFileIn(file_system, parent, &fresh));
    if (mode != 0) STEPWELL_RETURN_IF_ERROR(file_system->SetMode(fresh, mode));
    if (!bytes.empty()) STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
    STEPWELL_RETURN_IF_ERROR(file->Sync());
    return file_system->Rename(fresh, path);
  };
  if (Status status = write(); !status.ok()) {
    file_system->Remove(fresh).IgnoreError("Sweep removes it");
    return status;
  }
  const Status synced = file_system->SyncDirectory(parent);
  return synced.ok() ? synced : Unknown(synced);
}

Status MoveDurably(io::FileSystem* file_system, const std::string& from, const std::string& to) {
  STEPWELL_ASSIGN_OR_RETURN(const bool is_there, IsThere(file_system, to));
  if (is_there) return PathTakenError(to);
  if (Status status = file_system->Rename(from, to); !status.ok()) {
    return IsTaken(status) ? PathTakenError(to) : status;
  }
  Status synced = file_system->SyncDirectory(ParentOf(to));
  if (synced.ok()) synced = file_system->SyncDirectory(ParentOf(from));
  if (synced.ok()) return synced;
  file_system->Rename(to, from).IgnoreError("the outcome is unknown either way");
  return Unknown(synced);
}

void Sweep(io::FileSystem* file_system, const std::string& folder, bool ours) {
  const auto names = file_system->List(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::string path = StrCat(folder, "/", name);
    if (name.starts_with(kOwn) &&
        name.ends_with(StrCat(kTrashMark, format::orbax::kTemporaryMark))) {
      RemoveTree(file_system, path);
    } else if (name.ends_with(format::orbax::kTemporaryMark)) {
      ExportFolder::RemoveAbandoned(file_system, path);
      if (ours) file_system->RemoveDirectory(path).IgnoreError("it is not empty");
    } else if (name.starts_with(kOwn) && name.ends_with(kFileMark)) {
      const auto file = file_system->Open(path, {.write = true});
      if (!file.ok()) continue;
      const auto dead = LockNamed(file_system, file->get());
      if (dead.ok() && *dead) file_system->Remove(path).IgnoreError("the next sweep tries again");
    }
  }
}

}  // namespace stepwell::db
