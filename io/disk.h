// SPDX-License-Identifier: Apache-2.0
// The two seams between Stepwell and the machine. Everything durable passes through them, so the
// simulated disk of tests/sim can stand in for both.
//
//   FileSystem, File   names and blocking I/O; thread-safe. (RocksDB's threads use these.)
//   Disk, Op           the data plane: submit and poll, one thread (the one that made it).
//
// Freeze: after the first failed write or sync of a freeze domain, every later write, sync, rename,
// link and removal in it fails with kAborted naming that first error, as if the machine had
// crashed at that instant. Reads go on. fsync is never retried: after a failure the next one lies.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/bytes.h"
#include "io/mutex.h"
#include "io/result.h"

namespace stepwell::io {

// One freeze domain (the log is one, the index another). Thread-safe.
class Freeze {
 public:
  bool frozen() const { return frozen_.load(std::memory_order_acquire); }
  // Keeps the first error only. Works without memory.
  void Trip(const Status& error);
  // OK while not frozen, else kAborted with the first error's message and errno.
  Status Check() const;
  Status first_error() const;

 private:
  std::atomic<bool> frozen_{false};
  mutable Mutex mutex_;
  Status error_ STEPWELL_GUARDED_BY(mutex_);
  Status refusal_ STEPWELL_GUARDED_BY(mutex_);  // the error that Check() returns
};

// The alignment that direct I/O on a file demands (statx STATX_DIOALIGN); 1 and 1 for buffered I/O.
struct Alignment {
  uint32_t memory_bytes = 1;
  uint32_t offset_bytes = 1;
};

struct FileInfo {
  uint64_t size_bytes = 0;
  uint64_t allocated_bytes = 0;
  uint64_t link_count = 1;
  uint64_t inode = 0;
  uint64_t device = 0;      // the file system; hard links and clones stay within one
  uint32_t owner = 0;       // user id
  uint32_t mode = 0;        // permission bits
  int64_t modified_ns = 0;  // since the epoch; 0: not known
  int64_t born_ns = 0;  // a directory's birth time, as Stat gives it: inode numbers are used again
  uint32_t block_bytes = 4096;  // st_blksize
  bool is_directory = false;
};
// Returns true if both describe one file, whatever its names.
inline bool IsSameFile(const FileInfo& a, const FileInfo& b) {
  return a.inode == b.inode && a.device == b.device;
}

enum class LockKind { kShared, kExclusive };

// The status of a lock that failed with this errno; kIoError, which says what to do, where the file
// system has no locks.
Status LockStatus(int os_error, const std::string& path);
// Returns true for the status of a file system without locks.
bool LacksLocks(const Status& status);

// An open file. All calls block and are thread-safe. The destructor closes (and so unlocks).
class File {
 public:
  File(std::string path, std::shared_ptr<Freeze> freeze)
      : path_(std::move(path)), freeze_(std::move(freeze)) {}
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }
  const std::shared_ptr<Freeze>& freeze() const { return freeze_; }

  // Reads up to out.size() bytes; fewer only at the end of the file. On a direct file, offset,
  // memory and length must keep alignment().
  virtual Result<size_t> ReadAt(uint64_t offset, MutableBytes out) = 0;
  // Writes all of `data` or fails. A failure other than kResourceExhausted trips the freeze.
  virtual Status WriteAt(uint64_t offset, ConstBytes data) = 0;
  // fdatasync. Any failure trips the freeze.
  virtual Status Sync() = 0;
  // From now on Sync, and an Op that syncs, do nothing: io/unsynced.h. Before anything is written.
  void SkipSyncs() { skips_syncs_ = true; }
  bool skips_syncs() const { return skips_syncs_; }
  // Reserves [offset, offset + length), growing the file. kResourceExhausted where there is no
  // room; never freezes. Without support in the file system this is OK and reserves nothing.
  virtual Status Allocate(uint64_t offset, uint64_t length) = 0;
  // Gives the space of [offset, offset + length) back, which then reads as zeros; the size stays.
  // Whole blocks of the file system: of one that is covered in part, that part becomes zeros.
  // kUnimplemented where the file system cannot; never freezes.
  virtual Status PunchHole(uint64_t offset, uint64_t length) = 0;
  virtual Status Truncate(uint64_t size) = 0;
  // Both write `length` bytes of `source` (of the same implementation, from `source_offset`) at
  // `offset` of this file; neither is direct. kDataLoss when the source ends before. Other failures
  // are those of WriteAt.
  //
  // By sharing blocks: offsets and length are multiples of the file system's block. Nothing is
  // done, and nothing freezes, on kUnimplemented (the file system cannot) and kFailedPrecondition
  // (the files are on different ones).
  virtual Status CloneFrom(File& source, uint64_t source_offset, uint64_t length, uint64_t offset);
  // In the kernel where it can, else by reading and writing large blocks.
  virtual Status CopyFrom(File& source, uint64_t source_offset, uint64_t length, uint64_t offset);
  virtual Result<FileInfo> Info() = 0;
  // Open-file-description lock on the whole file. False when another holder has it.
  // LacksLocks(status): its file system has none.
  virtual Result<bool> TryLock(LockKind kind) = 0;
  virtual Status Unlock() = 0;
  // Returns true if another open file holds an exclusive lock. Takes none itself.
  virtual Result<bool> LockedByOther() = 0;
  virtual Alignment alignment() const = 0;
  // The descriptor for a Disk of the same implementation, or -1 (simulation).
  virtual int descriptor() const { return -1; }

 private:
  const std::string path_;
  const std::shared_ptr<Freeze> freeze_;
  bool skips_syncs_ = false;
};

struct FileOpenOptions {
  bool write = false;
  bool create = false;     // create when absent; needs write
  bool exclusive = false;  // with create: kAlreadyExists when present
  bool truncate = false;
  bool direct = false;  // O_DIRECT where the file system takes it, else buffered (see alignment())
  std::shared_ptr<Freeze> freeze = nullptr;  // null: a domain of its own
};

// FileSystem::TakeWholeSync.
class WholeSync {
 public:
  virtual ~WholeSync() = default;
  // Makes durable all that was written to the file system, by any program. kUnimplemented, and
  // nothing is done, where it would have to wait for much of that. Any other error may be of a file
  // of another program. After an error, files are to be synced one by one. Once.
  virtual Status Sync() = 0;
};

// Names. All calls block and are thread-safe. Paths are used as given (relative to the process).
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<File>> Open(const std::string& path, const FileOpenOptions&) = 0;
  virtual Result<FileInfo> Stat(const std::string& path) = 0;  // kNotFound when absent
  // Names in a directory, without "." and "..", sorted.
  virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
  // kAlreadyExists when present (as a directory too).
  virtual Status CreateDirectory(const std::string& path) = 0;
  virtual Status Remove(const std::string& path) = 0;                         // a file
  virtual Status RemoveDirectory(const std::string& path) = 0;                // an empty directory
  virtual Status Rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  // The two names, which both exist, change places at one instant, whatever they name.
  // kUnimplemented where the file system cannot.
  virtual Status Exchange(const std::string& one, const std::string& other);
  virtual Status Link(const std::string& from, const std::string& to) = 0;  // hard link
  // Remove() removes symbolic links, all other calls follow them.
  virtual Status SetMode(const std::string& path, uint32_t mode) = 0;  // chmod
  // fsync of a directory: makes names created, renamed or removed in it durable.
  virtual Status SyncDirectory(const std::string& path) = 0;
  // A sync of the whole file system of the directory `path`. Taken before what it is to sync is
  // written: it tells of no write that failed before. Null where it would not tell of any.
  virtual std::unique_ptr<WholeSync> TakeWholeSync(const std::string& path);
  virtual Result<uint64_t> FreeBytes(const std::string& path) = 0;  // statvfs f_bavail
  // For a file system beneath a root (io/beneath.h). While the result lives, paths below the root
  // lead to the directory that has its name now, even after it is renamed and another one takes the
  // name. Null elsewhere.
  virtual Result<std::shared_ptr<const void>> HoldRoot();
};

// Returns true if the path of an open file still names it: the file was neither removed nor
// replaced.
Result<bool> IsNamed(FileSystem* file_system, File* file);

// The largest file that this process may write (RLIMIT_FSIZE, `ulimit -f`); the kernel refuses
// bytes beyond it with EFBIG, and sends SIGXFSZ, which ends a process that does not ignore it.
uint64_t FileBytesMax();

// One read, write or sync, owned by its submitter until OnComplete has run. Its memory (`vectors`
// and what they point at) must stay valid until then.
class Op {
 public:
  enum class Kind : uint8_t { kRead, kWrite, kSync };

  virtual ~Op() = default;
  // Runs on the Disk's thread, inside Poll() and nowhere else. May submit other ops.
  virtual void OnComplete() = 0;

  Kind kind = Kind::kRead;
  File* file = nullptr;  // of the same implementation as the Disk
  uint64_t offset_bytes = 0;
  std::span<const iovec> vectors;  // read into or written from; empty for kSync
  int buffer_index = -1;  // of Disk::RegisterBuffer, when vectors.size() == 1 and lies within it

  // Results, set before OnComplete. Short transfers are requeued inside the Disk; a read that ends
  // at the end of the file completes OK with transferred_bytes < wanted.
  Status status;
  uint64_t transferred_bytes = 0;
};

// The data plane. All calls but Wake on one thread.
class Disk {
 public:
  virtual ~Disk() = default;  // waits for what is in flight
  // Queues `op`; never blocks, never completes it inline. Errors arrive at OnComplete. A failed
  // write or sync trips the file's freeze.
  virtual void Submit(Op* op) = 0;
  // Runs OnComplete of what has finished; with `wait`, blocks until at least one op finished or
  // Wake() was called. Returns the number completed.
  virtual size_t Poll(bool wait) = 0;
  // Thread-safe: makes a current or the next Poll(true) return.
  virtual void Wake() = 0;
  virtual size_t in_flight() const = 0;
  // The number of ops that are worth having in flight.
  virtual size_t depth() const = 0;
  // Fixed buffers: an index for Op::buffer_index, or -1 where registration is not possible.
  virtual int RegisterBuffer(MutableBytes buffer) { return (void)buffer, -1; }
  // Registered files: faster, and the kernel keeps the description open (with its OFD lock) until
  // every op in flight is done, even after SIGKILL. Best effort; undone by UnregisterFile.
  virtual void RegisterFile(File* file) { (void)file; }
  virtual void UnregisterFile(File* file) { (void)file; }
  // For the log line and `doctor`: e.g. "io_uring, registered buffers" or "posix".
  virtual std::string Describe() const = 0;
};

}  // namespace stepwell::io
