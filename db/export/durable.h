// SPDX-License-Identifier: Apache-2.0
// The door for what stands above the store: single checkpoints, branches, drafts, pushed
// directories, metadata of roots. Each name appears, changes or goes by one rename, or exchange,
// and the sync of its directory; a reader sees the old or the new, at any instant and after a power
// cut. DESIGN.md, "Names above the store".
//
// kOutcomeUnknown: that sync failed. The change was taken back where that was possible, but a power
// cut may show either state; both are whole. After any other error nothing has changed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "db/export/orbax/folder.h"
#include "io/disk.h"

namespace stepwell::db {

// kAlreadyExists, with what to do.
Status PathTakenError(const std::string& path);

// A directory or file that is being made. One process, and one object in it, at a time.
class DurableFolder {
 public:
  // Claims "<path>.orbax-checkpoint-tmp", after removing what a process that died left there.
  // `replace`: what is at `path` then gives way. kAlreadyExists: something is there, and `replace`
  // is false; or the temporary name is another program's. kUnavailable: another save has the claim.
  // kInvalidArgument: there is no directory to put it in, or the name is not possible.
  static Result<std::unique_ptr<DurableFolder>> Create(io::FileSystem* file_system,
                                                       std::string path, bool replace,
                                                       uint32_t file_mode);

  // The directory in which the folder is built, under names that the caller chooses.
  const std::string& temporary() const { return temporary_; }
  // `inner`, which the caller has made in the temporary directory, gets the path. Everything in it
  // is synced first. What was replaced and what else is in the temporary directory is removed
  // afterwards; what a crash leaves of that, the next Create or Sweep removes.
  Status Commit(std::string_view inner);

 private:
  DurableFolder(io::FileSystem* file_system, std::unique_ptr<ExportFolder> folder, bool replace);
  Status SyncMade(const std::string& made);
  Status Place(const std::string& made);
  Status PlaceInPlaceOf(const std::string& made);
  void UndoPlace(const std::string& made);

  io::FileSystem* const file_system_;
  const std::unique_ptr<io::WholeSync> whole_sync_;  // null: there is none here
  std::unique_ptr<ExportFolder> folder_;  // null: committed; its destructor removes what is left
  const std::string path_;
  const std::string temporary_;
  const bool replace_;
  std::string aside_;       // the present place of what was at the path; "": nothing was
  bool exchanged_ = false;  // it is where the new one was
};

// Syncs every file and every directory from `path` down. Symbolic links are not followed.
Status SyncTree(io::FileSystem* file_system, const std::string& path);

// The name goes at once and durably; then what it named is deleted. kNotFound.
Status RemoveDurably(io::FileSystem* file_system, const std::string& path);

// The file appears, or is replaced, whole. `mode`: its permissions; 0: those of the umask.
Status WriteDurably(io::FileSystem* file_system, const std::string& path, std::string_view bytes,
                    uint32_t mode);

// kAlreadyExists: `to` is there. Both are on one file system.
Status MoveDurably(io::FileSystem* file_system, const std::string& from, const std::string& to);

// Removes what processes that died left half made, or half removed, in a directory. Best effort.
// `ours`: no other program makes temporary directories there, and no process does so now, so that
// those without a claim go, too, if they are empty: a power cut may keep the directory alone.
void Sweep(io::FileSystem* file_system, const std::string& folder, bool ours);

}  // namespace stepwell::db
