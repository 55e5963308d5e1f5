// SPDX-License-Identifier: Apache-2.0
#include "db/view/folder.h"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "db/export/orbax/build.h"
#include "db/export/orbax/numbers.h"
#include "db/export/orbax/plan.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "db/read/part_merge.h"
#include "db/view/options.h"
#include "format/orbax/orbax_files.h"
#include "io/beneath.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

constexpr std::string_view kMarkLine = "stepwell view 1";
constexpr std::string_view kAbout =
    "This directory shows the steps of a Stepwell store as Orbax checkpoints. They share\n"
    "its data by hard links where the file system can, and are whole: a copy of one is\n"
    "its own, and changes to its files are forbidden. Steps come and go with the store's.\n";
constexpr size_t kMarkBytesMax = 64 << 10;
constexpr std::string_view kTrashMark = ".removed";

std::string NameIn(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool IsBeside(const std::string& path, const std::string& store) {
  return IsStoreBesideName(NameIn(store)) &&
         store == StrCat(path == "/" ? "" : path, "/", NameIn(store));
}

bool IsIn(const std::string& path, const std::string& folder) {
  return (path + "/").starts_with(folder + "/");
}

Result<std::string> ReadText(io::File* file) {
  std::string text(kMarkBytesMax, '\0');
  STEPWELL_ASSIGN_OR_RETURN(const size_t size,
                            file->ReadAt(0, std::as_writable_bytes(std::span(text))));
  text.resize(size);
  return text;
}

// Returns true if a power cut interrupted the making of a mark: a part of it is missing, or zeros.
bool IsCutOff(std::string_view text, std::string_view own) {
  text = text.substr(0, text.find_last_not_of('\0') + 1);
  return text.size() < own.size() && own.starts_with(text);
}

// Returns the value of a line "name value\n".
std::string ValueOf(const std::string& text, std::string_view name) {
  const std::string before = StrCat("\n", name, " ");
  const size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const size_t from = at + before.size();
  return text.substr(from, text.find('\n', from) - from);
}

}  // namespace

ViewFolder::ViewFolder(std::string path, std::string store_path, const ExportOptions& checkpoint,
                       bool beside)
    : file_system_(checkpoint.file_system),
      path_(std::move(path)),
      store_path_(std::move(store_path)),
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
    if (IsBeside(path, store)) return OkStatus();
    return InvalidArgumentError(StrCat(path, ": a view beside its store needs the store in it, as ",
                                       kStoreBesideName, " or ", kStoreBesideName,
                                       "-NAME; the store is ", store));
  }
  if (!IsIn(path, store) && !IsIn(store, path)) return OkStatus();
  return InvalidArgumentError(StrCat(path,
                                     ": neither can a view be in its store nor the store in its "
                                     "view, unless it lies beside (as ",
                                     kStoreBesideName, ")"));
}

Result<std::unique_ptr<ViewFolder>> ViewFolder::Open(StoreReader& store, const std::string& path,
                                                     const ExportOptions& checkpoint, bool beside,
                                                     const std::string& before) {
  if (path.empty()) return InvalidArgumentError("a view needs a directory");
  STEPWELL_RETURN_IF_ERROR(CheckOptions(checkpoint));
  STEPWELL_ASSIGN_OR_RETURN(const std::string absolute, CanonicalPath(path));
  STEPWELL_ASSIGN_OR_RETURN(const std::string store_path, CanonicalPath(store.path()));
  STEPWELL_RETURN_IF_ERROR(CheckPlace(absolute, store_path, beside));
  std::unique_ptr<ViewFolder> folder(new ViewFolder(absolute, store_path, checkpoint, beside));
  STEPWELL_RETURN_IF_ERROR(folder->Reach());
  folder->home_ = {IdText(store.id()), store_path, ""};
  STEPWELL_RETURN_IF_ERROR(beside ? folder->ClaimBeside(store) : folder->Claim());
  if (beside && before != folder->home_.where) folder->home_.before = before;
  return folder;
}

Status ViewFolder::Reach() {
  if (file_system_ == nullptr) {
    own_file_system_ = io::FileSystemBeneath(path_, io::FileModes::kUmask);
    file_system_ = own_file_system_.get();
  }
  if (!beside_) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(held_, file_system_->HoldRoot());
  return OkStatus();
}

// The store's lock is the view's claim, so only its writer has one.
Status ViewFolder::ClaimBeside(StoreReader& store) {
  if (store.read_only()) {
    return FailedPreconditionError(
        StrCat(path_, ": the process that writes the store serves the view beside it"));
  }
  STEPWELL_ASSIGN_OR_RETURN(store_directory_, store.file_system()->Stat(store.path()));
  STEPWELL_RETURN_IF_ERROR(CheckThere());
  home_.where = WhereBeside(store_directory_);
  RemoveOldMark();
  return OkStatus();
}

// Older versions claimed the directory itself. Another store's mark is no view's here any more
// either, but perhaps came with steps of it that were copied.
void ViewFolder::RemoveOldMark() const {
  const std::string mark = In(kViewMarkName);
  const auto text = io::ReadSmallFile(file_system_, mark, kMarkBytesMax);
  if (!text.ok() || !text->starts_with(StrCat(kMarkLine, "\n"))) return;
  if (ValueOf(*text, "store-id") != home_.store_id) return;
  file_system_->Remove(mark).IgnoreError("it does no harm");
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
    if (!names.empty()) return foreign;
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
  } else if (names.size() > 1) {
    return foreign;
  }
  if (text != own) {
    STEPWELL_RETURN_IF_ERROR(mark_->WriteAt(0, AsBytes(own)));
    STEPWELL_RETURN_IF_ERROR(mark_->Truncate(own.size()));
  }
  // Before any step: what is there without a mark is never touched.
  STEPWELL_RETURN_IF_ERROR(mark_->Sync());
  return file_system_->SyncDirectory(path_);
}

Status ViewFolder::CheckMark(const std::string& text) const {
  if (!text.starts_with(StrCat(kMarkLine, "\n"))) {
    return FailedPreconditionError(StrCat(In(kViewMarkName), " is of no view, or a newer version"));
  }
  if (ValueOf(text, "store-id") == home_.store_id) return OkStatus();
  return FailedPreconditionError(StrCat(path_, " is a view of another store, ",
                                        ValueOf(text, "store"),
                                        "; choose another directory, or delete it"));
}

std::string ViewFolder::MarkText() const {
  return StrCat(kMarkLine, "\nstore-id ", home_.store_id, "\nstore ", store_path_, "\n\n", kAbout,
                "\n"
                "A step goes when the store deletes it, also while it is being read. To keep it\n"
                "meanwhile, hold a shared lock of the step's file `stepwell-view`:\n"
                "    flock -s STEP/stepwell-view COMMAND\n"
                "or `with stepwell.pin_view(\"STEP\"):` in Python. Without it Orbax may fail to "
                "read.\n"
                "Other readers of TensorStore should set fill_missing_data_reads to false: else\n"
                "they take what is gone for zeros.\n"
                "\nDelete this directory when you do not want the view any more.\n");
}

Status ViewFolder::CheckThere() const {
  if (!beside_) {
    STEPWELL_ASSIGN_OR_RETURN(const bool named, io::IsNamed(file_system_, mark_.get()));
    if (named) return OkStatus();
    return NotFoundError(StrCat(path_, " was removed, or is no longer a view"));
  }
  const auto store = file_system_->Stat(In(NameIn(store_path_)));
  if (store.ok() && io::IsSameFile(*store, store_directory_)) return OkStatus();
  if (!store.ok() && store.status().code() != StatusCode::kNotFound) return store.status();
  return NotFoundError(StrCat(path_, " was removed, or its store is not in it any more"));
}

std::string ViewFolder::TrashOf(std::string_view name) const {
  return StrCat(In(name), kTrashMark, format::orbax::kTemporaryMark);
}

Result<std::map<std::string, std::string>> ViewFolder::List() {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system_->List(path_));
  std::map<std::string, std::string> steps;
  for (const std::string& name : names) {
    if (beside_ && IsStoreBesideName(name)) continue;
    if (name.ends_with(format::orbax::kTemporaryMark)) {
      RemoveLeft(name);
    } else if (auto identity = FindIdentity(name)) {
      steps[name] = *std::move(identity);
    }
  }
  return steps;
}

// Beside other programs' temporaries, and those of other stores' views, only what has a name as
// this view gives them: there is no mark in it yet, or not any more.
void ViewFolder::RemoveLeft(const std::string& name) {
  std::string_view step(name);
  step.remove_suffix(format::orbax::kTemporaryMark.size());
  const bool is_trash = step.ends_with(kTrashMark);
  if (is_trash) step.remove_suffix(kTrashMark.size());
  if (beside_ && !IsOwnName(step)) return;
  // A power cut may undo the rename of what is finished, and keep that it has no claim any more.
  if (is_trash || IsFinished(name)) {
    Dispose(In(name));
  } else {
    ExportFolder::RemoveAbandoned(file_system_, In(name));
  }
}

// Returns true if a temporary directory has this store's mark and no claim any more. File systems
// keep the order of names, so a mark that was not synced is there after a power cut, but perhaps
// empty.
bool ViewFolder::IsFinished(const std::string& name) const {
  const auto text = ReadMark(file_system_, In(name));
  if (!text.ok()) return false;
  const auto mark = DecodeMark(*text);
  const bool is_own = mark ? mark->store_id == home_.store_id : !beside_;
  return is_own && !ExportFolder::IsClaimed(file_system_, In(name));
}

bool ViewFolder::IsOwnName(std::string_view name) const {
  const std::string& prefix = checkpoint_.step_prefix;
  const size_t before =
      prefix.empty() || checkpoint_.step_prefix_verbatim ? prefix.size() : prefix.size() + 1;
  uint64_t step = 0;
  return name.size() > before && ParseInteger(name.substr(before), &step) && NameOf(step) == name;
}

// Returns the identity of a directory that a view of this store made. In a directory that others
// share, copies of this view's steps, under any name, are the others'.
std::optional<std::string> ViewFolder::FindIdentity(const std::string& name) const {
  const auto text = ReadMark(file_system_, In(name));
  if (!text.ok()) return std::nullopt;
  const auto mark = DecodeMark(*text);
  // A power cut left a part of a mark.
  if (!mark) return beside_ && !IsOwnName(name) ? std::nullopt : std::optional(std::string());
  if (beside_) {
    const auto directory = file_system_->Stat(In(name));
    if (!directory.ok() || !IsMadeBeside(*mark, name, *directory, home_)) return std::nullopt;
  }
  return db::IdentityOf(*mark);
}

std::string ViewFolder::NameOf(uint64_t step) const {
  auto name = ExportStepName(step, checkpoint_);
  return name.ok() ? *std::move(name) : std::to_string(step);  // Open has seen to it
}

ViewMark ViewFolder::MarkOf(const StoreSnapshot::Step& step) const {
  ViewMark mark;
  mark.step = step.step;
  mark.name = NameOf(step.step);
  mark.commit = step.commit;
  for (size_t i = 0; i < step.shares.size(); ++i) {
    const uint32_t part = step.group->parts[i];
    if (part != 0) mark.shares += StrCat(" ", part, ":", step.shares[i]);
  }
  mark.time_ns = step.time_ns;
  mark.store_id = home_.store_id;
  mark.where = home_.where;
  if (beside_) mark.beside = NameIn(store_path_);
  mark.boot = boot_;
  mark.options = options_text_;
  return mark;
}

std::string ViewFolder::IdentityOf(const StoreSnapshot::Step& step) const {
  return db::IdentityOf(MarkOf(step));
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
  return io::LockStatus(errno, path);
}

bool ViewFolder::IsOwn(const std::string& name) const {
  return !beside_ || FindIdentity(name).has_value();
}

Result<bool> ViewFolder::Remove(const std::string& name, bool held_too) {
  if (!IsOwn(name)) return true;
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
  Dispose(trash);
  // All of it at once.
  STEPWELL_RETURN_IF_ERROR(file_system_->Rename(In(name), trash));
  Dispose(trash);
  return true;
}

// Without the sync a power cut may bring the old name back, of a directory that has lost its mark:
// that would be another program's, for ever.
void ViewFolder::Dispose(const std::string& trash) const {
  if (!file_system_->Stat(trash).ok() || !file_system_->SyncDirectory(path_).ok()) return;
  RemoveTree(file_system_, trash);
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
  // Beside other programs', a step that a power cut left without its mark would be theirs, for
  // ever.
  if (beside_) build.folder.synced_file = kViewStepName;
  build.folder.claim_becomes = kViewStepName;
  ViewPlacing placing;
  placing.link_bytes_min = view_tuning.link_bytes_min;
  placing.may_clone = may_clone_ && view_tuning.may_clone;
  if (beside_) {  // both names are reached from the directory that is held
    placing.links = file_system_;
    placing.store_path = store_path_;
  }
  build.view = &placing;
  build.mark = [&](const io::FileInfo& directory) {
    ViewMark mark = MarkOf(step);
    mark.directory = DirectoryText(directory);
    return ExportFile{std::string(kViewStepName), EncodeMark(mark)};
  };
  LockedFile hold;
  if (replace) {
    STEPWELL_ASSIGN_OR_RETURN(hold, Hold(name));
    if (hold == nullptr) return false;
    build.folder.old_goes_to = TrashOf(name);
    Dispose(build.folder.old_goes_to);
  }
  ExportOptions options = checkpoint_;
  options.progress = [&go_on](uint64_t, uint64_t) { return go_on(); };
  STEPWELL_ASSIGN_OR_RETURN(const ExportReport report,
                            BuildCheckpoint(store, *reader, options, build));
  may_clone_ = may_clone_ && (report.mode == ExportMode::kReflink || report.chunks == 0);
  if (replace) Dispose(build.folder.old_goes_to);
  return true;
}

void ViewFolder::Release() {
  ForgetForkDescriptors(this);
  mark_.reset();
  held_.reset();
}

void ViewFolder::Leave() {
  if (beside_) return;
  // A directory of ours that could not be removed needs the mark: the next view removes it.
  const auto names = file_system_->List(path_);
  const auto is_ours = [](const std::string& name) {
    return name.ends_with(format::orbax::kTemporaryMark);
  };
  if (!names.ok() || std::any_of(names->begin(), names->end(), is_ours)) return;
  file_system_->Remove(In(kViewMarkName)).IgnoreError("a mark without steps does no harm");
  file_system_->RemoveDirectory(path_).IgnoreError("another program has files in it");
}

}  // namespace stepwell::db
