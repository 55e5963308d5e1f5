// SPDX-License-Identifier: Apache-2.0
// The process that tests of the store kill, fork and restrict. Says on standard output what it did,
// a line each: "open", "saved N" (Save returned), "ack N" (the handle did), "fork PID", "log TEXT",
// "done"; or "error TEXT".
//
//   store_child save PATH DISK FIRST              saves steps of a few MiB and less, until killed
//   store_child big PATH DISK FIRST BYTES         saves held arrays of so many bytes, until killed
//   store_child fork PATH DISK FIRST              leaves a forked child asleep, then as "save"
//   store_child limited PATH seccomp|memlock      saves and loads, without io_uring or locked
//   memory
//   store_child starved PATH DISK threads|memory LIMIT
//                                                 opens and saves with so many threads, or bytes of
//                                                 address space, to be had ("saved" or "refused
//                                                 TEXT", then "threads NUMBER"); then again without
//                                                 that limit, "done". SIGALRM ends one that hangs
//   store_child export PATH alone|beside|saving STEP DEST link|copy v1|v0 STOP
//                                                 exports, and kills itself before operation STOP
//                                                 on files; "done OPERATIONS" when there are fewer.
//                                                 "beside": as a reader; "saving": while it saves,
//                                                 deletes and reclaims
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "db/export/export.h"
#include "io/guard.h"
#include "tests/db/support/big_state.h"
#include "tests/db/support/group_support.h"
#include "tests/db/support/stopping_file_system.h"

#if defined(STEPWELL_ASAN)
// RocksDB frees nothing of a database whose threads cannot be started. LeakSanitizer looks the
// function up among the exported ones.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:librocksdb\n"; }
#endif

namespace stepwell::db {
namespace {

// One write: a line is there whole or not at all, also when this process is killed.
void PrintLine(const std::string& text) {
  const std::string line = text + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(3);
}

int Fail(const Status& status) {
  PrintLine("error " + status.ToString());
  return 1;
}

StoreOptions Options(const std::string& disk) {
  StoreOptions options;
  options.steps_before_index = 0;  // an index at any size
  options.disk = disk == "uring"   ? io::DiskKind::kUring
                 : disk == "posix" ? io::DiskKind::kPosix
                                   : io::DiskKind::kAuto;
  return options;
}

int SaveForEver(Store* store, uint64_t step, uint64_t big_bytes) {
  // Made once: the saves are to follow each other at once.
  const auto big = std::make_shared<const std::vector<uint32_t>>(BigData(step, big_bytes));
  for (;; ++step) {
    auto handle = big_bytes > 0 ? store->Save(BigRequest(step, big))
                                : SaveSeeded(store, step, step, KillState(step));
    if (!handle.ok()) return Fail(handle.status());
    PrintLine(StrCat("saved ", step));
    handle->OnComplete([step](const Status& status) {
      PrintLine(status.ok() ? StrCat("ack ", step) : "error " + status.ToString());
    });
  }
}

// Saves steps of three parts for ever, the next being prepared while one is decided; every fifth is
// aborted.
int SaveGroup(const std::string& root, uint64_t step) {
  const auto group = GroupStores::Open(root, 3);
  if (!group.ok()) return Fail(group.status());
  std::vector<Store*> parts;
  for (const auto& store : group->stores) parts.push_back(store.get());
  if (Status status = Settle(parts); !status.ok()) return Fail(status);
  PrintLine("open");
  std::vector<SaveHandle> prepared;
  const auto prepare = [&](uint64_t which) {
    prepared.clear();
    for (Store* store : parts) {
      auto handle = Prepare(store, which, which, group->parts);
      if (!handle.ok()) return handle.status();
      prepared.push_back(std::move(*handle));
    }
    return OkStatus();
  };
  if (Status status = prepare(step); !status.ok()) return Fail(status);
  for (;; ++step) {
    for (const SaveHandle& handle : prepared) {
      if (Status status = handle.Wait(); !status.ok()) return Fail(status);
    }
    PrintLine(StrCat("prepared ", step));
    if (Status status = prepare(step + 1); !status.ok()) return Fail(status);
    const bool commits = step % 5 != 0;
    Decision decision = commits ? Commit(step, step) : Abort(step, step);
    const auto decided = parts[0]->Decide(decision);
    if (!decided.ok()) return Fail(decided.status());
    PrintLine(StrCat(commits ? "committed " : "aborted ", step));
    decision = PassOn(decision, *decided);
    decision.wait = step % 2 == 0;
    for (size_t i = 1; i < parts.size(); ++i) {
      if (Status status = parts[i]->Decide(decision).status(); !status.ok()) return Fail(status);
    }
  }
}

// Forbids io_uring_setup to this process, its children and all threads to come.
bool ForbidRings() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(rules)), rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool LockNoMemory() {
  const rlimit none{0, 0};
  constexpr uid_t kNobody = 65534;
  return setrlimit(RLIMIT_MEMLOCK, &none) == 0 && setresgid(kNobody, kNobody, kNobody) == 0 &&
         setresuid(kNobody, kNobody, kNobody) == 0;
}

int Limited(const std::string& path, const std::string& how) {
  if (how == "seccomp" ? !ForbidRings() : !LockNoMemory()) {
    return Fail(ErrnoStatus(errno, "restrict this process"));
  }
  StoreOptions options;
  options.log = [](LogLevel, std::string_view text) { PrintLine("log " + std::string(text)); };
  auto store = Store::Open(path, options);
  if (!store.ok()) return Fail(store.status());
  PrintLine("disk " + (*store)->Stats().disk);
  for (uint64_t step = 0; step < 6; ++step) {
    auto handle = SaveSeeded(store->get(), step, step, KillState(step));
    if (!handle.ok()) return Fail(handle.status());
  }
  if (Status status = (*store)->Wait(); !status.ok()) return Fail(status);
  for (uint64_t step = 0; step < 6; ++step) {
    if (Status status = CheckSeeded(store->get(), step, step, KillState(step)); !status.ok()) {
      return Fail(status);
    }
  }
  const auto report = (*store)->Verify({});
  if (!report.ok()) return Fail(report.status());
  if (!report->problems.empty()) return Fail(DataLossError(report->problems.front().message));
  if (Status status = (*store)->Close(); !status.ok()) return Fail(status);
  PrintLine("done");
  return 0;
}

// Threads of this process alone are counted for a user that has no other process.
bool LimitThreads(uint64_t count) {
  constexpr uid_t kOfNobodyElse = 64321;
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) != 0) return false;
  limit.rlim_cur = count;
  return setrlimit(RLIMIT_NPROC, &limit) == 0 &&
         setresuid(kOfNobodyElse, kOfNobodyElse, kOfNobodyElse) == 0;
}

uint64_t PagesMapped() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

bool LimitMemory(uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = PagesMapped() * static_cast<uint64_t>(getpagesize()) + bytes;
  return setrlimit(RLIMIT_AS, &limit) == 0;
}

void LiftLimit(__rlimit_resource resource) {
  rlimit limit{};
  getrlimit(resource, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(resource, &limit);
}

Status SaveOne(const std::string& path, const StoreOptions& options, uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto store, Store::Open(path, options));
  STEPWELL_ASSIGN_OR_RETURN(const auto handle, SaveSeeded(store.get(), step, step, SmallState()));
  STEPWELL_RETURN_IF_ERROR(handle.Wait());
  STEPWELL_RETURN_IF_ERROR(CheckSeeded(store.get(), step, step, SmallState()));
  return store->Close();
}

int Starved(const std::vector<std::string>& arguments) {
  constexpr unsigned kHangSeconds = 60;
  alarm(kHangSeconds);
  const std::string& path = arguments[1];
  StoreOptions options = Options(arguments[2]);
  options.threads = 2;
  options.staging_bytes = 32 << 20;
  const uint64_t limit = std::stoull(arguments.at(4));
  const bool threads = arguments.at(3) == "threads";
  if (threads ? !LimitThreads(limit) : !LimitMemory(limit)) {
    return Fail(ErrnoStatus(errno, "restrict this process"));
  }
  // The child's own arrays may find no memory, either.
  const Status first = io::Guarded("save", [&] { return SaveOne(path, options, 0); });
  LiftLimit(threads ? RLIMIT_NPROC : RLIMIT_AS);
  PrintLine(first.ok() ? "saved" : "refused " + first.ToString());
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  PrintLine(StrCat("threads ", std::distance(begin(tasks), end(tasks))));
  if (Status status = SaveOne(path, options, 1); !status.ok()) return Fail(status);
  PrintLine("done");
  return 0;
}

// Steps from a million on, of which the newest two stay.
void SaveDeleteReclaim(Store* store, const std::atomic<bool>* stop) {
  for (uint64_t step = 1'000'000; !*stop; ++step) {
    auto handle = SaveSeeded(store, step, step, KillState(step));
    if (!handle.ok() || !handle->Wait().ok()) return;
    const uint64_t old = step - 2;
    if (old >= 1'000'000 && !store->Delete({&old, 1}).ok()) return;
    if (step % 4 == 0 && !store->Reclaim().ok()) return;
  }
}

int ExportAndStop(const std::vector<std::string>& arguments) {
  StoreOptions options;
  options.segment_bytes = 1 << 20;
  options.read_only = arguments.at(2) == "beside";
  auto store = Store::Open(arguments[1], options);
  if (!store.ok()) return Fail(store.status());
  const uint64_t stop = std::stoull(arguments.at(7));
  uint64_t operations = 0;
  StoppingFileSystem files([&] {
    if (++operations == stop) kill(getpid(), SIGKILL);
  });
  ExportOptions exporting;
  exporting.file_system = &files;
  exporting.mode = arguments.at(5) == "link" ? ExportMode::kLink : ExportMode::kCopy;
  exporting.layout = arguments.at(6) == "v1" ? ExportLayout::kV1 : ExportLayout::kV0;
  std::atomic<bool> saved_enough{false};
  std::thread beside;
  if (arguments[2] == "saving") {
    beside = std::thread([&] { SaveDeleteReclaim(store->get(), &saved_enough); });
  }
  const auto report = Export(**store, std::stoull(arguments.at(3)), arguments.at(4), exporting);
  saved_enough = true;
  if (beside.joinable()) beside.join();
  if (!report.ok()) return Fail(report.status());
  PrintLine(StrCat("done ", operations));
  return 0;
}

int Run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) return 2;
  if (arguments[0] == "export") return ExportAndStop(arguments);
  const std::string& what = arguments[0];
  const std::string& path = arguments[1];
  if (what == "group") return SaveGroup(path, std::stoull(arguments[2]));
  if (what == "starved") return Starved(arguments);
  if (what == "limited") return Limited(path, arguments[2]);
  auto store = Store::Open(path, Options(arguments[2]));
  if (!store.ok()) return Fail(store.status());
  PrintLine("open");
  const uint64_t first = std::stoull(arguments.at(3));
  if (what == "fork") {
    const auto handle = SaveSeeded(store->get(), first, first, KillState(first));
    if (!handle.ok()) return Fail(handle.status());
    const pid_t child = fork();
    if (child == 0) {
      for (;;) pause();
    }
    PrintLine(StrCat("fork ", child));
    return SaveForEver(store->get(), first + 1, 0);
  }
  return SaveForEver(store->get(), first, what == "big" ? std::stoull(arguments.at(4)) : 0);
}

}  // namespace
}  // namespace stepwell::db

int main(int argument_count, char** arguments) {
  signal(SIGPIPE, SIG_IGN);
  return stepwell::db::Run({arguments + 1, arguments + argument_count});
}
