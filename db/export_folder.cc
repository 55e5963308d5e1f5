// SPDX-License-Identifier: Apache-2.0
#include "db/export_folder.h"

#include <cerrno>
#include <utility>

#include "db/layout.h"
#include "db/lock.h"
#include "format/orbax/orbax_files.h"

namespace stepwell::db {
namespace {

// Says that a temporary directory is an export's, and by its lock whether that lives. Readers of
// checkpoints do not mind it, should a crash leave it behind the rename.
constexpr std::string_view kClaimName = "stepwell-export.lock";
constexpr int kDepthMax = 8;

// Best effort; never follows a link. Everything that exports make is less deep.
void RemoveTree(io::FileSystem* file_system, const std::string& path, int depth) {
  const Status removed = file_system->Remove(path);
  if (removed.ok() || depth > kDepthMax) return;
  if (removed.os_error() != EISDIR && removed.os_error() != EPERM) return;
  const auto names = file_system->List(path);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    RemoveTree(file_system, StrCat(path, "/", name), depth + 1);
  }
  file_system->RemoveDirectory(path).IgnoreError("best effort: the next export tries again");
}

// Who may read a file may look into its directory.
uint32_t DirectoryMode(uint32_t file_mode) { return file_mode | ((file_mode & 0444) >> 2); }

}  // namespace

ExportFolder::ExportFolder(io::FileSystem* file_system, std::string path, uint32_t file_mode)
    : file_system_(file_system),
      path_(std::move(path)),
      parent_(ParentOf(path_)),
      temporary_(StrCat(path_, format::orbax::kTemporaryMark)),
      file_mode_(file_mode) {}

Result<std::unique_ptr<ExportFolder>> ExportFolder::Create(io::FileSystem* file_system,
                                                           std::string path, uint32_t file_mode) {
  std::unique_ptr<ExportFolder> folder(new ExportFolder(file_system, std::move(path), file_mode));
  STEPWELL_RETURN_IF_ERROR(folder->CheckFree());
  const auto parent = file_system->Stat(folder->parent_);
  if (!parent.ok() || !parent->is_directory) {
    return InvalidArgumentError(
        StrCat(folder->parent_, ": no such directory to export to; make it"));
  }
  Status status = folder->ClaimTemporary();
  if (!status.ok()) {
    folder->committed_ = folder->claim_ == nullptr;  // then nothing in it is ours
    return status;
  }
  STEPWELL_ASSIGN_OR_RETURN(folder->own_file_, folder->claim_->Info());
  return folder;
}

ExportFolder::~ExportFolder() {
  if (!committed_) RemoveTree(file_system_, temporary_, 0);
  ForgetForkDescriptors(this);
}

Status ExportFolder::CheckFree() const {
  const auto there = file_system_->Stat(path_);
  if (there.ok()) {
    return AlreadyExistsError(StrCat(path_, " is there already; delete it, or choose another"));
  }
  return there.status().code() == StatusCode::kNotFound ? OkStatus() : there.status();
}

// Makes the temporary directory and the locked file in it. Of one that is there: an empty one, and
// one whose claim nobody holds, are an export's that died.
Status ExportFolder::ClaimTemporary() {
  const std::string claim = Now(kClaimName);
  const Status made = file_system_->CreateDirectory(temporary_);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  if (!made.ok()) {
    STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system_->List(temporary_));
    const auto old = file_system_->Open(claim, {.write = true});
    if (!names.empty() && !old.ok()) {
      return AlreadyExistsError(
          StrCat(temporary_,
                 " is there, of a save or export that is under way or died; if no process "
                 "works on it, delete it"));
    }
    if (old.ok()) {
      STEPWELL_ASSIGN_OR_RETURN(const bool dead, (*old)->TryLock(io::LockKind::kExclusive));
      if (!dead) return UnavailableError(StrCat(path_, ": another export is making it"));
      for (const std::string& name : names) {
        if (name != kClaimName) RemoveTree(file_system_, Now(name), 1);
      }
      file_system_->Remove(claim).IgnoreError("creating it anew says so");
    }
  }
  auto opened = file_system_->Open(claim, {.write = true, .create = true, .exclusive = true});
  if (!opened.ok()) {
    if (made.ok()) file_system_->RemoveDirectory(temporary_).IgnoreError("it is empty");
    return opened.status();
  }
  auto file = *std::move(opened);
  STEPWELL_ASSIGN_OR_RETURN(const bool locked, file->TryLock(io::LockKind::kExclusive));
  if (!locked) return UnavailableError(StrCat(path_, ": another export is making it"));
  claim_ = std::move(file);
  CloseInForkedChild(this, claim_->descriptor());
  if (file_mode_ != 0) {
    STEPWELL_RETURN_IF_ERROR(file_system_->SetMode(claim, file_mode_));
    STEPWELL_RETURN_IF_ERROR(file_system_->SetMode(temporary_, DirectoryMode(file_mode_) | 0700));
  }
  return OkStatus();
}

Status ExportFolder::MakeDirectory(std::string_view name) {
  STEPWELL_RETURN_IF_ERROR(file_system_->CreateDirectory(Now(name)));
  directories_.emplace_back(name);
  if (file_mode_ == 0) return OkStatus();
  return file_system_->SetMode(Now(name), DirectoryMode(file_mode_) | 0700);
}

Result<std::unique_ptr<io::File>> ExportFolder::NewFile(std::string_view name) {
  return file_system_->Open(Now(name), {.write = true, .create = true, .exclusive = true});
}

Status ExportFolder::Finish(io::File* file) {
  if (file_mode_ != 0) STEPWELL_RETURN_IF_ERROR(file_system_->SetMode(file->path(), file_mode_));
  STEPWELL_RETURN_IF_ERROR(file->Sync());
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
  written_bytes_ += info.size_bytes;
  return OkStatus();
}

Status ExportFolder::Write(std::string_view name, std::string_view bytes) {
  STEPWELL_ASSIGN_OR_RETURN(const auto file, NewFile(name));
  if (!bytes.empty()) STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
  return Finish(file.get());
}

Status ExportFolder::Commit() {
  for (auto it = directories_.rbegin(); it != directories_.rend(); ++it) {
    STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(Now(*it)));
  }
  STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(temporary_));
  STEPWELL_RETURN_IF_ERROR(CheckFree());
  STEPWELL_RETURN_IF_ERROR(file_system_->Rename(temporary_, path_));
  committed_ = true;
  if (Status status = file_system_->SyncDirectory(parent_); !status.ok()) {
    RemoveTree(file_system_, path_, 0);
    return status;
  }
  file_system_->Remove(StrCat(path_, "/", kClaimName)).IgnoreError("it does no harm");
  claim_.reset();
  return OkStatus();
}

}  // namespace stepwell::db
