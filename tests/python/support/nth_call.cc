// SPDX-License-Identifier: Apache-2.0
// A library for Python (crash/faults.py): the n-th system call of this process on files below a
// directory is its last, or fails. Which files a call is about is read from the memory and the
// descriptors of the process, so that what Python imports meanwhile is not counted. Calls of
// processes that it starts go on as they are.
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/db/support/asked_calls.h"

namespace {

// The arguments that tell a call's object: a descriptor, or a path beside a directory's descriptor.
struct Call {
  int fd = -1;    // argument; -1: none
  int path = -1;  // argument; -1: none
  bool always = false;
  bool opens = false;  // gives a descriptor
};

const std::map<int, Call>& Calls() {
  static const std::map<int, Call> calls = {
      {SYS_pwrite64, {.fd = 0}},
      {SYS_pwritev, {.fd = 0}},
      {SYS_pwritev2, {.fd = 0}},
      {SYS_pread64, {.fd = 0}},
      {SYS_preadv, {.fd = 0}},
      {SYS_preadv2, {.fd = 0}},
      {SYS_read, {.fd = 0}},
      {SYS_write, {.fd = 0}},
      {SYS_fdatasync, {.fd = 0}},
      {SYS_fsync, {.fd = 0}},
      {SYS_sync_file_range, {.fd = 0}},
      {SYS_fallocate, {.fd = 0}},
      {SYS_ftruncate, {.fd = 0}},
      {SYS_copy_file_range, {.fd = 2}},
      {SYS_sendfile, {.fd = 0}},
      {SYS_io_uring_enter, {.always = true}},
      {SYS_openat, {.fd = 0, .path = 1, .opens = true}},
      {SYS_openat2, {.fd = 0, .path = 1, .opens = true}},
      {SYS_renameat, {.fd = 0, .path = 1}},
      {SYS_renameat2, {.fd = 0, .path = 1}},
      {SYS_unlinkat, {.fd = 0, .path = 1}},
      {SYS_linkat, {.fd = 0, .path = 1}},
      {SYS_mkdirat, {.fd = 0, .path = 1}},
      {SYS_symlinkat, {.fd = 1, .path = 2}},
      {SYS_newfstatat, {.fd = 0, .path = 1}},
      {SYS_statx, {.fd = 0, .path = 1}},
      {SYS_fchmodat, {.fd = 0, .path = 1}},
      {SYS_getdents64, {.fd = 0}},
      {SYS_fstat, {.fd = 0}},
      {SYS_fstatfs, {.fd = 0}},
      {SYS_fchmod, {.fd = 0}},
      {SYS_fcntl, {.fd = 0}},
      {SYS_flock, {.fd = 0}},
      {SYS_ioctl, {.fd = 0}},
      {SYS_statfs, {.path = 0}},
#ifdef SYS_open
      {SYS_open, {.path = 0, .opens = true}},
      {SYS_rename, {.path = 0}},
      {SYS_unlink, {.path = 0}},
      {SYS_rmdir, {.path = 0}},
      {SYS_link, {.path = 0}},
      {SYS_mkdir, {.path = 0}},
      {SYS_stat, {.path = 0}},
      {SYS_lstat, {.path = 0}},
      {SYS_chmod, {.path = 0}},
      {SYS_symlink, {.path = 1}},
      {SYS_readlink, {.path = 0}},
      {SYS_access, {.path = 0}},
#endif
      {SYS_readlinkat, {.fd = 0, .path = 1}},
      {SYS_faccessat, {.fd = 0, .path = 1}},
      {SYS_faccessat2, {.fd = 0, .path = 1}},
  };
  return calls;
}

std::string g_directory;            // with a slash at its end
std::atomic<bool> g_counts{false};  // whether calls are counted and fail
std::atomic<uint64_t> g_counted{0};
std::atomic<uint64_t> g_n{0};            // which one; 0: none
std::atomic<int> g_errno{0};             // 0: SIGKILL instead of the call
std::atomic<bool> g_for_ever{false};     // and all later ones, until counting stops
std::atomic<bool> g_descriptors{false};  // only calls that give a descriptor

bool IsBelow(std::string_view path) {
  return path.substr(0, g_directory.size()) == g_directory ||
         path == std::string_view(g_directory).substr(0, g_directory.size() - 1);
}

bool IsBelow(int fd) {
  char link[64];
  char target[4096];
  if (fd == AT_FDCWD) {
    std::strcpy(link, "/proc/self/cwd");
  } else {
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  }
  const ssize_t bytes = readlink(link, target, sizeof(target));
  return bytes > 0 && IsBelow(std::string_view(target, static_cast<size_t>(bytes)));
}

bool IsOurs(const seccomp_notif& notice) {
  if (syscall(SYS_tgkill, getpid(), notice.pid, 0) != 0) return false;  // another process's
  const auto found = Calls().find(notice.data.nr);
  if (found == Calls().end()) return false;
  const Call& call = found->second;
  if (g_descriptors && !call.opens) return false;
  if (call.always) return true;
  if (call.path >= 0) {
    const auto* path = reinterpret_cast<const char*>(notice.data.args[call.path]);
    if (path != nullptr && path[0] == '/') return IsBelow(std::string_view(path));
  }
  return call.fd >= 0 && IsBelow(static_cast<int>(notice.data.args[call.fd]));
}

int ErrorOf(const seccomp_notif& notice) {
  if (!g_counts || !IsOurs(notice)) return 0;
  const uint64_t number = ++g_counted;
  if (number != g_n && (!g_for_ever || g_n == 0 || number < g_n)) return 0;
  if (g_errno == 0) kill(getpid(), SIGKILL);
  return g_errno;
}

}  // namespace

#define NTH_EXPORTED extern "C" __attribute__((visibility("default")))

// Once in a process: from here on calls of this thread, and of those that it starts, are asked for.
// 0, or -1 where the system has no seccomp.
NTH_EXPORTED int nth_watch(const char* directory) {
  g_directory = directory;
  std::vector<int> numbers;
  for (const auto& [number, call] : Calls()) numbers.push_back(number);
  return stepwell::test::AnswerCalls(numbers, ErrorOf) ? 0 : -1;
}

// The n-th call that is counted from now on is the process's last (error 0), or fails with `error`.
NTH_EXPORTED void nth_arm(uint64_t n, int error, int for_ever, int descriptors) {
  g_counts = false;
  g_n = n;
  g_errno = error;
  g_for_ever = for_ever != 0;
  g_descriptors = descriptors != 0;
  g_counted = 0;
}

NTH_EXPORTED void nth_count(int counts) { g_counts = counts != 0; }

NTH_EXPORTED uint64_t nth_counted() { return g_counted; }
