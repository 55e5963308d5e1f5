// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/temporary.h"

#include <utility>

#include "db/export/orbax/folder.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "io/guard.h"

namespace stepwell::db {

ExportTemporary::ExportTemporary(io::FileSystem* file_system, std::string path)
    : file_system_(file_system),
      path_(std::move(path)),
      temporary_(StrCat(path_, ".stepwell-tmp")) {}

Result<std::unique_ptr<ExportTemporary>> ExportTemporary::Create(io::FileSystem* file_system,
                                                                 std::string path) {
  std::unique_ptr<ExportTemporary> temporary(new ExportTemporary(file_system, std::move(path)));
  STEPWELL_RETURN_IF_ERROR(temporary->CheckFree());
  STEPWELL_RETURN_IF_ERROR(CheckIsDirectory(file_system, ParentOf(temporary->path_)));
  STEPWELL_RETURN_IF_ERROR(temporary->Claim());
  return temporary;
}

ExportTemporary::~ExportTemporary() {
  if (file_ == nullptr) return;
  io::Quietly([this] {
    file_system_->Remove(temporary_).IgnoreError("the next export to there takes it over");
  });
  ForgetForkDescriptors(this);
}

Status ExportTemporary::Taken() const {
  return AlreadyExistsError(StrCat(path_, " is there already; delete it, or choose another"));
}

Status ExportTemporary::CheckFree() const {
  const auto there = file_system_->Stat(path_);
  if (there.ok()) return Taken();
  return there.status().code() == StatusCode::kNotFound ? OkStatus() : there.status();
}

Status ExportTemporary::Busy() const {
  return UnavailableError(StrCat(path_, ": another export is making it"));
}

// What is there is not written to: it may have a second name.
Status ExportTemporary::Claim() {
  const io::OpenOptions anew = {.write = true, .create = true, .exclusive = true};
  auto file = file_system_->Open(temporary_, anew);
  if (file.status().code() == StatusCode::kAlreadyExists) {
    STEPWELL_ASSIGN_OR_RETURN(const auto old, file_system_->Open(temporary_, {.write = true}));
    STEPWELL_ASSIGN_OR_RETURN(const bool dead, LockNamed(file_system_, old.get()));
    if (!dead) return Busy();
    STEPWELL_RETURN_IF_ERROR(file_system_->Remove(temporary_));
    file = file_system_->Open(temporary_, anew);
    if (file.status().code() == StatusCode::kAlreadyExists) return Busy();
  }
  if (!file.ok()) return file.status();
  file_ = *std::move(file);  // made here, so removed when the lock fails
  STEPWELL_ASSIGN_OR_RETURN(const bool ours, LockNamed(file_system_, file_.get()));
  if (!ours) {  // another export took it for a dead one's
    file_.reset();
    return Busy();
  }
  CloseInForkedChild(this, file_->descriptor());
  return OkStatus();
}

// A link, unlike a rename, replaces nothing that appeared meanwhile; some file systems have none.
Status ExportTemporary::GiveName() const {
  const Status linked = file_system_->Link(temporary_, path_);
  if (linked.ok()) {
    file_system_->Remove(temporary_).IgnoreError("it is complete; the name goes with the next one");
    return OkStatus();
  }
  if (linked.code() == StatusCode::kAlreadyExists) return Taken();
  STEPWELL_RETURN_IF_ERROR(CheckFree());
  return file_system_->Rename(temporary_, path_);
}

Result<uint64_t> ExportTemporary::Commit() {
  STEPWELL_RETURN_IF_ERROR(file_->Sync());
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_->Info());
  STEPWELL_RETURN_IF_ERROR(GiveName());
  ForgetForkDescriptors(this);
  file_.reset();
  if (Status status = file_system_->SyncDirectory(ParentOf(path_)); !status.ok()) {
    file_system_->Remove(path_).IgnoreError("best effort: the error says that it failed");
    return status;
  }
  return info.size_bytes;
}

}  // namespace stepwell::db
