// SPDX-License-Identifier: Apache-2.0
// stepwell_record_files BACKING POINT LOG: a file system of FUSE at POINT which passes everything
// through to the directory BACKING (empty at first) and puts each change into LOG, with its data
// and in order: of it crash/images.py makes what a power cut or a kill would have left. Lines that
// a program writes to POINT/.marks stand there, too. It says "ready" on stdout, and unmounts when
// its stdin ends, so nothing stays mounted when whoever started it is gone.
//
// A record: Header, the name, the other name, the data. Files have numbers from 1 (the root), in
// the order in which they were made; never the same one twice, unlike those of inodes.
#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dirent.h>
#include <linux/fs.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

enum Op : uint32_t {
  kCreate = 1,  // a: folder, b: file, c: mode; name
  kMakeDirectory,
  kSymlink,  // the same; data: target
  kLink,     // a: folder, b: file; name
  kUnlink,   // the same
  kRemoveDirectory,
  kRename,    // a: old folder, b: new folder, c: 2 for an exchange; both names
  kWrite,     // a: file, b: offset; data
  kTruncate,  // a: file, b: size
  kPunch,     // a: file, b: offset, c: length
  kSync,      // a: file
  kSyncDirectory,
  kMode,  // a: file, c: mode
  kMark,  // data
};

struct Header {
  uint32_t op;
  uint32_t name_bytes;
  uint32_t other_bytes;
  uint32_t data_bytes;
  uint64_t a, b, c;
};
static_assert(sizeof(Header) == 40);

constexpr char kMarks[] = "/.marks";

int root = -1;  // BACKING
int log_file = -1;
std::map<ino_t, uint64_t> numbers;  // of what is there
uint64_t number_last = 0;

struct OpenFile {
  int fd;
  uint64_t number;
  bool append;
};

OpenFile* Of(const fuse_file_info* file) { return reinterpret_cast<OpenFile*>(file->fh); }

const char* Relative(const char* path) { return path[1] == 0 ? "." : path + 1; }

// A log with a gap would make wrong images: end instead.
void Log(Op op, uint64_t a, uint64_t b = 0, uint64_t c = 0, std::string_view name = {},
         std::string_view other = {}, std::string_view data = {}) {
  const Header header = {op,
                         static_cast<uint32_t>(name.size()),
                         static_cast<uint32_t>(other.size()),
                         static_cast<uint32_t>(data.size()),
                         a,
                         b,
                         c};
  std::string record(reinterpret_cast<const char*>(&header), sizeof(header));
  record.append(name).append(other).append(data);
  if (write(log_file, record.data(), record.size()) != static_cast<ssize_t>(record.size())) {
    std::perror("stepwell_record_files: the log");
    std::_Exit(1);
  }
}

uint64_t NumberOf(const char* path) {
  struct stat info {};
  if (fstatat(root, Relative(path), &info, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  return numbers[info.st_ino];
}

struct Place {
  uint64_t folder;
  std::string name;
};

Place PlaceOf(const char* path) {
  const std::string whole = path;
  const size_t slash = whole.rfind('/');
  return {NumberOf(slash == 0 ? "/" : whole.substr(0, slash).c_str()), whole.substr(slash + 1)};
}

// Gives what was just made a number, and logs that.
int Made(Op op, const char* path, std::string_view data = {}) {
  struct stat info {};
  if (fstatat(root, Relative(path), &info, AT_SYMLINK_NOFOLLOW) != 0) return -errno;
  numbers[info.st_ino] = ++number_last;
  const Place place = PlaceOf(path);
  Log(op, place.folder, number_last, info.st_mode & 07777, place.name, {}, data);
  return 0;
}

// The path of an open file that was removed is null.
bool IsMarks(const char* path) { return path != nullptr && std::strcmp(path, kMarks) == 0; }

int GetAttributes(const char* path, struct stat* info, fuse_file_info* file) {
  if (IsMarks(path)) {
    *info = {};
    info->st_mode = S_IFREG | 0600;
    info->st_nlink = 1;
    return 0;
  }
  const int done = file != nullptr ? fstat(Of(file)->fd, info)
                                   : fstatat(root, Relative(path), info, AT_SYMLINK_NOFOLLOW);
  return done == 0 ? 0 : -errno;
}

int ReadLink(const char* path, char* out, size_t size) {
  const ssize_t bytes = readlinkat(root, Relative(path), out, size - 1);
  if (bytes < 0) return -errno;
  out[bytes] = 0;
  return 0;
}

int MakeDirectory(const char* path, mode_t mode) {
  if (mkdirat(root, Relative(path), mode) != 0) return -errno;
  return Made(kMakeDirectory, path);
}

int Remove(const char* path, bool directory) {
  const uint64_t number = NumberOf(path);
  const Place place = PlaceOf(path);
  if (unlinkat(root, Relative(path), directory ? AT_REMOVEDIR : 0) != 0) return -errno;
  Log(directory ? kRemoveDirectory : kUnlink, place.folder, number, 0, place.name);
  return 0;
}

int Unlink(const char* path) { return Remove(path, false); }
int RemoveDirectory(const char* path) { return Remove(path, true); }

int Symlink(const char* target, const char* path) {
  if (symlinkat(target, root, Relative(path)) != 0) return -errno;
  return Made(kSymlink, path, target);
}

int Rename(const char* from, const char* to, unsigned flags) {
  if ((flags & ~(RENAME_EXCHANGE | RENAME_NOREPLACE)) != 0) return -EINVAL;
  const Place old_place = PlaceOf(from);
  const Place new_place = PlaceOf(to);
  if (syscall(SYS_renameat2, root, Relative(from), root, Relative(to), flags) != 0) return -errno;
  Log(kRename, old_place.folder, new_place.folder, flags & RENAME_EXCHANGE, old_place.name,
      new_place.name);
  return 0;
}

int Link(const char* from, const char* to) {
  if (linkat(root, Relative(from), root, Relative(to), 0) != 0) return -errno;
  const Place place = PlaceOf(to);
  Log(kLink, place.folder, NumberOf(to), 0, place.name);
  return 0;
}

int ChangeMode(const char* path, mode_t mode, fuse_file_info* file) {
  const int done =
      file != nullptr ? fchmod(Of(file)->fd, mode) : fchmodat(root, Relative(path), mode, 0);
  if (done != 0) return -errno;
  Log(kMode, file != nullptr ? Of(file)->number : NumberOf(path), 0, mode & 07777);
  return 0;
}

int ChangeOwner(const char* path, uid_t user, gid_t group, fuse_file_info* file) {
  const int done = file != nullptr
                       ? fchown(Of(file)->fd, user, group)
                       : fchownat(root, Relative(path), user, group, AT_SYMLINK_NOFOLLOW);
  return done == 0 ? 0 : -errno;
}

int SetTimes(const char* path, const timespec times[2], fuse_file_info* file) {
  const int done = file != nullptr ? futimens(Of(file)->fd, times)
                                   : utimensat(root, Relative(path), times, AT_SYMLINK_NOFOLLOW);
  return done == 0 ? 0 : -errno;
}

int Truncate(const char* path, off_t size, fuse_file_info* file) {
  if (IsMarks(path)) return 0;
  const int fd = file != nullptr ? Of(file)->fd : openat(root, Relative(path), O_WRONLY);
  if (fd < 0) return -errno;
  const int error = ftruncate(fd, size) == 0 ? 0 : -errno;
  if (error == 0) {
    Log(kTruncate, file != nullptr ? Of(file)->number : NumberOf(path),
        static_cast<uint64_t>(size));
  }
  if (file == nullptr) close(fd);
  return error;
}

int Opened(const char* path, int fd, int flags, fuse_file_info* file) {
  if (fd < 0) return -errno;
  struct stat info {};
  fstat(fd, &info);
  file->fh = reinterpret_cast<uint64_t>(
      new OpenFile{fd, IsMarks(path) ? 0 : numbers[info.st_ino], (flags & O_APPEND) != 0});
  file->direct_io = 1;  // nothing is cached: all of it comes here, also through hard links
  return 0;
}

int Open(const char* path, fuse_file_info* file) {
  if (IsMarks(path)) return Opened(path, open("/dev/null", O_RDWR | O_CLOEXEC), 0, file);
  const int kept = file->flags & (O_ACCMODE | O_APPEND | O_TRUNC | O_NOFOLLOW);
  const int error = Opened(path, openat(root, Relative(path), kept | O_CLOEXEC), kept, file);
  if (error == 0 && (kept & O_TRUNC) != 0) Log(kTruncate, Of(file)->number, 0);
  return error;
}

int Create(const char* path, mode_t mode, fuse_file_info* file) {
  struct stat info {};
  const bool existed = fstatat(root, Relative(path), &info, AT_SYMLINK_NOFOLLOW) == 0;
  const int kept = file->flags & (O_ACCMODE | O_APPEND | O_TRUNC | O_EXCL | O_NOFOLLOW);
  const int fd = openat(root, Relative(path), kept | O_CREAT | O_CLOEXEC, mode);
  if (fd < 0) return -errno;
  if (!existed) Made(kCreate, path);
  const int error = Opened(path, fd, kept, file);
  if (existed && (kept & O_TRUNC) != 0) Log(kTruncate, Of(file)->number, 0);
  return error;
}

int Read(const char* /*path*/, char* out, size_t size, off_t offset, fuse_file_info* file) {
  const ssize_t bytes = pread(Of(file)->fd, out, size, offset);
  return bytes < 0 ? -errno : static_cast<int>(bytes);
}

int Write(const char* /*path*/, const char* bytes, size_t size, off_t offset,
          fuse_file_info* file) {
  const OpenFile* const open_file = Of(file);
  if (open_file->number == 0) {
    Log(kMark, 0, 0, 0, {}, {}, {bytes, size});
    return static_cast<int>(size);
  }
  struct stat info {};
  if (open_file->append && fstat(open_file->fd, &info) == 0) offset = info.st_size;
  const ssize_t written = pwrite(open_file->fd, bytes, size, offset);
  if (written < 0) return -errno;
  Log(kWrite, open_file->number, static_cast<uint64_t>(offset), 0, {}, {},
      {bytes, static_cast<size_t>(written)});
  return static_cast<int>(written);
}

int Sync(const char* /*path*/, int /*data_only*/, fuse_file_info* file) {
  if (Of(file)->number != 0) Log(kSync, Of(file)->number);
  return 0;
}

int SyncDirectory(const char* path, int /*data_only*/, fuse_file_info* file) {
  // The directory may have another name by now, or none.
  struct stat info {};
  if (file != nullptr && fstat(dirfd(reinterpret_cast<DIR*>(file->fh)), &info) == 0) {
    Log(kSyncDirectory, numbers[info.st_ino]);
  } else {
    Log(kSyncDirectory, NumberOf(path));
  }
  return 0;
}

// Blocks are not set aside: what is allocated reads as zeros, and costs nothing.
int Allocate(const char* /*path*/, int mode, off_t offset, off_t length, fuse_file_info* file) {
  const OpenFile* const open_file = Of(file);
  struct stat info {};
  if (fstat(open_file->fd, &info) != 0) return -errno;
  const bool zeros = (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0;
  if ((mode & ~(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE)) != 0) {
    return -EOPNOTSUPP;
  }
  if (zeros &&
      fallocate(open_file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) != 0) {
    return -errno;
  }
  if (zeros) {
    Log(kPunch, open_file->number, static_cast<uint64_t>(offset), static_cast<uint64_t>(length));
  }
  if ((mode & FALLOC_FL_KEEP_SIZE) == 0 && offset + length > info.st_size) {
    if (ftruncate(open_file->fd, offset + length) != 0) return -errno;
    Log(kTruncate, open_file->number, static_cast<uint64_t>(offset + length));
  }
  return 0;
}

off_t Seek(const char* /*path*/, off_t offset, int whence, fuse_file_info* file) {
  const off_t found = lseek(Of(file)->fd, offset, whence);
  return found < 0 ? -errno : found;
}

int Release(const char* /*path*/, fuse_file_info* file) {
  close(Of(file)->fd);
  delete Of(file);
  return 0;
}

int OpenDirectory(const char* path, fuse_file_info* file) {
  const int fd = openat(root, Relative(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  file->fh = reinterpret_cast<uint64_t>(fdopendir(fd));
  return 0;
}

int ReadDirectory(const char* /*path*/, void* out, fuse_fill_dir_t fill, off_t /*offset*/,
                  fuse_file_info* file, fuse_readdir_flags /*flags*/) {
  DIR* const directory = reinterpret_cast<DIR*>(file->fh);
  rewinddir(directory);
  while (const dirent* entry = readdir(directory)) {
    struct stat info {};
    info.st_ino = entry->d_ino;
    info.st_mode = static_cast<mode_t>(DTTOIF(entry->d_type));
    if (fill(out, entry->d_name, &info, 0, static_cast<fuse_fill_dir_flags>(0)) != 0) break;
  }
  return 0;
}

int ReleaseDirectory(const char* /*path*/, fuse_file_info* file) {
  closedir(reinterpret_cast<DIR*>(file->fh));
  return 0;
}

int FileSystemInfo(const char* /*path*/, struct statvfs* info) {
  return fstatvfs(root, info) == 0 ? 0 : -errno;
}

void* Init(fuse_conn_info* /*connection*/, fuse_config* config) {
  config->use_ino = 1;
  config->hard_remove = 1;  // open files stay usable by their descriptors
  config->nullpath_ok = 1;
  config->entry_timeout = 0;
  config->attr_timeout = 0;
  config->negative_timeout = 0;
  std::printf("ready\n");
  std::fflush(stdout);
  return nullptr;
}

int Serve(const char* point) {
  fuse_operations operations = {};
  operations.getattr = GetAttributes;
  operations.readlink = ReadLink;
  operations.mkdir = MakeDirectory;
  operations.unlink = Unlink;
  operations.rmdir = RemoveDirectory;
  operations.symlink = Symlink;
  operations.rename = Rename;
  operations.link = Link;
  operations.chmod = ChangeMode;
  operations.chown = ChangeOwner;
  operations.utimens = SetTimes;
  operations.truncate = Truncate;
  operations.open = Open;
  operations.create = Create;
  operations.read = Read;
  operations.write = Write;
  operations.fsync = Sync;
  operations.fsyncdir = SyncDirectory;
  operations.fallocate = Allocate;
  operations.lseek = Seek;
  operations.release = Release;
  operations.opendir = OpenDirectory;
  operations.readdir = ReadDirectory;
  operations.releasedir = ReleaseDirectory;
  operations.statfs = FileSystemInfo;
  operations.init = Init;
  // One thread: the log's order is that of the changes.
  std::vector<std::string> arguments = {"record_files",        "-f", "-s", "-o",
                                        "fsname=record_files", point};
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return fuse_main(static_cast<int>(pointers.size()), pointers.data(), &operations, nullptr);
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count != 4) {
    std::fprintf(stderr, "usage: stepwell_record_files BACKING POINT LOG\n");
    return 2;
  }
  const char* const point = arguments[2];
  const pid_t server = fork();
  if (server == 0) {
    umask(0);
    root = open(arguments[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    log_file = open(arguments[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct stat info {};
    if (root < 0 || log_file < 0 || fstat(root, &info) != 0) return 1;
    numbers[info.st_ino] = ++number_last;
    return Serve(point);
  }
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  umount2(point, MNT_DETACH);
  kill(server, SIGKILL);  // who waits for its file system hears ENOTCONN
  int status = 0;
  waitpid(server, &status, 0);
  return 0;
}
