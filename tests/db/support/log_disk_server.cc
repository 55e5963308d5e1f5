// SPDX-License-Identifier: Apache-2.0
// The other half of log_disk.h: log_disk_server DIRECTORY DISK LOG serves the memory file DISK as
// DIRECTORY/fuse/disk, puts what happens to it into LOG, and lines written to DIRECTORY/fuse/marks,
// too. It says "ready". A process of its own, since who serves a file system must not wait for it.
// When SIGTERM comes, or whoever started it is gone, nothing stays mounted below DIRECTORY.
#define FUSE_USE_VERSION 312
#include <fcntl.h>
#include <fuse.h>
#include <mntent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/db/support/log_disk_shared.h"

namespace stepwell::db {
namespace {

char* disk = nullptr;
uint64_t disk_bytes = 0;
SharedLog* shared = nullptr;

// Counts an operation and returns true if it fails. The caller holds the lock.
bool Fails(DiskOp op, uint64_t offset, uint64_t length) {
  Fault* fault = &shared->fault;
  const bool there =
      op == DiskOp::kFlush || (offset < fault->offset_end && offset + length > fault->offset_begin);
  if ((fault->ops & Bit(op)) == 0 || !there) return false;
  if (fault->skip > 0) {
    --fault->skip;
    return false;
  }
  if (fault->times == 0) return false;
  --fault->times;
  ++shared->failed;
  return true;
}

void Delay() {
  thread_local std::minstd_rand random(std::random_device{}());
  const uint32_t limit = shared->delay_us;
  if (limit > 0) usleep(random() % limit);
}

// A write, discard or flush, from its arrival to its completion: 0 or an errno.
int Change(DiskOp op, uint64_t offset, uint64_t length, const char* bytes) {
  if (offset > disk_bytes || length > disk_bytes - offset) return EIO;
  LogEntry* entry = nullptr;
  bool fails = false;
  {
    const SharedLogLock lock(shared);
    fails = Fails(op, offset, length);
    if (op == DiskOp::kFlush && shared->flushes_lie) return 0;
    entry = Begin(shared, op, offset, length, bytes);
    if (entry == nullptr) return ENOSPC;
  }
  Delay();
  const SharedLogLock lock(shared);
  if (fails && !shared->fault.done) {
    entry->length = 0;
    return EIO;
  }
  if (op == DiskOp::kWrite) std::memcpy(disk + offset, bytes, length);
  if (op == DiskOp::kDiscard) std::memset(disk + offset, 0, length);
  entry->end = ++shared->now;
  return fails ? EIO : 0;
}

bool IsMarks(const char* path) { return std::strcmp(path, "/marks") == 0; }

int GetAttributes(const char* path, struct stat* info, fuse_file_info* /*file*/) {
  *info = {};
  const bool is_disk = std::strcmp(path, "/disk") == 0;
  if (std::strcmp(path, "/") == 0) {
    info->st_mode = S_IFDIR | 0700;
    info->st_nlink = 2;
    return 0;
  }
  if (!is_disk && !IsMarks(path)) return -ENOENT;
  info->st_mode = S_IFREG | 0600;
  info->st_nlink = 1;
  info->st_size = is_disk ? static_cast<off_t>(disk_bytes) : 0;
  info->st_blksize = 4096;
  info->st_blocks = info->st_size / 512;
  return 0;
}

int Open(const char* /*path*/, fuse_file_info* file) {
  file->direct_io = 1;  // nothing is cached: all of it comes here
  return 0;
}

int Read(const char* path, char* out, size_t size, off_t offset, fuse_file_info* /*file*/) {
  const auto begin = static_cast<uint64_t>(offset);
  if (IsMarks(path) || begin >= disk_bytes) return 0;
  size = std::min<uint64_t>(size, disk_bytes - begin);
  const SharedLogLock lock(shared);
  if (Fails(DiskOp::kRead, begin, size)) return -EIO;
  std::memcpy(out, disk + begin, size);
  return static_cast<int>(size);
}

int Write(const char* path, const char* bytes, size_t size, off_t offset,
          fuse_file_info* /*file*/) {
  if (!IsMarks(path)) {
    const int error = Change(DiskOp::kWrite, static_cast<uint64_t>(offset), size, bytes);
    return error != 0 ? -error : static_cast<int>(size);
  }
  const SharedLogLock lock(shared);
  LogEntry* entry = Begin(shared, DiskOp::kMark, 0, size, bytes);
  if (entry == nullptr) return -ENOSPC;
  entry->end = entry->begin;
  return static_cast<int>(size);
}

int Sync(const char* path, int /*data_only*/, fuse_file_info* /*file*/) {
  return IsMarks(path) ? 0 : -Change(DiskOp::kFlush, 0, 0, nullptr);
}

int Allocate(const char* /*path*/, int mode, off_t offset, off_t length, fuse_file_info* /*file*/) {
  if ((mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) == 0) return -EOPNOTSUPP;
  return -Change(DiskOp::kDiscard, static_cast<uint64_t>(offset), static_cast<uint64_t>(length),
                 nullptr);
}

char* Map(const char* path, uint64_t* bytes) {
  const int file = open(path, O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (file < 0 || fstat(file, &info) != 0) return nullptr;
  *bytes = static_cast<uint64_t>(info.st_size);
  void* memory = mmap(nullptr, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<char*>(memory);
}

int Serve(const std::string& point, const char* disk_path, const char* log_path) {
  uint64_t log_bytes = 0;
  disk = Map(disk_path, &disk_bytes);
  shared = reinterpret_cast<SharedLog*>(Map(log_path, &log_bytes));
  if (disk == nullptr || shared == nullptr || log_bytes < sizeof(SharedLog)) return 1;
  fuse_operations operations = {};
  operations.getattr = GetAttributes;
  operations.open = Open;
  operations.read = Read;
  operations.write = Write;
  operations.fsync = Sync;
  operations.fallocate = Allocate;
  operations.init = [](fuse_conn_info* /*connection*/, fuse_config* /*config*/) -> void* {
    std::printf("ready\n");
    std::fflush(stdout);
    return nullptr;
  };
  // The second option is the default, of which libfuse 3.14 warns.
  std::vector<std::string> arguments = {"log_disk", "-f", "-o",
                                        "fsname=log_disk,max_idle_threads=10", point};
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return fuse_main(static_cast<int>(pointers.size()), pointers.data(), &operations, nullptr);
}

// Takes down what is mounted below the directory, newest first, and its mount points.
void CleanUp(const std::string& directory) {
  std::vector<std::string> points;
  FILE* mounts = setmntent("/proc/self/mounts", "r");
  while (const mntent* entry = mounts == nullptr ? nullptr : getmntent(mounts)) {
    const std::string point = entry->mnt_dir;
    if (point.compare(0, directory.size() + 1, directory + "/") == 0) points.push_back(point);
  }
  if (mounts != nullptr) endmntent(mounts);
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    umount2(point->c_str(), MNT_DETACH);
  }
  std::error_code ignored;
  for (const char* name : {"/fuse", "/disk", "/image"}) {
    std::filesystem::remove(directory + name, ignored);  // empty by now
  }
  std::filesystem::remove(directory, ignored);
}

int Main(const std::string& directory, const char* disk_path, const char* log_path) {
  const pid_t parent = getppid();
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&signals, number);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) return 1;
  const pid_t server = fork();
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(Serve(directory + "/fuse", disk_path, log_path));
  }
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  kill(server, SIGKILL);  // who waits for its file system hears ENOTCONN
  waitpid(server, nullptr, 0);
  CleanUp(directory);
  return signal_number == SIGTERM ? 0 : 1;
}

}  // namespace
}  // namespace stepwell::db

int main(int argument_count, char** arguments) {
  if (argument_count != 4) {
    std::fprintf(stderr, "usage: log_disk_server DIRECTORY DISK LOG\n");
    return 2;
  }
  return stepwell::db::Main(arguments[1], arguments[2], arguments[3]);
}
