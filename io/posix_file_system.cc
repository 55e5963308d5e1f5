// SPDX-License-Identifier: Apache-2.0
// FileSystem and File on the machine's system calls.
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "io/beneath.h"
#include "io/mutex.h"
#include "io/open_disk.h"
#include "io/transfer.h"
#include "io/whole_sync.h"

namespace stepwell::io {
namespace {

// The status of a call that has just returned `result`.
Status StatusOf(int result, const char* operation, const std::string& path) {
  if (result >= 0) return OkStatus();
  const int os_error = errno;  // before anything else can change it
  return ErrnoStatus(os_error, StrCat(operation, " ", path));
}

FileInfo InfoOf(const struct stat& status) {
  FileInfo info;
  info.size_bytes = static_cast<uint64_t>(status.st_size);
  info.allocated_bytes = static_cast<uint64_t>(status.st_blocks) * 512;
  info.link_count = status.st_nlink;
  info.inode = status.st_ino;
  info.device = status.st_dev;
  info.owner = status.st_uid;
  info.mode = status.st_mode & 07777;
  info.modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  info.block_bytes = static_cast<uint32_t>(status.st_blksize);
  info.is_directory = S_ISDIR(status.st_mode);
  return info;
}

// FIFOs, sockets and devices have no offsets, or no end.
Status CheckRegular(const struct stat& status, const std::string& path) {
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) return OkStatus();
  return InvalidArgumentError(StrCat("open ", path, ": it is not a regular file"));
}

Status LinkRefused(const std::string& path) {
  return FailedPreconditionError(
      StrCat(path,
             ": it is a symbolic link, or lies behind one; below a store's directory none is "
             "followed"));
}

// Dirty pages are handed to the disk after so many bytes, else all of them wait for the sync.
constexpr uint64_t kWritebackBytes = uint64_t{16} << 20;

struct BlockingOp final : Op {
  void OnComplete() override {}
};

class PosixFile final : public File {
 public:
  PosixFile(std::string path, std::shared_ptr<Freeze> freeze, Descriptor descriptor,
            Alignment alignment)
      : File(std::move(path), std::move(freeze)),
        descriptor_(std::move(descriptor)),
        alignment_(alignment) {}

  Result<size_t> ReadAt(uint64_t offset, MutableBytes out) override {
    const iovec vector{out.data(), out.size()};
    BlockingOp op;
    STEPWELL_RETURN_IF_ERROR(Run(&op, Op::Kind::kRead, offset, vector));
    return static_cast<size_t>(op.transferred_bytes);
  }

  Status WriteAt(uint64_t offset, ConstBytes data) override {
    const iovec vector{const_cast<std::byte*>(data.data()), data.size()};
    BlockingOp op;
    return Run(&op, Op::Kind::kWrite, offset, vector);
  }

  Status Sync() override {
    BlockingOp op;
    return Run(&op, Op::Kind::kSync, 0, {});
  }

  Status Allocate(uint64_t offset, uint64_t length) override {
    STEPWELL_RETURN_IF_ERROR(freeze()->Check());
    const int result = Uninterrupted([&] {
      return fallocate(descriptor(), 0, static_cast<off_t>(offset), static_cast<off_t>(length));
    });
    if (result != 0 && errno == EOPNOTSUPP) return OkStatus();
    return StatusOf(result, "allocate", path());
  }

  Status PunchHole(uint64_t offset, uint64_t length) override {
    STEPWELL_RETURN_IF_ERROR(freeze()->Check());
    const int result = Uninterrupted([&] {
      return fallocate(descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       static_cast<off_t>(offset), static_cast<off_t>(length));
    });
    // EOPNOTSUPP of the file system, ENOSYS of the kernel or of a sandbox.
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
      return UnimplementedError(StrCat("punch ", path(), ": the file system cannot"));
    }
    return StatusOf(result, "punch", path());
  }

  Status Truncate(uint64_t size) override {
    STEPWELL_RETURN_IF_ERROR(freeze()->Check());
    return StatusOf(
        Uninterrupted([&] { return ftruncate(descriptor(), static_cast<off_t>(size)); }),
        "truncate", path());
  }

  Status CloneFrom(File& source, uint64_t source_offset, uint64_t length,
                   uint64_t offset) override {
    STEPWELL_RETURN_IF_ERROR(freeze()->Check());
    struct file_clone_range range {};
    range.src_fd = source.descriptor();
    range.src_offset = source_offset;
    range.src_length = length;
    range.dest_offset = offset;
    if (length == 0) return OkStatus();  // to the kernel this means "to the end"
    const int result = Uninterrupted([&] { return ioctl(descriptor(), FICLONERANGE, &range); });
    if (result == 0) return OkStatus();
    const int os_error = errno;
    const std::string what = StrCat("clone into ", path());
    if (os_error == EXDEV) {
      return {StatusCode::kFailedPrecondition,
              StrCat(what, ": ", source.path(), " is on another file system"), os_error};
    }
    if (os_error == EOPNOTSUPP || os_error == ENOTTY || os_error == ENOSYS || os_error == EINVAL) {
      return {StatusCode::kUnimplemented, StrCat(what, ": the file system cannot"), os_error};
    }
    return Failed(ErrnoStatus(os_error, what));
  }

  Status CopyFrom(File& source, uint64_t source_offset, uint64_t length, uint64_t offset) override {
    STEPWELL_RETURN_IF_ERROR(freeze()->Check());
    const uint64_t shift = offset - source_offset;  // modulo 2^64
    const uint64_t end = source_offset + length;
    uint64_t written_back = offset;
    for (uint64_t at = source_offset; at < end;) {
      auto from = static_cast<off64_t>(at);
      auto to = static_cast<off64_t>(at + shift);
      const size_t part = std::min<uint64_t>(end - at, kWritebackBytes);
      const ssize_t copied = Uninterrupted(
          [&] { return copy_file_range(source.descriptor(), &from, descriptor(), &to, part, 0); });
      if (copied < 0) {
        const int os_error = errno;
        if (os_error == EXDEV || os_error == EINVAL || os_error == ENOSYS ||
            os_error == EOPNOTSUPP || os_error == EPERM) {
          return File::CopyFrom(source, at, end - at, at + shift);
        }
        return Failed(ErrnoStatus(os_error, StrCat("copy into ", path())));
      }
      if (copied == 0) return DataLossError(StrCat(source.path(), ": ends before offset ", end));
      at += static_cast<uint64_t>(copied);
      if (at + shift - written_back >= kWritebackBytes) {
        sync_file_range(descriptor(), static_cast<off64_t>(written_back),
                        static_cast<off64_t>(at + shift - written_back), SYNC_FILE_RANGE_WRITE);
        written_back = at + shift;
      }
    }
    return OkStatus();
  }

  Result<FileInfo> Info() override {
    struct stat status {};
    STEPWELL_RETURN_IF_ERROR(StatusOf(fstat(descriptor(), &status), "stat", path()));
    return InfoOf(status);
  }

  Result<bool> TryLock(LockKind kind) override {
    struct flock lock = WholeFile(kind == LockKind::kShared ? F_RDLCK : F_WRLCK);
    const int result = Uninterrupted([&] { return fcntl(descriptor(), F_OFD_SETLK, &lock); });
    if (result != 0 && (errno == EAGAIN || errno == EACCES)) return false;
    if (result != 0) return LockStatus(errno, path());
    return true;
  }

  Status Unlock() override {
    struct flock lock = WholeFile(F_UNLCK);
    return StatusOf(fcntl(descriptor(), F_OFD_SETLK, &lock), "unlock", path());
  }

  Result<bool> LockedByOther() override {
    // "Could I have a shared lock?": only another holder's exclusive lock says no.
    struct flock lock = WholeFile(F_RDLCK);
    if (fcntl(descriptor(), F_OFD_GETLK, &lock) != 0) return LockStatus(errno, path());
    return lock.l_type != F_UNLCK;
  }

  Alignment alignment() const override { return alignment_; }
  int descriptor() const override { return descriptor_.value(); }

 private:
  static struct flock WholeFile(int type) {
    struct flock lock {};
    lock.l_type = static_cast<short>(type);
    lock.l_whence = SEEK_SET;  // l_len 0: to the end, however far that grows
    return lock;
  }

  // A failed change of the file.
  Status Failed(Status status) {
    if (status.code() != StatusCode::kResourceExhausted) freeze()->Trip(status);
    return status;
  }

  Status Run(BlockingOp* op, Op::Kind kind, uint64_t offset, const iovec& vector) {
    op->kind = kind;
    op->file = this;
    op->offset_bytes = offset;
    if (kind != Op::Kind::kSync) op->vectors = {&vector, 1};
    RunBlocking(op);
    return op->status;
  }

  const Descriptor descriptor_;
  const Alignment alignment_;
};

// Turns O_DIRECT on where the file system takes it and tells what it then demands. Not at open():
// some file systems create the file first and then refuse the flag. O_NONBLOCK goes: io_uring would
// answer EAGAIN on it.
Alignment SetFlags(int descriptor, bool direct) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0) return {};
  if (!direct || fcntl(descriptor, F_SETFL, (flags & ~O_NONBLOCK) | O_DIRECT) != 0) {
    (void)fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK);
    return {};
  }
  // A kernel before 6.1, and tmpfs or btrfs on any, do not say; 4 KiB is right for all of those.
  Alignment alignment{4096, 4096};
#ifdef STATX_DIOALIGN
  struct statx extended {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &extended) == 0 &&
      (extended.stx_mask & STATX_DIOALIGN) != 0 && extended.stx_dio_mem_align != 0 &&
      extended.stx_dio_offset_align != 0) {
    alignment = {extended.stx_dio_mem_align, extended.stx_dio_offset_align};
  }
#endif
  return alignment;
}

class PosixFileSystem final : public FileSystem {
 public:
  PosixFileSystem() = default;
  PosixFileSystem(std::string root, FileModes modes) : root_(std::move(root)), modes_(modes) {
    while (root_.size() > 1 && root_.back() == '/') root_.pop_back();
  }

  Result<std::unique_ptr<File>> Open(const std::string& path,
                                     const FileOpenOptions& options) override {
    auto freeze = options.freeze ? options.freeze : std::make_shared<Freeze>();
    // Creating and truncating change the disk; opening alone does not.
    if (options.create || options.truncate) STEPWELL_RETURN_IF_ERROR(freeze->Check());
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    struct stat status {};
    // A device may act on being opened.
    if (at.beneath && !(options.create && options.exclusive) &&
        fstatat(at.directory.value(), at.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISLNK(status.st_mode)) {
      STEPWELL_RETURN_IF_ERROR(CheckRegular(status, path));
    }
    int flags = at.NoFollow(O_CLOEXEC | (options.write ? O_RDWR : O_RDONLY));
    if (options.create) flags |= O_CREAT;
    if (options.create && options.exclusive) flags |= O_EXCL;
    if (options.truncate) flags |= O_TRUNC;
    // Opening a FIFO would wait for its other end.
    if (!options.write || at.beneath) flags |= O_NONBLOCK;
    Descriptor descriptor(Uninterrupted(
        [&] { return openat(at.directory.value(), at.name.c_str(), flags, at.Mode(0666)); }));
    STEPWELL_RETURN_IF_ERROR(
        at.Check(descriptor.value(), options.create ? "create" : "open", path));
    if (!options.write || at.beneath) {
      STEPWELL_RETURN_IF_ERROR(StatusOf(fstat(descriptor.value(), &status), "stat", path));
      STEPWELL_RETURN_IF_ERROR(CheckRegular(status, path));
    }
    const Alignment alignment = SetFlags(descriptor.value(), options.direct);
    return std::unique_ptr<File>(
        std::make_unique<PosixFile>(path, std::move(freeze), std::move(descriptor), alignment));
  }

  Result<FileInfo> Stat(const std::string& path) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    struct stat status {};
    STEPWELL_RETURN_IF_ERROR(StatusOf(fstatat(at.directory.value(), at.name.c_str(), &status,
                                              at.beneath ? AT_SYMLINK_NOFOLLOW : 0),
                                      "stat", path));
    if (S_ISLNK(status.st_mode)) return LinkRefused(path);
    FileInfo info = InfoOf(status);
    struct statx extended {};
    if (info.is_directory &&
        statx(at.directory.value(), at.name.c_str(), at.beneath ? AT_SYMLINK_NOFOLLOW : 0,
              STATX_BTIME | STATX_INO, &extended) == 0 &&
        (extended.stx_mask & STATX_BTIME) != 0 && extended.stx_ino == info.inode) {
      info.born_ns =
          int64_t{extended.stx_btime.tv_sec} * 1'000'000'000 + extended.stx_btime.tv_nsec;
    }
    return info;
  }

  Result<std::vector<std::string>> List(const std::string& path) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    const int opened = at.OpenDirectory(O_RDONLY);
    DIR* directory = opened < 0 ? nullptr : fdopendir(opened);
    if (directory == nullptr) {
      Status status = at.Check(-1, "list", path);
      if (opened >= 0) close(opened);  // fdopendir took it only if it succeeded
      return status;
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(directory)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    Status status = StatusOf(errno == 0 ? 0 : -1, "list", path);
    closedir(directory);
    STEPWELL_RETURN_IF_ERROR(std::move(status));
    std::sort(names.begin(), names.end());
    return names;
  }

  Status CreateDirectory(const std::string& path) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    return StatusOf(mkdirat(at.directory.value(), at.name.c_str(), at.Mode(0777)),
                    "create directory", path);
  }
  Status Remove(const std::string& path) override { return Unlink(path, 0, "remove"); }
  Status RemoveDirectory(const std::string& path) override {
    return Unlink(path, AT_REMOVEDIR, "remove directory");
  }
  Status Rename(const std::string& from, const std::string& to) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place old, Find(from));
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(to));
    return StatusOf(
        renameat(old.directory.value(), old.name.c_str(), at.directory.value(), at.name.c_str()),
        "rename", StrCat(from, " to ", to));
  }
  Status Exchange(const std::string& one, const std::string& other) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place first, Find(one));
    STEPWELL_ASSIGN_OR_RETURN(const Place second, Find(other));
    const int done = renameat2(first.directory.value(), first.name.c_str(),
                               second.directory.value(), second.name.c_str(), RENAME_EXCHANGE);
    if (done != 0 && (errno == EINVAL || errno == ENOSYS)) {  // NFS
      return UnimplementedError(StrCat(one, ": the file system cannot exchange names"));
    }
    return StatusOf(done, "exchange", StrCat(one, " and ", other));
  }
  // For a symbolic link, this makes another name of the link itself.
  Status Link(const std::string& from, const std::string& to) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place old, Find(from));
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(to));
    return StatusOf(
        linkat(old.directory.value(), old.name.c_str(), at.directory.value(), at.name.c_str(), 0),
        "link", StrCat(from, " to ", to));
  }
  Status SetMode(const std::string& path, uint32_t mode) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    return StatusOf(fchmodat(at.directory.value(), at.name.c_str(), static_cast<mode_t>(mode),
                             at.beneath ? AT_SYMLINK_NOFOLLOW : 0),
                    "chmod", path);
  }
  Status SyncDirectory(const std::string& path) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    const Descriptor descriptor(at.OpenDirectory(O_RDONLY));
    STEPWELL_RETURN_IF_ERROR(at.Check(descriptor.value(), "sync directory", path));
    Status status =
        StatusOf(Uninterrupted([&] { return fsync(descriptor.value()); }), "sync directory", path);
    // Only an open may fail for want of memory; this is an fsync that failed.
    if (status.os_error() == ENOMEM) return {StatusCode::kDataLoss, status.message(), EIO};
    return status;
  }

  std::unique_ptr<WholeSync> TakeWholeSync(const std::string& path) override {
    return TakeLocalWholeSync(path);
  }
  Result<uint64_t> FreeBytes(const std::string& path) override {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    const Descriptor descriptor(at.OpenDirectory(O_PATH));
    STEPWELL_RETURN_IF_ERROR(at.Check(descriptor.value(), "statvfs", path));
    struct statvfs status {};
    STEPWELL_RETURN_IF_ERROR(StatusOf(
        Uninterrupted([&] { return fstatvfs(descriptor.value(), &status); }), "statvfs", path));
    return uint64_t{status.f_bavail} * status.f_frsize;
  }

  Result<std::shared_ptr<const void>> HoldRoot() override {
    if (root_.empty()) return std::shared_ptr<const void>();
    const MutexLock lock(&mutex_);
    std::shared_ptr<const Descriptor> held = held_.lock();
    if (held == nullptr) {
      held = std::make_shared<const Descriptor>(OpenDirectoryBeneath(root_.c_str(), ""));
      if (held->value() < 0) return StatusOf(-1, "open directory", root_);
      held_ = held;
    }
    return std::shared_ptr<const void>(std::move(held));
  }

 private:
  // The destination of a path. Below the root it is a directory that was reached without links, and
  // a name in it that is not followed either. Elsewhere it is the path as it is.
  struct Place {
    int NoFollow(int flags) const { return beneath ? flags | O_NOFOLLOW : flags; }
    mode_t Mode(mode_t mode) const { return mode & mask; }
    int OpenDirectory(int flags) const {
      return Uninterrupted([&] {
        return openat(directory.value(), name.c_str(), NoFollow(flags | O_DIRECTORY | O_CLOEXEC));
      });
    }
    // The status of a call that has just opened the name and returned `result`.
    Status Check(int result, const char* operation, const std::string& path) const {
      if (result >= 0 || !beneath || (errno != ELOOP && errno != ENOTDIR)) {
        return StatusOf(result, operation, path);
      }
      const int os_error = errno;
      struct stat status {};
      if (fstatat(directory.value(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISLNK(status.st_mode)) {
        return LinkRefused(path);
      }
      errno = os_error;
      return StatusOf(result, operation, path);
    }

    Descriptor directory{AT_FDCWD};
    std::string name;
    mode_t mask = 0777;
    bool beneath = false;
  };

  Result<Place> Find(const std::string& path) const {
    Place place;
    place.name = path;
    if (root_.empty() || !path.starts_with(root_)) return place;
    std::string_view below = std::string_view(path).substr(root_ == "/" ? 0 : root_.size());
    if (!below.empty() && below.front() != '/') return place;  // a sibling that begins alike
    while (!below.empty() && below.front() == '/') below.remove_prefix(1);
    while (!below.empty() && below.back() == '/') below.remove_suffix(1);
    if (modes_ == FileModes::kPrivate) place.mask = 0700;
    const std::shared_ptr<const Descriptor> held = Held();
    std::string_view parent;
    if (below.empty()) {  // the root itself
      if (held == nullptr) return place;
      place.name = ".";
    } else {
      const size_t slash = below.rfind('/');
      parent = below.substr(0, slash == std::string_view::npos ? 0 : slash);
      place.name = below.substr(slash == std::string_view::npos ? 0 : slash + 1);
      place.beneath = true;
      if (place.name == "." || place.name == "..") {
        return InvalidArgumentError(StrCat(path, ": it leads out of the directory ", root_));
      }
    }
    place.directory = held == nullptr ? OpenDirectoryBeneath(root_.c_str(), parent)
                                      : OpenDirectoryBeneath(held->value(), parent);
    if (place.directory.value() >= 0) return place;
    if (errno == ELOOP) return LinkRefused(path);
    return StatusOf(-1, "open the directory of", path);
  }

  Status Unlink(const std::string& path, int flags, const char* operation) {
    STEPWELL_ASSIGN_OR_RETURN(const Place at, Find(path));
    return StatusOf(unlinkat(at.directory.value(), at.name.c_str(), flags), operation, path);
  }

  std::shared_ptr<const Descriptor> Held() const {
    const MutexLock lock(&mutex_);
    return held_.lock();
  }

  mutable Mutex mutex_;
  std::weak_ptr<const Descriptor> held_ STEPWELL_GUARDED_BY(mutex_);
  std::string root_;  // "": none
  FileModes modes_ = FileModes::kUmask;
};

}  // namespace

FileSystem* LocalFileSystem() {
  static PosixFileSystem file_system;
  return &file_system;
}

std::unique_ptr<FileSystem> FileSystemBeneath(std::string root, FileModes modes) {
  return std::make_unique<PosixFileSystem>(std::move(root), modes);
}

}  // namespace stepwell::io
