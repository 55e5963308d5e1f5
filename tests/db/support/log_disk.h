// SPDX-License-Identifier: Apache-2.0
// A disk in memory that logs writes, discards and flushes, as dm-log-writes does: of its log come
// the images that a power cut may have left at any instant. It fails when it is told to. A loop
// device over a file of FUSE makes a block device of it, so that all above is the real kernel's.
// (FUSE sends a flush of a file when no write to it is under way.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/db/support/log_disk_shared.h"
#include "tests/db/support/mount.h"

namespace stepwell::db {

// A file in memory, which has a path as long as this process lives.
class MemoryFile {
 public:
  explicit MemoryFile(uint64_t bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  char* data() const { return data_; }  // null: there is none
  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // With holes where zeroes are.
  std::unique_ptr<MemoryFile> Copy() const;

 private:
  const uint64_t bytes_;
  int file_ = -1;
  char* data_ = nullptr;
  std::string path_;
};

// With an empty file system; null: it cannot be made.
std::unique_ptr<MemoryFile> FormattedDisk(FsKind kind, uint64_t bytes, uint64_t block_bytes = 4096);

// The file system in a file, by a loop device that goes with it.
class LoopMount {
 public:
  LoopMount(FsKind kind, const std::string& file, std::string point, bool discard = false);
  ~LoopMount() { (void)Unmount(); }
  LoopMount(const LoopMount&) = delete;
  LoopMount& operator=(const LoopMount&) = delete;

  bool mounted() const { return mounted_; }
  // False: still in use. (What a dead process had open is closed a little later.)
  bool Unmount();

 private:
  const std::string point_;
  bool mounted_ = false;
};

// Describes the log's part on the disk after a power cut right after an instant. Writes that were
// complete when the last complete flush began are there. `kept` and the seed decide about the rest.
struct Cut {
  uint64_t instant = UINT64_MAX;
  double kept = 0;
  // Writes of more than 4 KiB are kept or lost in pieces of that size; 0: whole.
  uint64_t piece_bytes = 0;
  uint64_t seed = 0;
};

class LogDisk {
 public:
  // Starts from the contents of `base`, which is not written to.
  LogDisk(FsKind kind, std::shared_ptr<const MemoryFile> base);
  ~LogDisk();  // whatever happened, nothing stays mounted
  LogDisk(const LogDisk&) = delete;
  LogDisk& operator=(const LogDisk&) = delete;

  // Mounts it at mount_point(), which also recovers it. With `discard` the file system tells it
  // which blocks are free. (ext4 does so for a transaction that failed, too: not for disks that
  // fail.)
  bool Mount(bool discard = false);
  bool Flush() const;
  bool Unmount() { return mount_ == nullptr || mount_->Unmount(); }
  std::string mount_point() const { return directory_ / "disk"; }
  std::string image_point() const { return directory_ / "image"; }  // for an image of it
  std::string file_path() const { return directory_ / "fuse/disk"; }
  // Each write to that file is a mark in the log.
  std::string marks_path() const { return directory_ / "fuse/marks"; }
  void Mark(const std::string& line);

  void SetFault(const Fault& fault);
  uint64_t failed() const;  // operations since then
  void SetDelay(uint32_t us);
  void LieAboutFlushes();

  uint64_t now() const;
  std::vector<LogEntry> Log(uint64_t from = 0) const;  // all but the first `from` entries
  std::string_view Data(const LogEntry& entry) const;
  std::unique_ptr<MemoryFile> Replay(const Cut& cut) const;

 private:
  const FsKind kind_;
  const std::shared_ptr<const MemoryFile> base_;
  TempDir directory_;
  std::unique_ptr<MemoryFile> disk_, log_;
  SharedLog* shared_ = nullptr;  // in log_
  std::unique_ptr<ChildProcess> server_;
  std::unique_ptr<LoopMount> mount_;
};

#define ASSERT_LOG_DISK(disk)                                                                    \
  ASSERT_TRUE((disk).Mount()) << "the test cannot mount a disk of its own here (it needs root, " \
                                 "/dev/fuse and loop devices): "                                 \
                              << strerror(errno)

}  // namespace stepwell::db
