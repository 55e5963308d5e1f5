// SPDX-License-Identifier: Apache-2.0
// System calls go through a thread of the process itself, which seccomp asks before each; for
// allocations this file replaces operator new, and --wrap aligned_alloc and mmap (CMakeLists.txt).
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <vector>

#include "tests/db/support/asked_calls.h"
#include "tests/db/support/nth.h"

namespace stepwell::db::nth {
namespace {

Fault g_fault;
std::atomic<bool> g_armed{false};
std::atomic<uint64_t> g_counted{0};
std::atomic<bool> g_failing{false};     // beyond the n-th
std::atomic<bool> g_stores_own{false};  // of the thread that armed
std::atomic<pid_t> g_main{0};
thread_local bool t_is_main = false;

// Counts; whether this one fails.
bool Tick() {
  const uint64_t number = ++g_counted;
  if (number == g_fault.n && g_fault.until != Fault::Until::kOnce) g_failing = true;
  return number == g_fault.n || g_failing;
}

bool AllocationFails(bool aligned, bool mapped = false) {
  if (!g_armed.load(std::memory_order_relaxed) || g_fault.kind != Fault::Kind::kAlloc) return false;
  if (!aligned && g_fault.calls == "buffers") return false;
  if (!mapped && g_fault.calls == "blocks") return false;
  if (t_is_main && !g_stores_own) return false;
  return Tick();
}

void Add(std::vector<int>* calls, std::initializer_list<int> more) {
  calls->insert(calls->end(), more);
}

std::vector<int> CallsOf(const std::string& name) {
  std::vector<int> calls;
  const bool all = name == "all";
  if (all || name == "disk") {
    Add(&calls, {SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_pread64, SYS_preadv, SYS_preadv2,
                 SYS_fdatasync, SYS_fsync, SYS_sync_file_range, SYS_fallocate, SYS_ftruncate,
                 SYS_copy_file_range, SYS_io_uring_enter});
  }
  // Not to be failed: those of eventfds cannot, and brk says so in a way of its own.
  if (all) Add(&calls, {SYS_read, SYS_write, SYS_brk});
  if (all || name == "names") {
    Add(&calls, {SYS_openat,     SYS_openat2,        SYS_renameat,
                 SYS_renameat2,  SYS_unlinkat,       SYS_linkat,
                 SYS_mkdirat,    SYS_symlinkat,      SYS_getdents64,
                 SYS_newfstatat, SYS_fstat,          SYS_statx,
                 SYS_statfs,     SYS_fstatfs,        SYS_fchmod,
                 SYS_fchmodat,   SYS_fcntl,          SYS_ioctl,
                 SYS_eventfd2,   SYS_io_uring_setup, SYS_io_uring_register});
#ifdef SYS_open
    Add(&calls, {SYS_open, SYS_rename, SYS_unlink, SYS_link, SYS_mkdir, SYS_rmdir, SYS_stat,
                 SYS_lstat, SYS_chmod, SYS_symlink, SYS_readlink});
#endif
  }
  if (all || name == "memory") Add(&calls, {SYS_mmap, SYS_mremap, SYS_madvise});
  if (all || name == "threads") Add(&calls, {SYS_clone, SYS_clone3});
  return calls;
}

bool WriteTo(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good();
}

// A group of this process alone; RunCase removes it. As root, where groups can be made.
bool JoinMemoryGroup(uint64_t bytes) {
  const std::string group = MemoryGroupOf(getpid());
  const bool v2 = !group.starts_with("/sys/fs/cgroup/memory/");
  return mkdir(group.c_str(), 0755) == 0 &&
         WriteTo(group + (v2 ? "/memory.max" : "/memory.limit_in_bytes"), std::to_string(bytes)) &&
         WriteTo(group + "/cgroup.procs", std::to_string(getpid()));
}

// The test's own lines.
bool IsExempt(const seccomp_notif& call) {
  return static_cast<pid_t>(call.pid) == g_main && !g_stores_own;
}

int ErrorOf(const seccomp_notif& call) {
  if (IsExempt(call) || !Tick()) return 0;
  if (g_fault.kind == Fault::Kind::kKill) kill(getpid(), SIGKILL);
  return g_fault.kind == Fault::Kind::kError ? g_fault.os_error : 0;
}

}  // namespace

bool Arm(const Fault& fault) {
  g_fault = fault;
  g_main = gettid();
  t_is_main = true;
  if (fault.kind == Fault::Kind::kMemory) return JoinMemoryGroup(fault.n << 20);
  if (fault.kind != Fault::Kind::kAlloc && !test::AnswerCalls(CallsOf(fault.calls), ErrorOf)) {
    return false;
  }
  g_armed = true;
  return true;
}

uint64_t Counted() { return g_counted; }

std::string MemoryGroupOf(pid_t pid) {
  const bool v1 = access("/sys/fs/cgroup/memory/cgroup.procs", F_OK) == 0;
  return std::string("/sys/fs/cgroup/") + (v1 ? "memory/" : "") + "stepwell-nth-" +
         std::to_string(pid);
}

StoresOwn::StoresOwn() { g_stores_own = true; }

StoresOwn::~StoresOwn() {
  g_stores_own = false;
  if (g_fault.until == Fault::Until::kOperation) g_failing = false;
}

std::string Fault::Name() const {
  static constexpr const char* kKinds[] = {"none", "kill", "error", "alloc", "memory"};
  static constexpr const char* kUntil[] = {"once", "operation", "end"};
  std::string name = kKinds[static_cast<size_t>(kind)];
  if (kind == Kind::kError) name += std::string(" ") + strerrorname_np(os_error);
  if (kind == Kind::kMemory) return name;
  if (!calls.empty()) name += " calls=" + calls;
  return name + " until=" + kUntil[static_cast<size_t>(until)];
}

}  // namespace stepwell::db::nth

#if defined(STEPWELL_TSAN)
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace {

// RocksDB hands its memory from thread to thread where ThreadSanitizer does not see it, and to that
// malloc and free are writes.
struct Unseen {
#if defined(STEPWELL_TSAN)
  Unseen() { AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
  ~Unseen() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__); }
#else
  Unseen() {}
#endif
};

void* Allocate(size_t bytes) {
  if (stepwell::db::nth::AllocationFails(/*aligned=*/false)) return nullptr;
  const Unseen unseen;
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void Free(void* memory) noexcept {
  const Unseen unseen;
  std::free(memory);
}

void* AllocateOrThrow(size_t bytes) {
  void* const memory = Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* AllocateAligned(size_t bytes, std::align_val_t alignment) {
  if (stepwell::db::nth::AllocationFails(/*aligned=*/false)) return nullptr;
  const Unseen unseen;
  void* memory = nullptr;
  return posix_memalign(&memory, static_cast<size_t>(alignment), bytes) == 0 ? memory : nullptr;
}

}  // namespace

extern "C" void* __real_aligned_alloc(size_t alignment, size_t bytes);
extern "C" void* __wrap_aligned_alloc(size_t alignment, size_t bytes);
extern "C" void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  if (stepwell::db::nth::AllocationFails(/*aligned=*/true)) return nullptr;
  return __real_aligned_alloc(alignment, bytes);
}

// Blocks of the staging pool are mapped.
extern "C" void* __real_mmap(void* address, size_t bytes, int protection, int flags, int file,
                             off_t offset);
extern "C" void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int file,
                             off_t offset);
extern "C" void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int file,
                             off_t offset) {
  if (stepwell::db::nth::AllocationFails(/*aligned=*/true, /*mapped=*/true)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return __real_mmap(address, bytes, protection, flags, file, offset);
}

void* operator new(size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new[](size_t bytes) { return AllocateOrThrow(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  void* const memory = AllocateAligned(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { Free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { Free(memory); }
