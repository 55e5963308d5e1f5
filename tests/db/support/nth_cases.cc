// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "tests/db/support/nth.h"
#include "tests/io/support/end_child.h"

namespace stepwell::db::nth {
namespace {

constexpr std::chrono::seconds kHang{180};  // without a line: a machine may be busy

struct Ended {
  std::vector<std::string> lines;
  int status = 0;
  pid_t pid = 0;
  bool hung = false;
  bool crashed = false;
  bool in_rocks = false;  // which did it
  std::string stacks;     // of one that hung or crashed, where gdb is there
};

std::string StacksOf(pid_t pid) {
  std::string text;
  const std::string command =
      StrCat("timeout 60 gdb -p ", pid, " -batch -ex 'thread apply all bt 20' 2>/dev/null");
  if (FILE* const out = popen(command.c_str(), "r")) {
    std::array<char, 4096> buffer{};
    for (size_t size = 0; (size = fread(buffer.data(), 1, buffer.size(), out)) > 0;) {
      text.append(buffer.data(), size);
    }
    pclose(out);
  }
  return text;
}

// Runs `body` in a process of its own, to which it gives a descriptor for its lines.
Ended RunApart(const std::function<void(int)>& body) {
  Ended ended;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ended;
  std::fflush(nullptr);
  const pid_t pid = ended.pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    body(ends[1]);
    EndChild(0);
  }
  close(ends[1]);
  std::string text;
  auto deadline = std::chrono::steady_clock::now() + kHang;
  for (;;) {
    pollfd wait{ends[0], POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0 || poll(&wait, 1, static_cast<int>(left.count())) <= 0) {
      ended.hung = true;
      ended.stacks = StacksOf(pid);
      kill(pid, SIGKILL);
      break;
    }
    std::array<char, 4096> buffer{};
    const ssize_t size = read(ends[0], buffer.data(), buffer.size());
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(size));
    deadline = std::chrono::steady_clock::now() + kHang;
    const size_t crash = text.find("crash");
    if (ended.crashed || crash == std::string::npos || text.back() != '\n') continue;
    ended.crashed = true;
    ended.in_rocks = text.compare(crash, 14, "crash rocksdb\n") == 0;
    if (!ended.in_rocks || getenv("NTH_STACKS") != nullptr) ended.stacks = StacksOf(pid);
    kill(pid, SIGKILL);  // the rest of its lines follows
  }
  close(ends[0]);
  while (waitpid(pid, &ended.status, 0) < 0 && errno == EINTR) {
  }
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    ended.lines.push_back(text.substr(at, end - at));
  }
  return ended;
}

}  // namespace

Outcome RunCase(const std::string& parent, io::DiskKind disk, const Fault& fault) {
  namespace fs = std::filesystem;
  const std::string folder = StrCat(parent, "/", getpid());
  fs::remove_all(folder);
  fs::create_directories(folder + "/exports");
  Outcome outcome;
  const Ended ended = RunApart([&](int out) { RunWorkload(folder, disk, fault, out); });
  std::string log;
  for (const std::string& line : ended.lines) {
    log += "\n    " + line;
    if (line.starts_with("done ")) outcome.counted = std::stoull(line.substr(5));
  }
  const bool killed = WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGKILL;
  outcome.in_rocks = ended.in_rocks;
  rmdir(MemoryGroupOf(ended.pid).c_str());
  const bool may_be_killed =
      fault.kind == Fault::Kind::kKill || fault.kind == Fault::Kind::kMemory || ended.in_rocks;
  outcome.killed = killed;
  outcome.reached =
      fault.kind == Fault::Kind::kMemory || outcome.counted == 0 || outcome.counted >= fault.n;
  if (ended.in_rocks && !ended.stacks.empty())
    std::printf("n=%lu rocksdb\n%s\n", fault.n, ended.stacks.c_str());
  if (ended.hung || (ended.crashed && !ended.in_rocks)) {
    outcome.problem = (ended.hung ? "it hangs\n" : "it crashed\n") + ended.stacks;
  } else if (!(killed && may_be_killed) &&
             !(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0)) {
    outcome.problem = StrCat("it ended with status ", ended.status);
  } else {
    const Ended looked = RunApart([&](int out) {
      std::string problem;
      if (CheckStore(folder, ended.lines, &problem)) problem = "good";
      problem += "\n";
      if (write(out, problem.data(), problem.size()) < 0) _exit(3);
    });
    const std::string verdict = looked.lines.empty() ? "" : looked.lines.front();
    if (looked.hung) {
      outcome.problem = "the look at it hangs\n" + looked.stacks;
    } else if (verdict != "good") {
      outcome.problem = StrCat("afterwards: ", verdict, " (status ", looked.status, ")");
    }
  }
  if (outcome.problem.empty()) {
    fs::remove_all(folder);
  } else {
    outcome.problem += log;
  }
  return outcome;
}

}  // namespace stepwell::db::nth
