// SPDX-License-Identifier: Apache-2.0
// Open: what is there, what may be made, which process may write.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "db/environment.h"
#include "db/group.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "db/log/recovery.h"
#include "db/log/slot_file.h"
#include "db/store/reader_store.h"
#include "db/store/writer_store.h"
#include "io/beneath.h"
#include "io/unsynced.h"

namespace stepwell::db {
namespace {

constexpr std::chrono::milliseconds kOpeningWait{2'000};
constexpr std::chrono::milliseconds kOpeningInterval{50};

Status NotAStore(const std::string& path, std::string_view why) {
  return UnimplementedError(StrCat(path, " is not a Stepwell store: ", why));
}

// Returns true if a directory without STEPWELL holds only what an unfinished creation leaves.
Result<bool> IsUnfinishedCreation(io::FileSystem* file_system, const std::string& path) {
  STEPWELL_ASSIGN_OR_RETURN(const auto names, file_system->List(path));
  for (const std::string& name : names) {
    if (name == "LOCK" || name == "LOCK.new" || name == "RECLAIM" || name == "STEPWELL.new" ||
        name == "readers" || name == "index") {
      continue;
    }
    if (name != "segments") return false;
    STEPWELL_ASSIGN_OR_RETURN(const auto segments, file_system->List(SegmentsPath(path)));
    if (!segments.empty()) return false;
  }
  return true;
}

Status CreateStore(const std::string& path, const std::optional<StoreGroup>& group,
                   const Environment& environment) {
  io::FileSystem* file_system = environment.file_system;
  STEPWELL_RETURN_IF_ERROR(MakeStoreDirectories(file_system, path));
  format::StoreSlot slot;
  slot.store_id = RandomId(environment.random);
  slot.clean = true;
  if (group && group->part != 0) {
    slot.group_id = group->group_id;
    slot.part = group->part;
  }
  // Before STEPWELL is there: what finds it relies on the directory's own name being durable.
  STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(ParentOf(path)));
  for (std::string child = ParentOf(path); ParentOf(child) != child; child = ParentOf(child)) {
    file_system->SyncDirectory(ParentOf(child))
        .IgnoreError("only for what an earlier open made, and was killed before it synced it");
  }
  return SlotFile::Create(file_system, path, slot);
}

// With the missing directories above it, as `mkdir -p` does.
Status MakeDirectories(const std::string& path, io::FileSystem* file_system) {
  std::vector<std::string> missing = {path};
  for (std::string parent = ParentOf(path); parent != missing.back(); parent = ParentOf(parent)) {
    const auto info = file_system->Stat(parent);
    if (info.ok()) break;
    if (info.status().code() != StatusCode::kNotFound) return info.status();
    missing.push_back(parent);
  }
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    const Status made = file_system->CreateDirectory(*it);
    if (!made.ok() && made.code() != StatusCode::kAlreadyExists) return made;
    if (*it != path) STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(ParentOf(*it)));
  }
  return OkStatus();
}

// STEPWELL again, where it is lost or damaged beyond use: the log has all that it says.
Status RestoreSlots(const std::string& path, const StoreOptions& options,
                    io::FileSystem* file_system) {
  const auto file = SlotFile::Open(file_system, path, /*write=*/false, nullptr);
  Status status = file.status();
  if (file.ok()) status = (*file)->Read().status();
  if (!IsDamage(status)) return OkStatus();  // good, or for the open to say what is wrong
  const auto slot = SlotFromLog(file_system, path);
  if (!slot.ok()) return slot.status().code() == StatusCode::kNotFound ? status : slot.status();
  Log(options.log, LogLevel::kWarning,
      StrCat(path, ": STEPWELL is made again from the log: ", status.message()));
  return SlotFile::Create(file_system, path, *slot);
}

bool IsOfOrbax(io::FileSystem* file_system, const std::string& path) {
  return file_system->Stat(StrCat(path, "/_CHECKPOINT_METADATA")).ok() ||
         file_system->Stat(StrCat(path, "/_METADATA")).ok();
}

// Advises a user who gave a checkpoint of Orbax, or the root of several, as a store.
std::string NamedAsOrbax(io::FileSystem* file_system, const std::string& path) {
  bool found = IsOfOrbax(file_system, path);
  const auto names = file_system->List(path);
  for (size_t i = 0; !found && names.ok() && i < names->size(); ++i) {
    found = IsOfOrbax(file_system, StrCat(path, "/", (*names)[i]));
  }
  if (!found) return "";
  return "; it has what Orbax wrote, which import_checkpoint takes into a store and "
         "stepwell.compat.orbax reads where it is";
}

// "; the store is …", for someone who gave the directory around it; "": there is none.
std::string NamedWithin(io::FileSystem* file_system, const std::string& path) {
  const std::vector<std::string> found = StoresWithin(file_system, path);
  if (found.empty()) return NamedAsOrbax(file_system, path);
  std::string text = found.size() == 1 ? "; the store is " : "; the stores in it are ";
  for (const std::string& each : found) text += StrCat(&each == &found[0] ? "" : ", ", each);
  return text;
}

// "; there is no A", of the path A/B/C where A is the first that is missing. "": only C is.
std::string Missing(const std::string& path, io::FileSystem* file_system) {
  std::string missing = path;
  for (std::string parent = ParentOf(path); parent != missing; parent = ParentOf(parent)) {
    if (file_system->Stat(parent).status().code() != StatusCode::kNotFound) break;
    missing = parent;
  }
  return missing == path ? "" : StrCat("; there is no ", missing);
}

Status CheckDirectory(const std::string& path, const StoreOptions& options,
                      io::FileSystem* file_system) {
  const auto info = file_system->Stat(path);
  if (info.status().code() == StatusCode::kNotFound) {
    if (options.read_only || !options.create) {
      return NotFoundError(StrCat(path, ": there is no such store", Missing(path, file_system)));
    }
    if (!options.group || options.group->part == 0) return MakeDirectories(path, file_system);
    // Part 0 makes the directory that the others lie in.
    const Status made = file_system->CreateDirectory(path);
    return made.code() == StatusCode::kAlreadyExists ? OkStatus() : made;
  }
  if (!info.ok()) return info.status();
  if (!info->is_directory) return NotAStore(path, "it is a file; a store is a directory");
  const auto slot = file_system->Stat(SlotFilePath(path));
  if (slot.ok()) return OkStatus();
  if (slot.status().code() != StatusCode::kNotFound) return slot.status();
  if (SlotFromLog(file_system, path).ok()) {
    if (!options.read_only) return OkStatus();
    return DataLossError(
        StrCat(path, ": the STEPWELL file is lost; opening the store for writing makes it again"));
  }
  STEPWELL_ASSIGN_OR_RETURN(const bool unfinished, IsUnfinishedCreation(file_system, path));
  if (!unfinished) {
    // Its creation may have been finished since the first look.
    if (file_system->Stat(SlotFilePath(path)).ok()) return OkStatus();
    return NotAStore(path,
                     StrCat("the directory has no STEPWELL file", NamedWithin(file_system, path)));
  }
  if (options.read_only || !options.create) {
    return NotFoundError(StrCat(path, ": there is no such store (yet)"));
  }
  return OkStatus();
}

// Returns the modes of an existing store's files. Others may get access only if STEPWELL grants it,
// because it was made so or opened up with chmod; the umask then decides. None if there is no
// store.
std::optional<io::FileModes> ModesOf(const std::string& path) {
  const auto slot = io::LocalFileSystem()->Stat(SlotFilePath(path));
  if (!slot.ok()) return std::nullopt;
  return (slot->mode & 077) != 0 ? io::FileModes::kUmask : io::FileModes::kPrivate;
}

// Explains a refusal of the operating system for a store that is another user's.
Status Refused(const std::string& path, const Status& status) {
  const auto info = io::LocalFileSystem()->Stat(path);
  if (!info.ok() || info->owner == geteuid()) return status;
  const bool readable = access(path.c_str(), R_OK | X_OK) == 0;
  char mode[8];
  std::snprintf(mode, sizeof(mode), "%04o", info->mode & 07777);
  return {status.code(),
          StrCat(status.message(), "; the store is user ", info->owner, "'s, mode ", mode, ": ",
                 readable ? "others may read it at most (open it for reading)"
                          : StrCat("a store is its owner's alone unless it was made otherwise, and "
                                   "`chmod -R g+rX ",
                                   path, "` by the owner lets a group read it")),
          status.os_error()};
}

// The machine's file system, which follows no link below the store. A part lies in the directory of
// its group, which is as little trusted.
std::unique_ptr<io::FileSystem> FilesOf(const std::string& path, const StoreOptions& options) {
  const bool is_part = options.group && options.group->part != 0;
  const std::string root = is_part ? ParentOf(path) : path;
  auto modes = ModesOf(path);
  if (!modes) modes = ModesOf(root);
  return io::FileSystemBeneath(root, modes.value_or(options.private_files ? io::FileModes::kPrivate
                                                                          : io::FileModes::kUmask));
}

// `locked` says which process writes.
Result<std::unique_ptr<Store>> OpenBesideWriter(const std::string& path,
                                                const StoreOptions& options,
                                                const Environment& environment,
                                                const Status& locked) {
  auto store = ReaderStore::Open(path, options, environment.ForReaders(), /*beside_writer=*/true);
  if (store.status().code() != StatusCode::kUnavailable) return store;
  return UnavailableError(StrCat(locked.message(), "; ", store.status().message()));
}

}  // namespace

Result<std::unique_ptr<Store>> OpenStore(const std::string& path, const StoreOptions& options,
                                         Environment environment) {
  if (path.empty()) return InvalidArgumentError("the path of a store is empty");
  if (path.find("://") != std::string::npos) {
    return InvalidArgumentError(
        StrCat(path,
               " is a URL; a store is a directory on a local disk. Open one there, and copy "
               "steps to and from object stores with push and pull"));
  }
  STEPWELL_RETURN_IF_ERROR(CheckRules(options.keep));
  if (options.group && options.group->part != 0 && options.group->group_id == format::Id128{}) {
    return InvalidArgumentError(
        StrCat(path, ": part ", options.group->part, " of a group needs the group's id"));
  }
  STEPWELL_RETURN_IF_ERROR(CheckDirectory(path, options, environment.file_system));
  if (options.read_only && !options.trace_path.empty()) {
    return InvalidArgumentError("a trace is of saves: a store open for reading has none");
  }
  if (options.untrusted && !options.read_only) {
    return InvalidArgumentError(StrCat(path, ": a store that is not trusted can only be read"));
  }
  environment.without_pins = options.untrusted;
  if (options.read_only) {
    return ReaderStore::Open(path, options, std::move(environment), /*beside_writer=*/false);
  }
  STEPWELL_ASSIGN_OR_RETURN(environment.held_root, environment.file_system->HoldRoot());
  auto acquired = AcquireLock(environment.file_system, path, options.lock_timeout);
  if (options.through_writer) {
    // A writer that is just opening or closing takes no requests: in a moment one of the two works.
    const auto deadline = std::chrono::steady_clock::now() + kOpeningWait;
    while (acquired.status().code() == StatusCode::kUnavailable) {
      auto beside = OpenBesideWriter(path, options, environment, acquired.status());
      if (beside.status().code() != StatusCode::kUnavailable ||
          std::chrono::steady_clock::now() >= deadline) {
        return beside;
      }
      std::this_thread::sleep_for(kOpeningInterval);
      acquired = AcquireLock(environment.file_system, path, options.lock_timeout);
    }
  }
  STEPWELL_RETURN_IF_ERROR(acquired.status());
  std::unique_ptr<io::File> lock = std::move(*acquired);
  // Another process may have finished the creation meanwhile.
  if (environment.file_system->Stat(SlotFilePath(path)).status().code() == StatusCode::kNotFound) {
    const Status log = SlotFromLog(environment.file_system, path).status();
    if (!log.ok() && log.code() != StatusCode::kNotFound) return log;
    if (!log.ok()) STEPWELL_RETURN_IF_ERROR(CreateStore(path, options.group, environment));
  }
  STEPWELL_RETURN_IF_ERROR(RestoreSlots(path, options, environment.file_system));
  return WriterStore::Open(path, options, std::move(environment), std::move(lock));
}

Result<std::unique_ptr<Store>> Store::Open(const std::string& path, const StoreOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(Environment environment, MakeEnvironment(options));
  environment.own_file_system = FilesOf(path, options);
  if (options.unpublished) {
    environment.own_file_system = io::WithoutSyncs(std::move(environment.own_file_system));
  }
  environment.file_system = environment.own_file_system.get();
  auto store = OpenStore(path, options, std::move(environment));
  if (store.status().code() == StatusCode::kPermissionDenied) return Refused(path, store.status());
  return store;
}

io::FileSystem* StoreReader::export_file_system() { return io::LocalFileSystem(); }

// A step that goes while it is looked up is not the newest any more. In a store that keeps some
// steps, the next look finds another.
Result<std::shared_ptr<StepReader>> Store::ReadNewest() {
  constexpr int kLooksMax = 16;
  for (int look = 1;; ++look) {
    auto found = ReadNewestNow();
    if (found.status().code() != StatusCode::kNotFound || look == kLooksMax) return found;
  }
}

}  // namespace stepwell::db
