// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "db/export/durable.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "format/orbax/orbax_files.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

// Says that a temporary directory is an export's, and by its lock whether that lives. Readers of
// checkpoints do not mind it, should a crash leave it behind the rename.
constexpr std::string_view kClaimName = "stepwell-export.lock";
constexpr size_t kNameBytesMax = 255;

// All but the claim; an error unless all of it is gone.
Status RemoveContents(io::FileSystem* file_system, const std::string& folder) {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system->List(folder));
  if (names.empty() || (names.size() == 1 && names[0] == kClaimName)) return OkStatus();
  // Where an export took its last rename back because its sync failed, that rename may be durable.
  // A power cut must not bring back the name of a finished export without its contents.
  STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(ParentOf(folder)));
  for (const std::string& name : names) {
    if (name != kClaimName) RemoveTree(file_system, StrCat(folder, "/", name));
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto left, file_system->List(folder));
  for (const std::string& name : left) {
    if (name != kClaimName) return UnavailableError(StrCat(folder, "/", name, " stays"));
  }
  // Before the claim goes: a power cut must not bring back what was in it without it.
  return file_system->SyncDirectory(folder);
}

// The claim last, and only when nothing else is left: without it the directory has no owner, and
// no export would touch it again.
void RemoveClaimed(io::FileSystem* file_system, const std::string& folder) {
  if (!RemoveContents(file_system, folder).ok()) return;  // the next export tries again
  file_system->Remove(StrCat(folder, "/", kClaimName)).IgnoreError("the next export tries again");
  file_system->RemoveDirectory(folder).IgnoreError("the next export tries again");
}

Status CheckName(const std::string& path) {
  const std::string_view name = std::string_view(path).substr(path.rfind('/') + 1);
  constexpr std::string_view kMark = format::orbax::kTemporaryMark;
  if (name.size() + kMark.size() > kNameBytesMax) {
    return InvalidArgumentError(StrCat(path, ": the name of an export has at most ",
                                       kNameBytesMax - kMark.size(), " bytes"));
  }
  if (name.find(kMark) == std::string_view::npos) return OkStatus();
  return InvalidArgumentError(
      StrCat(path, ": Orbax takes a name with \"", kMark, "\" for a save that was not finished"));
}

Status Busy(const std::string& path) {
  return UnavailableError(StrCat(path, ": another export is making it"));
}

// A reader of a file may look into its directory.
uint32_t DirectoryMode(uint32_t file_mode) { return file_mode | ((file_mode & 0444) >> 2); }

}  // namespace

Status CheckOutside(io::FileSystem* file_system, const std::string& store,
                    const std::string& destination) {
  constexpr int kLevelsMax = 1000;
  const auto found = file_system->Stat(store);
  // A run that lies elsewhere: nothing of this machine is in it.
  if (found.status().code() == StatusCode::kNotFound) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo root, found);
  const auto there = file_system->Stat(destination);
  std::string folder = there.ok() && there->is_directory ? destination : ParentOf(destination);
  io::FileInfo below;
  for (int depth = 0; depth < kLevelsMax; ++depth) {
    const auto info = file_system->Stat(folder);
    if (!info.ok() || (depth > 0 && io::IsSameFile(*info, below)))
      break;  // above the topmost: itself
    if (io::IsSameFile(*info, root)) {
      return InvalidArgumentError(StrCat(destination, " is inside the store; export elsewhere"));
    }
    below = *info;
    folder += "/..";
  }
  return OkStatus();
}

uint32_t ExportFileMode(StoreReader& store, uint32_t wanted) {
  if (wanted != 0) return wanted;
  const auto slot = store.file_system()->Stat(SlotFilePath(store.path()));
  return slot.ok() && (slot->mode & 077) == 0 ? 0600 : 0;
}

// Everything that exports make is less deep.
void RemoveTree(io::FileSystem* file_system, const std::string& path, int depth_max) {
  const Status removed = file_system->Remove(path);
  if (removed.ok() || depth_max < 0) return;
  if (removed.os_error() != EISDIR && removed.os_error() != EPERM) return;
  const auto names = file_system->List(path);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    RemoveTree(file_system, StrCat(path, "/", name), depth_max - 1);
  }
  file_system->RemoveDirectory(path).IgnoreError("best effort: the next export tries again");
}

Result<bool> LockNamed(io::FileSystem* file_system, io::File* claim) {
  STEPWELL_ASSIGN_OR_RETURN(const bool locked, claim->TryLock(io::LockKind::kExclusive));
  return locked ? io::IsNamed(file_system, claim) : false;
}

Status CheckIsDirectory(io::FileSystem* file_system, const std::string& path) {
  const auto info = file_system->Stat(path);
  if (info.ok() && info->is_directory) return OkStatus();
  if (!info.ok() && info.status().code() != StatusCode::kNotFound) return info.status();
  return InvalidArgumentError(StrCat(path, ": no such directory to export to; make it"));
}

ExportFolder::ExportFolder(io::FileSystem* file_system, std::string path,
                           ExportFolderOptions options)
    : file_system_(file_system),
      path_(std::move(path)),
      parent_(ParentOf(path_)),
      temporary_(StrCat(path_, format::orbax::kTemporaryMark)),
      options_(std::move(options)) {}

Result<std::unique_ptr<ExportFolder>> ExportFolder::Create(io::FileSystem* file_system,
                                                           std::string path,
                                                           ExportFolderOptions options) {
  std::unique_ptr<ExportFolder> folder(
      new ExportFolder(file_system, std::move(path), std::move(options)));
  STEPWELL_RETURN_IF_ERROR(CheckName(folder->path_));
  STEPWELL_RETURN_IF_ERROR(CheckIsDirectory(file_system, folder->parent_));
  STEPWELL_RETURN_IF_ERROR(folder->CheckFree());
  STEPWELL_RETURN_IF_ERROR(folder->ClaimTemporary());
  STEPWELL_RETURN_IF_ERROR(folder->ShowClaim());
  return folder;
}

ExportFolder::~ExportFolder() {
  io::Quietly([this] {
    if (claim_ != nullptr && !committed_) RemoveClaimed(file_system_, temporary_);
  });
  ForgetForkDescriptors(this);
}

void ExportFolder::RemoveAbandoned(io::FileSystem* file_system, const std::string& temporary) {
  const auto claim = file_system->Open(StrCat(temporary, "/", kClaimName), {.write = true});
  if (!claim.ok()) return;
  const auto dead = LockNamed(file_system, claim->get());
  if (dead.ok() && *dead) RemoveClaimed(file_system, temporary);
}

bool ExportFolder::IsClaimed(io::FileSystem* file_system, const std::string& temporary) {
  return file_system->Stat(StrCat(temporary, "/", kClaimName)).status().code() !=
         StatusCode::kNotFound;
}

Status ExportFolder::CheckFree() const {
  if (!options_.old_goes_to.empty() || options_.may_be_there) return OkStatus();
  const auto there = file_system_->Stat(path_);
  if (there.ok()) return PathTakenError(path_);
  if (there.status().code() != StatusCode::kNotFound) return there.status();
  // A symbolic link to nothing. Where the directory cannot be listed the rename notices, as it does
  // in a view, whose many steps would make each look longer.
  if (!options_.claim_becomes.empty()) return OkStatus();
  const auto names = file_system_->List(parent_);
  const std::string_view name = std::string_view(path_).substr(path_.rfind('/') + 1);
  const bool is_link = names.ok() && std::find(names->begin(), names->end(), name) != names->end();
  return is_link ? PathTakenError(path_) : OkStatus();
}

// Takes over a temporary directory that is there, and empties it unless its claim is held. An empty
// directory is taken as it is. One without a claim belongs to another program.
Status ExportFolder::TakeOver() const {
  const std::string claim = Now(kClaimName);
  const auto names = file_system_->List(temporary_);
  if (names.status().code() == StatusCode::kNotFound) return Busy(path_);
  if (!names.ok()) return names.status();
  const auto old = file_system_->Open(claim, {.write = true});
  if (old.status().code() == StatusCode::kNotFound) {
    if (names->empty()) return OkStatus();
    // It was there a moment ago: a sweep has removed it, or its owner has shown the directory.
    if (std::ranges::find(*names, kClaimName) != names->end()) return Busy(path_);
    return AlreadyExistsError(StrCat(temporary_,
                                     " is there, of a save or export that is under way or died; if "
                                     "no process works on it, delete it"));
  }
  if (!old.ok()) return old.status();
  STEPWELL_ASSIGN_OR_RETURN(const bool dead, LockNamed(file_system_, old->get()));
  if (!dead) return Busy(path_);
  STEPWELL_RETURN_IF_ERROR(RemoveContents(file_system_, temporary_));
  return file_system_->Remove(claim);
}

// A sweep takes the lock of each claim to see whether its owner lives, also of one that was made
// just now, and removes what it takes for abandoned. So a lock that is held is an owner's only if
// it stays so.
Status ExportFolder::ClaimTemporary() {
  constexpr int kTries = 50;
  constexpr std::chrono::milliseconds kInterval{4};
  for (int i = 1;; ++i) {
    Status status = TryToClaim();
    const bool may_be_a_sweep =
        status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kNotFound;
    if (!may_be_a_sweep || i == kTries) return status;
    std::this_thread::sleep_for(kInterval);
  }
}

// Makes the temporary directory and the locked file in it. Who holds the lock of the file that has
// the claim's name owns the directory: a lock of one that was replaced meanwhile is worth nothing.
Status ExportFolder::TryToClaim() {
  const Status made = file_system_->CreateDirectory(temporary_);
  if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
  if (!made.ok()) STEPWELL_RETURN_IF_ERROR(TakeOver());
  auto claim =
      file_system_->Open(Now(kClaimName), {.write = true, .create = true, .exclusive = true});
  if (claim.status().code() == StatusCode::kAlreadyExists) return Busy(path_);
  if (!claim.ok()) {
    if (made.ok()) file_system_->RemoveDirectory(temporary_).IgnoreError("it is empty");
    return claim.status();
  }
  STEPWELL_ASSIGN_OR_RETURN(const bool ours, LockNamed(file_system_, claim->get()));
  if (!ours) return Busy(path_);
  claim_ = *std::move(claim);
  // It survives a power cut if anything does that is made here.
  const bool lasts = options_.sync || !options_.synced_file.empty();
  return lasts ? file_system_->SyncDirectory(temporary_) : OkStatus();
}

Status ExportFolder::ShowClaim() {
  CloseInForkedChild(this, claim_->descriptor());
  if (options_.file_mode != 0) {
    // Whoever exports here after a crash opens the claim for writing.
    STEPWELL_RETURN_IF_ERROR(file_system_->SetMode(Now(kClaimName), options_.file_mode | 0600));
    STEPWELL_RETURN_IF_ERROR(
        file_system_->SetMode(temporary_, DirectoryMode(options_.file_mode) | 0700));
  }
  STEPWELL_ASSIGN_OR_RETURN(own_file_, claim_->Info());
  return OkStatus();
}

Status ExportFolder::MakeDirectory(std::string_view name) {
  STEPWELL_RETURN_IF_ERROR(file_system_->CreateDirectory(Now(name)));
  directories_.emplace_back(name);
  if (options_.file_mode == 0) return OkStatus();
  return file_system_->SetMode(Now(name), DirectoryMode(options_.file_mode) | 0700);
}

Result<std::unique_ptr<io::File>> ExportFolder::NewFile(std::string_view name) {
  return file_system_->Open(Now(name), {.write = true, .create = true, .exclusive = true});
}

Status ExportFolder::Finish(io::File* file) {
  if (options_.file_mode != 0)
    STEPWELL_RETURN_IF_ERROR(file_system_->SetMode(file->path(), options_.file_mode));
  const bool is_synced_file =
      !options_.synced_file.empty() &&
      (file->path() == Now(options_.synced_file) ||
       (file == claim_.get() && options_.claim_becomes == options_.synced_file));
  if (options_.sync || is_synced_file) STEPWELL_RETURN_IF_ERROR(file->Sync());
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file->Info());
  written_bytes_ += info.size_bytes;
  return OkStatus();
}

Status ExportFolder::Write(std::string_view name, std::string_view bytes) {
  digests_.push_back(DigestOf(name, bytes));
  if (name == options_.claim_becomes) {
    STEPWELL_RETURN_IF_ERROR(claim_->WriteAt(0, AsBytes(bytes)));
    return Finish(claim_.get());
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto file, NewFile(name));
  if (!bytes.empty()) STEPWELL_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
  return Finish(file.get());
}

Result<uint64_t> ExportFolder::SizeOf(std::string_view name) const {
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_system_->Stat(Now(name)));
  return info.size_bytes;
}

// At one instant, where the file system can exchange names.
Status ExportFolder::Replace() {
  const Status exchanged = file_system_->Exchange(temporary_, path_);
  if (exchanged.ok()) {
    committed_ = true;
    return file_system_->Rename(temporary_, options_.old_goes_to);
  }
  if (exchanged.code() != StatusCode::kUnimplemented && exchanged.code() != StatusCode::kNotFound) {
    return exchanged;
  }
  const Status moved = file_system_->Rename(path_, options_.old_goes_to);
  if (!moved.ok() && moved.code() != StatusCode::kNotFound) return moved;
  return MoveIntoPlace();
}

Status ExportFolder::MoveIntoPlace() {
  const Status renamed = file_system_->Rename(temporary_, path_);
  const int error = renamed.os_error();
  if (!renamed.ok() && error != ENOTEMPTY && error != EEXIST && error != ENOTDIR) return renamed;
  if (!renamed.ok()) return PathTakenError(path_);
  committed_ = true;
  return OkStatus();
}

Status ExportFolder::Commit() {
  if (!options_.claim_becomes.empty()) {
    STEPWELL_RETURN_IF_ERROR(file_system_->Rename(Now(kClaimName), Now(options_.claim_becomes)));
  }
  if (options_.sync) {
    for (auto it = directories_.rbegin(); it != directories_.rend(); ++it) {
      STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(Now(*it)));
    }
  }
  if (options_.sync || !options_.synced_file.empty()) {
    STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(temporary_));
  }
  STEPWELL_RETURN_IF_ERROR(CheckFree());
  STEPWELL_RETURN_IF_ERROR(options_.old_goes_to.empty() ? MoveIntoPlace() : Replace());
  if (Status status = options_.sync ? file_system_->SyncDirectory(parent_) : OkStatus();
      !status.ok()) {
    committed_ = !file_system_->Rename(path_, temporary_).ok();
    return status;
  }
  if (options_.claim_becomes.empty()) {
    file_system_->Remove(StrCat(path_, "/", kClaimName)).IgnoreError("it does no harm");
  }
  claim_.reset();
  return OkStatus();
}

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

Status ExportTemporary::CheckFree() const {
  const auto there = file_system_->Stat(path_);
  if (there.ok()) return PathTakenError(path_);
  return there.status().code() == StatusCode::kNotFound ? OkStatus() : there.status();
}

// An existing file is not written to, because it may have a second name.
Status ExportTemporary::Claim() {
  const io::FileOpenOptions anew = {.write = true, .create = true, .exclusive = true};
  auto file = file_system_->Open(temporary_, anew);
  if (file.status().code() == StatusCode::kAlreadyExists) {
    STEPWELL_ASSIGN_OR_RETURN(const auto old, file_system_->Open(temporary_, {.write = true}));
    STEPWELL_ASSIGN_OR_RETURN(const bool dead, LockNamed(file_system_, old.get()));
    if (!dead) return Busy(path_);
    STEPWELL_RETURN_IF_ERROR(file_system_->Remove(temporary_));
    file = file_system_->Open(temporary_, anew);
    if (file.status().code() == StatusCode::kAlreadyExists) return Busy(path_);
  }
  if (!file.ok()) return file.status();
  file_ = *std::move(file);  // made here, so removed when the lock fails
  STEPWELL_ASSIGN_OR_RETURN(const bool ours, LockNamed(file_system_, file_.get()));
  if (!ours) {  // another export took it for a dead one's
    file_.reset();
    return Busy(path_);
  }
  CloseInForkedChild(this, file_->descriptor());
  return OkStatus();
}

// A link, unlike a rename, replaces nothing that appeared meanwhile; some file systems have none.
Status ExportTemporary::MoveIntoPlace() const {
  const Status linked = file_system_->Link(temporary_, path_);
  if (linked.ok()) {
    file_system_->Remove(temporary_).IgnoreError("it is complete; the name goes with the next one");
    return OkStatus();
  }
  if (linked.code() == StatusCode::kAlreadyExists) return PathTakenError(path_);
  STEPWELL_RETURN_IF_ERROR(CheckFree());
  return file_system_->Rename(temporary_, path_);
}

Result<uint64_t> ExportTemporary::Commit() {
  STEPWELL_RETURN_IF_ERROR(file_->Sync());
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_->Info());
  STEPWELL_RETURN_IF_ERROR(MoveIntoPlace());
  ForgetForkDescriptors(this);
  file_.reset();
  if (Status status = file_system_->SyncDirectory(ParentOf(path_)); !status.ok()) {
    file_system_->Remove(path_).IgnoreError("best effort: the error says that it failed");
    return status;
  }
  return info.size_bytes;
}

}  // namespace stepwell::db
