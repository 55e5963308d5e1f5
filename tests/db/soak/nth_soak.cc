// SPDX-License-Identifier: Apache-2.0
// The n-th system call, or allocation, of a process that uses a store in every way is its last, or
// fails: for each n in turn. A command, not a test (tests/README.md):
//
//   nth_soak dir=DIR disk=uring|posix what=kill|EIO|ENOSPC|…|alloc [calls=all|disk|names|memory|
//            threads] [until=once|operation|end] [n=1:END] [every=1] [record=FILE]
//   nth_soak dir=DIR disk=uring|posix what=memory n=8:200     with n MiB of memory (as root)
//
// Goes on behind a case that fails and names it; n=K:K+1 is that case again. Appends a line of JSON
// to FILE. Exit status 0: all of it held.
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "tests/db/support/nth.h"

namespace stepwell::db::nth {
namespace {

// The number behind a name as ENOSPC; 0: none has it.
int ErrorOf(const std::string& name) {
  for (int error = 1; error < 140; ++error) {
    const char* const its = strerrorname_np(error);
    if (its != nullptr && name == its) return error;
  }
  return 0;
}

int Run(std::map<std::string, std::string> options) {
  Fault fault;
  const std::string& what = options["what"];
  fault.os_error = ErrorOf(what);
  fault.kind = what == "kill"        ? Fault::Kind::kKill
               : what == "alloc"     ? Fault::Kind::kAlloc
               : what == "memory"    ? Fault::Kind::kMemory
               : fault.os_error != 0 ? Fault::Kind::kError
                                     : Fault::Kind::kNone;
  if (!options["calls"].empty()) fault.calls = options["calls"];
  const std::string& until = options["until"];
  fault.until = until == "operation" ? Fault::Until::kOperation
                : until == "end"     ? Fault::Until::kEnd
                                     : Fault::Until::kOnce;
  const io::DiskKind disk =
      options["disk"] == "posix" ? io::DiskKind::kPosix : io::DiskKind::kUring;
  if (options["dir"].empty() || (fault.kind == Fault::Kind::kNone && what != "none")) {
    std::fprintf(stderr,
                 "usage: nth_soak dir=DIR disk=uring|posix what=kill|ERRNO|alloc [calls=GROUP] "
                 "[until=once|operation|end] [n=FIRST:END] [every=N] [record=FILE]\n");
    return 2;
  }
  const std::string range = options["n"].empty() ? "1:1000000" : options["n"];
  const uint64_t end = std::stoull(range.substr(range.find(':') + 1));
  const uint64_t every = options["every"].empty() ? 1 : std::stoull(options["every"]);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t cases = 0;
  uint64_t bad = 0;
  uint64_t killed = 0;
  uint64_t in_rocks = 0;
  uint64_t counted = 0;  // of the last run to its end
  for (fault.n = std::stoull(range); fault.n < end; fault.n += every) {
    const Outcome outcome = RunCase(options["dir"], disk, fault);
    if (!outcome.problem.empty()) {
      ++bad;
      std::printf("n=%lu: %s\n", static_cast<unsigned long>(fault.n), outcome.problem.c_str());
      std::fflush(stdout);
    }
    counted = outcome.counted > 0 ? outcome.counted : counted;
    killed += outcome.killed && !outcome.in_rocks ? 1 : 0;
    in_rocks += outcome.in_rocks ? 1 : 0;
    if (!outcome.reached) break;
    ++cases;
  }
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  const std::string line =
      StrCat("{\"nth\": \"", fault.Name(), "\", \"disk\": \"", options["disk"], "\", \"n\": \"",
             range, "\", \"every\": ", every, ", \"calls\": ", counted, ", \"cases\": ", cases,
             ", \"killed\": ", killed, ", \"ended_by_rocksdb\": ", in_rocks, ", \"bad\": ", bad,
             ", \"seconds\": ", seconds.count(), "}");
  std::printf("%s\n", line.c_str());
  if (!options["record"].empty()) std::ofstream(options["record"], std::ios::app) << line << "\n";
  return bad == 0 ? 0 : 1;
}

}  // namespace
}  // namespace stepwell::db::nth

int main(int argument_count, char** arguments) {
  std::map<std::string, std::string> options;
  for (int i = 1; i < argument_count; ++i) {
    const std::string argument = arguments[i];
    const size_t equals = argument.find('=');
    if (equals != std::string::npos) {
      options[argument.substr(0, equals)] = argument.substr(equals + 1);
    }
  }
  return stepwell::db::nth::Run(options);
}
