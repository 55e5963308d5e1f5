// SPDX-License-Identifier: Apache-2.0
// A directory, or a file, that appears whole or not at all: built in a sibling, synced bottom-up,
// renamed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "db/export/orbax/digests.h"
#include "db/store.h"
#include "io/disk.h"

namespace stepwell::db {

struct ExportFolderOptions {
  uint32_t file_mode = 0;  // permissions of what is written; 0: those of the umask
  bool sync = true;        // false: whole after a killed process, but not after a power cut
  // For a folder that is not synced: names a file that is in it, and whole, wherever a power cut
  // leaves the directory under its name. That file tells whom the rest belongs to. "": there is
  // none.
  std::string synced_file = {};
  // The name of the file given to Write() that the claim's file becomes in the end. "": the claim's
  // file is removed. (ext4 passes over the inode of each removed file for minutes when it looks for
  // a free one: a file removed for each of thousands of folders would make each slower than the one
  // before.)
  std::string claim_becomes = {};
  // The path to which an existing directory goes when this one takes its place. "": nothing may be
  // there.
  std::string old_goes_to = {};
  // Something may be at the path now: DurableFolder::Commit sees to it.
  bool may_be_there = false;
};

// The permissions of an export of `store` where `wanted` (0: none) are asked for: what comes out of
// a store that is its owner's alone is so, too.
uint32_t ExportFileMode(StoreReader& store, uint32_t wanted);

// Best effort; never follows a link.
void RemoveTree(io::FileSystem* file_system, const std::string& path, int depth_max = 80);

class ExportFolder {
 public:
  // Makes "<path>.orbax-checkpoint-tmp", replacing what an export that died left there.
  // kAlreadyExists: `path` is there, or another program's temporary directory; kUnavailable:
  // another export works on it; kInvalidArgument: there is no directory to put it in.
  static Result<std::unique_ptr<ExportFolder>> Create(io::FileSystem* file_system, std::string path,
                                                      ExportFolderOptions options);
  // Removes a temporary directory if it is one of an export that died.
  static void RemoveAbandoned(io::FileSystem* file_system, const std::string& temporary);
  // Returns true if a temporary directory has a claim, whoever holds it.
  static bool IsClaimed(io::FileSystem* file_system, const std::string& temporary);
  // Removes everything unless Commit() succeeded.
  ~ExportFolder();

  // The final path. Now() gives the present path of `name`, which is relative.
  const std::string& path() const { return path_; }
  const std::string& temporary() const { return temporary_; }
  std::string Now(std::string_view name) const { return StrCat(temporary_, "/", name); }
  // Describes a file that was made here. Its owner, mode and file system matter.
  const io::FileInfo& own_file() const { return own_file_; }

  // Parents come first.
  Status MakeDirectory(std::string_view name);
  // Written, and synced if the folder is.
  Status Write(std::string_view name, std::string_view bytes);
  // For large files: empty; the caller writes, then Finish() syncs it.
  Result<std::unique_ptr<io::File>> NewFile(std::string_view name);
  Status Finish(io::File* file);
  // Removes a file that was made here and is not to stay.
  void Remove(std::string_view name) const {
    file_system_->Remove(Now(name)).IgnoreError("the destructor tries again");
  }
  // Counts a file that another process has written and synced.
  void CountFile(uint64_t bytes) { written_bytes_ += bytes; }
  Status Commit();

  uint64_t written_bytes() const { return written_bytes_; }
  Result<uint64_t> SizeOf(std::string_view name) const;
  // The digests of the files that Write() made.
  const std::vector<FileDigest>& digests() const { return digests_; }

 private:
  ExportFolder(io::FileSystem* file_system, std::string path, ExportFolderOptions options);
  Status ClaimTemporary();
  Status TryToClaim();
  Status TakeOver() const;
  Status ShowClaim();
  Status CheckFree() const;
  Status Replace();
  Status MoveIntoPlace();

  io::FileSystem* const file_system_;
  const std::string path_;
  const std::string parent_;
  const std::string temporary_;
  const ExportFolderOptions options_;
  std::unique_ptr<io::File> claim_;  // locked; while this is set, what is in temporary_ is ours
  io::FileInfo own_file_;
  std::vector<std::string> directories_;  // parents first
  uint64_t written_bytes_ = 0;
  std::vector<FileDigest> digests_;
  bool committed_ = false;
};

// The same for one file.
class ExportTemporary {
 public:
  // Makes "<path>.stepwell-tmp", instead of what an export that died left there.
  // kAlreadyExists: `path` is there; kUnavailable: another export works on it; kInvalidArgument:
  // there is no directory to put it in.
  static Result<std::unique_ptr<ExportTemporary>> Create(io::FileSystem* file_system,
                                                         std::string path);
  // Removes it unless Commit() succeeded.
  ~ExportTemporary();

  io::File* file() { return file_.get(); }
  // Durable under its name; the size in bytes.
  Result<uint64_t> Commit();

 private:
  ExportTemporary(io::FileSystem* file_system, std::string path);
  Status CheckFree() const;
  Status Claim();
  Status MoveIntoPlace() const;

  io::FileSystem* const file_system_;
  const std::string path_;
  const std::string temporary_;
  std::unique_ptr<io::File> file_;  // locked while this lives; null: not ours
};

// Takes the lock of a claim that may be removed or replaced meanwhile: false unless it is held, and
// of the file that has the claim's name.
Result<bool> LockNamed(io::FileSystem* file_system, io::File* claim);

// kInvalidArgument when there is no such directory.
Status CheckIsDirectory(io::FileSystem* file_system, const std::string& path);

// kInvalidArgument when the destination is inside the store, whatever the paths look like: they may
// be relative, or go over links.
Status CheckOutside(io::FileSystem* file_system, const std::string& store,
                    const std::string& destination);

}  // namespace stepwell::db
