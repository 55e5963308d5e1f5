// SPDX-License-Identifier: Apache-2.0
// The n-th system call, or allocation, of a process that uses a store fails, or is its last; or it
// has n MiB of memory. One case is one process, under a watchdog, and a second one that looks at
// what it left (nth_soak.cc, nth_test.cc).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "db/store.h"

namespace stepwell::db::nth {

struct Fault {
  enum class Kind {
    kNone,
    kKill,    // SIGKILL instead of the n-th call
    kError,   // the n-th call fails with `os_error` and is not done
    kAlloc,   // the n-th allocation fails
    kMemory,  // the process has n MiB, page cache included (a memory cgroup), and needs more
  };
  enum class Until {
    kOnce,
    kOperation,  // and all others, up to the end of the store's operation under way
    kEnd,        // of the process
  };
  Kind kind = Kind::kNone;
  // "disk", "names", "memory", "threads", "all"; of allocations "buffers",
  // "blocks" (of the staging pool) or all.
  std::string calls = "all";
  int os_error = 0;
  Until until = Until::kOnce;
  uint64_t n = 0;  // from 1

  std::string Name() const;  // without n
};

// ---- in the process that meets the fault (nth_faults.cc) ----------------------------------------

// From here on calls of this thread, of those that it starts, and allocations of all, are counted,
// and `fault` is met. False: the system cannot (seccomp).
bool Arm(const Fault& fault);
uint64_t Counted();
std::string MemoryGroupOf(pid_t pid);  // its directory
// While one lives on the thread that called Arm(), what that thread does is the store's; else it is
// the test's own, and is neither counted nor fails.
class StoresOwn {
 public:
  StoresOwn();
  ~StoresOwn();
  StoresOwn(const StoresOwn&) = delete;
  StoresOwn& operator=(const StoresOwn&) = delete;
};

// ---- the process (nth_workload.cc) ------------------------------------------------------------

// Uses a store in `folder` in every way, and says on `out`, a line each: "begin KIND STEP SEED",
// then "ok", "no TEXT" or "unknown TEXT"; "exported NAME"; "archived NAME"; "group begin", then
// "group ok|no|unknown"; "wrong TEXT"; at its end "done CALLS".
void RunWorkload(const std::string& folder, io::DiskKind disk, const Fault& fault, int out);
// Returns true if the store, the exports and the group are as those lines say. Otherwise *problem
// tells the difference (nth_check.cc).
bool CheckStore(const std::string& folder, const std::vector<std::string>& lines,
                std::string* problem);

// ---- the parent (nth_cases.cc) ----------------------------------------------------------------

struct Outcome {
  std::string problem;   // empty: all held
  bool reached = false;  // the n-th was met
  bool killed = false;
  bool in_rocks = false;  // RocksDB ended the process
  uint64_t counted = 0;   // in the whole run, where it came to its end
};
// In a new folder below `parent`, removed afterwards where nothing was wrong.
Outcome RunCase(const std::string& parent, io::DiskKind disk, const Fault& fault);

}  // namespace stepwell::db::nth
