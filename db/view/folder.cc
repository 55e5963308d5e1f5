// SPDX-License-Identifier: Apache-2.0
#include "db/view/folder.h"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "db/export/orbax/build.h"
#include "db/export/orbax/plan.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "db/read/part_merge.h"
#include "db/view/options.h"
#include "format/orbax/orbax_files.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

constexpr std::string_view kMarkLine = "stepwell view 1";
constexpr std::string_view kLinked =
    "This directory shows the steps of a Stepwell store as Orbax checkpoints. They have\n"
    "symbolic links into the store and no data of their own: deleting or moving\n"
    "the store ends this view. To hand a checkpoint on, use `stepwell export`.\n";
constexpr std::string_view kLinkedBeside =
    "Steps with a file stepwell-view are those of the Stepwell store in .stepwell, shown\n"
    "as Orbax checkpoints. They have symbolic links into the store and no data of their\n"
    "own: move, copy or delete this directory as a whole. To hand one checkpoint on, use\n"
    "`stepwell export`.\n";
constexpr size_t kMarkBytesMax = 64 << 10;
constexpr std::string_view kIdentityLine = "stepwell view step\n";
constexpr std::string_view kTrashMark = ".removed";

bool IsIn(const std::string& path, const std::string& folder) {
  return (path + "/").starts_with(folder + "/");
}

std::string IdText(const format::Id128& id) {
  std::string text;
  for (const uint8_t byte : id) {
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x", byte);
    text += hex;
  }
  return text;
}

Result<std::string> ReadText(io::File* file) {
  std::string text(kMarkBytesMax, '\0');
  STEPWELL_ASSIGN_OR_RETURN(const size_t size,
                            file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  text.resize(size);
  return text;
}

// Whether a mark was being made when the power went: not all of it is there, or zeros are.
bool IsCutOff(std::string_view text, std::string_view own) {
  text = text.substr(0, text.find_last_not_of('\0') + 1);
  return text.size() < own.size() && own.starts_with(text);
}

// Of "name value\n" at the beginning of a line.
std::string ValueOf(const std::string& text, std::string_view name) {
  const std::string before = StrCat("\n", name, " ");
  const size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const size_t from = at + before.size();
  return text.substr(from, text.find('\n', from) - from);
}

}  // namespace

ViewFolder::ViewFolder(io::FileSystem* file_system, std::string path, std::string store_path,
                       std::string store_id, const ExportOptions& checkpoint, bool beside)
    : file_system_(file_system),
      path_(std::move(path)),
      store_path_(std::move(store_path)),
      store_id_(std::move(store_id)),
      checkpoint_(checkpoint),
      beside_(beside),
      options_text_(ViewOptionsText(checkpoint)),
      boot_(BootId()) {}

ViewFolder::~ViewFolder() { Release(); }

Status ViewFolder::CheckOptions(const ExportOptions& checkpoint) {
  STEPWELL_RETURN_IF_ERROR(CheckExportOptions(checkpoint));
  return ExportStepName(0, checkpoint).status();
}

Status ViewFolder::CheckPlace(const std::string& path, const std::string& store, bool beside) {
  if (beside) {
    if (store == StrCat(path, "/", kStoreBesideName)) return OkStatus();
    return InvalidArgumentError(StrCat(path, ": a view beside its store needs the store in it, as ",
                                       kStoreBesideName, "; the store is ", store));
  }
  if (!IsIn(path, store) && !IsIn(store, path)) return OkStatus();
  return InvalidArgumentError(StrCat(path,
                                     ": neither can a view be in its store nor the store in its "
                                     "view, unless it lies beside (as ",
                                     kStoreBesideName, ")"));
}

Result<std::unique_ptr<ViewFolder>> ViewFolder::Open(StoreReader& store, const std::string& path,
                                                     const ExportOptions& checkpoint, bool beside) {
  if (path.empty()) return InvalidArgumentError("a view needs a directory");
  STEPWELL_RETURN_IF_ERROR(CheckOptions(checkpoint));
  io::FileSystem* const file_system =
      checkpoint.file_system != nullptr ? checkpoint.file_system : io::LocalFileSystem();
  STEPWELL_ASSIGN_OR_RETURN(const std::string absolute, CanonicalPath(path));
  STEPWELL_ASSIGN_OR_RETURN(const std::string store_path, CanonicalPath(store.path()));
  STEPWELL_RETURN_IF_ERROR(CheckPlace(absolute, store_path, beside));
  std::unique_ptr<ViewFolder> folder(
      new ViewFolder(file_system, absolute, store_path, IdText(store.id()), checkpoint, beside));
  STEPWELL_RETURN_IF_ERROR(folder->Claim());
  return folder;
}

Status ViewFolder::Claim() {
  const auto info = file_system_->Stat(path_);
  if (info.status().code() == StatusCode::kNotFound) {
    const auto parent = file_system_->Stat(ParentOf(path_));
    if (!parent.ok() || !parent->is_directory) {
      return InvalidArgumentError(
          StrCat(ParentOf(path_), ": no such directory to put a view in; make it"));
    }
    STEPWELL_RETURN_IF_ERROR(file_system_->CreateDirectory(path_));
    STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(ParentOf(path_)));
  } else if (!info.ok()) {
    return info.status();
  } else if (!info->is_directory) {
    return FailedPreconditionError(StrCat(path_, " is a file; a view is a directory"));
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system_->List(path_));
  const Status foreign = FailedPreconditionError(StrCat(
      path_, names.empty() ? "" : StrCat(" has files of other programs, such as ", names.front()),
      "; choose an empty directory for a view, or a new one"));
  const std::string mark = In(kViewMarkName);
  auto file = file_system_->Open(mark, {.write = true});
  if (file.status().code() == StatusCode::kNotFound) {
    if (!names.empty() && !beside_) return foreign;
    file = file_system_->Open(mark, {.write = true, .create = true, .exclusive = true});
  }
  STEPWELL_RETURN_IF_ERROR(file.status());
  STEPWELL_ASSIGN_OR_RETURN(const bool locked, (*file)->TryLock(io::LockKind::kExclusive));
  mark_ = std::move(*file);
  if (!locked || !CheckThere().ok()) {
    return UnavailableError(
        StrCat(path_, ": another store object or process serves this view already"));
  }
  CloseInForkedChild(this, mark_->descriptor());
  STEPWELL_ASSIGN_OR_RETURN(const std::string text, ReadText(mark_.get()));
  const std::string own = MarkText();
  if (!IsCutOff(text, own)) {
    STEPWELL_RETURN_IF_ERROR(CheckMark(text));
  } else if (names.size() > 1 && !beside_) {
    return foreign;
  }
  if (text != own) {
    STEPWELL_RETURN_IF_ERROR(mark_->WriteAt(0, AsBytes(own)));
    STEPWELL_RETURN_IF_ERROR(mark_->Truncate(own.size()));
  }
  STEPWELL_RETURN_IF_ERROR(SeeWhere());
  // Before any step: what is there without a mark is never touched.
  STEPWELL_RETURN_IF_ERROR(mark_->Sync());
  return file_system_->SyncDirectory(path_);
}

// A moved directory is the same file as before, a copy is not: what was copied while a view changed
// it may not be whole.
Status ViewFolder::SeeWhere() {
  where_ = store_path_;
  if (!beside_) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, mark_->Info());
  where_ = StrCat("beside ", info.device, " ", info.inode);
  return OkStatus();
}

Status ViewFolder::CheckMark(const std::string& text) const {
  if (!text.starts_with(StrCat(kMarkLine, "\n"))) {
    return FailedPreconditionError(StrCat(In(kViewMarkName), " is of no view, or a newer version"));
  }
  if (ValueOf(text, "store-id") == store_id_) return OkStatus();
  return FailedPreconditionError(StrCat(path_, " is a view of another store, ",
                                        ValueOf(text, "store"),
                                        "; choose another directory, or delete it"));
}

std::string ViewFolder::MarkText() const {
  return StrCat(
      kMarkLine, "\nstore-id ", store_id_, "\nstore ",
      beside_ ? std::string(kStoreBesideName) : store_path_, "\n\n",
      beside_ ? kLinkedBeside : kLinked,
      "\n"
      "A step goes when the store deletes it, also while it is being read. To keep it\n"
      "meanwhile, hold a shared lock of the step's file `stepwell-view`:\n"
      "    flock -s STEP/stepwell-view COMMAND\n"
      "or `with stepwell.pin_view(\"STEP\"):` in Python. Without it Orbax may fail to read.\n"
      "Other readers of TensorStore should set fill_missing_data_reads to false: else\n"
      "they take what is gone for zeros.\n",
      beside_ ? "" : "\nDelete this directory when you do not want the view any more.\n");
}

Status ViewFolder::CheckThere() const {
  STEPWELL_ASSIGN_OR_RETURN(const bool named, io::IsNamed(file_system_, mark_.get()));
  if (named) return OkStatus();
  return NotFoundError(StrCat(path_, " was removed, or is no longer a view"));
}

std::string ViewFolder::TrashOf(std::string_view name) const {
  return StrCat(In(name), kTrashMark, format::orbax::kTemporaryMark);
}

Result<std::map<std::string, std::string>> ViewFolder::List() {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system_->List(path_));
  std::map<std::string, std::string> steps;
  for (const std::string& name : names) {
    if (name == kStoreBesideName) continue;
    if (name.ends_with(StrCat(kTrashMark, format::orbax::kTemporaryMark))) {
      RemoveTree(file_system_, In(name));
    } else if (name.ends_with(format::orbax::kTemporaryMark)) {
      ExportFolder::RemoveAbandoned(file_system_, In(name));
    } else if (const auto file = file_system_->Open(StrCat(In(name), "/", kViewStepName), {});
               file.ok()) {
      auto read = ReadText(file->get());
      std::string text = read.ok() ? std::move(*read) : "";
      if (!IsForeign(name, text)) steps[name] = std::move(text);
    }
  }
  return steps;
}

// Beside other programs' checkpoints there may be copies of this view's, or another's, by now with
// data of their own. What a power cut left of an identity is ours.
bool ViewFolder::IsForeign(const std::string& name, const std::string& identity) const {
  if (!beside_ || !identity.starts_with(kIdentityLine) || !identity.ends_with('\n')) return false;
  return ValueOf(identity, "store-id") != store_id_ ||
         identity.find(StrCat("\nname ", name, "\ncommit ")) == std::string::npos;
}

std::string ViewFolder::NameOf(uint64_t step) const {
  auto name = ExportStepName(step, checkpoint_);
  return name.ok() ? *std::move(name) : std::to_string(step);  // Open has seen to it
}

std::string ViewFolder::IdentityOf(const StoreSnapshot::Step& step) const {
  std::string shares;
  for (size_t i = 0; i < step.shares.size(); ++i) {
    const uint32_t part = step.group->parts[i];
    if (part != 0) shares += StrCat(" ", part, ":", step.shares[i]);
  }
  if (!shares.empty()) shares.insert(0, "\nshares");
  return StrCat(kIdentityLine, "step ", step.step, "\nname ", NameOf(step.step), "\ncommit ",
                step.commit, shares, "\ntime ", step.time_ns, "\nstore-id ", store_id_, "\nstore ",
                where_, "\nboot ", boot_, "\noptions ", options_text_, "\n");
}

void ViewFolder::Unlock::operator()(io::File* file) const {
  flock(file->descriptor(), LOCK_UN);
  delete file;
}

// An exclusive flock: readers in any language can take the shared one.
Result<ViewFolder::LockedFile> ViewFolder::Hold(const std::string& name) const {
  const std::string path = StrCat(In(name), "/", kViewStepName);
  auto file = file_system_->Open(path, {.write = true});
  if (file.status().code() == StatusCode::kPermissionDenied) file = file_system_->Open(path, {});
  STEPWELL_RETURN_IF_ERROR(file.status());
  if (flock((*file)->descriptor(), LOCK_EX | LOCK_NB) == 0) return LockedFile(file->release());
  if (errno == EWOULDBLOCK) return LockedFile();
  return ErrnoStatus(errno, StrCat("lock ", path));
}

Result<bool> ViewFolder::Remove(const std::string& name, bool held_too) {
  const auto hold = Hold(name);
  if (hold.status().code() == StatusCode::kNotFound) {
    if (!file_system_->Stat(In(name)).ok()) return true;  // another process removed it
    return hold.status();
  }
  if (!held_too) {
    STEPWELL_RETURN_IF_ERROR(hold.status());
    if (*hold == nullptr) return false;
  }
  const std::string trash = TrashOf(name);
  RemoveTree(file_system_, trash);
  // All of it at once.
  STEPWELL_RETURN_IF_ERROR(file_system_->Rename(In(name), trash));
  RemoveTree(file_system_, trash);
  return true;
}

Result<bool> ViewFolder::Make(StoreReader& store, const StoreSnapshot::Step& step, bool replace,
                              const std::function<bool()>& go_on) {
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store.Read(step.step));
  if (!IsReadAs(*reader, step)) {
    return UnavailableError(StrCat("step ", step.step, " has just changed"));
  }
  const std::string name = NameOf(step.step);
  CheckpointBuild build;
  build.file_system = file_system_;
  build.path = In(name);
  build.folder.file_mode = ExportFileMode(store, checkpoint_.file_mode);
  // After a power cut everything is made anew (`boot` in the identity).
  build.folder.sync = false;
  build.linked_store = beside_ ? std::string(kStoreBesideName) : store_path_;
  build.extra.push_back({std::string(kViewStepName), IdentityOf(step)});
  LockedFile hold;
  if (replace) {
    STEPWELL_ASSIGN_OR_RETURN(hold, Hold(name));
    if (hold == nullptr) return false;
    build.folder.old_goes_to = TrashOf(name);
    RemoveTree(file_system_, build.folder.old_goes_to);
  }
  ExportOptions options = checkpoint_;
  options.progress = [&go_on](uint64_t, uint64_t) { return go_on(); };
  STEPWELL_RETURN_IF_ERROR(BuildCheckpoint(store, *reader, options, build).status());
  if (replace) RemoveTree(file_system_, build.folder.old_goes_to);
  return true;
}

void ViewFolder::Release() {
  ForgetForkDescriptors(this);
  mark_.reset();
}

void ViewFolder::Leave() {
  // What of ours could not be removed needs the mark: the next view of the directory removes it.
  const auto names = file_system_->List(path_);
  const auto is_ours = [](const std::string& name) {
    return name.ends_with(format::orbax::kTemporaryMark);
  };
  if (!names.ok() || std::any_of(names->begin(), names->end(), is_ours)) return;
  file_system_->Remove(In(kViewMarkName)).IgnoreError("a mark without steps does no harm");
  file_system_->RemoveDirectory(path_).IgnoreError("another program has files in it");
}

}  // namespace stepwell::db
