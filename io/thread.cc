// SPDX-License-Identifier: Apache-2.0
#include "io/thread.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>
#include <new>
#include <system_error>
#include <utility>

#include "io/bytes.h"

namespace stepwell::io {
namespace {

std::function<bool()>* g_may_start = nullptr;  // set by tests

std::string LimitText(int resource, const char* name) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return "";
  if (limit.rlim_cur == RLIM_INFINITY) return StrCat(name, " is not set");
  return StrCat(name, " is ", limit.rlim_cur);
}

// "pids.max of the container is 32, 32 in use"; empty where the cgroup sets none.
std::string CgroupText() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::string directory;
    if (line.starts_with("0::")) {
      directory = "/sys/fs/cgroup" + line.substr(3);
    } else if (const size_t at = line.find(":pids:"); at != std::string::npos) {
      directory = "/sys/fs/cgroup/pids" + line.substr(at + 6);
    }
    if (directory.empty()) continue;
    // A container may see itself as the root of the hierarchy.
    for (const std::string& path : {directory, std::string("/sys/fs/cgroup")}) {
      std::string most;
      std::string used;
      std::ifstream(path + "/pids.max") >> most;
      std::ifstream(path + "/pids.current") >> used;
      if (most.empty() || most == "max") continue;
      return StrCat(", pids.max of the container (cgroup) is ", most, " with ", used, " in use");
    }
  }
  return "";
}

Status NotStarted(const std::string& name, int os_error) {
  const std::string message = StrCat(
      "the thread ", name, " cannot be started: ", std::generic_category().message(os_error),
      "; a limit on threads or on memory is reached: ", LimitText(RLIMIT_NPROC, "RLIMIT_NPROC"),
      CgroupText(), ", ", LimitText(RLIMIT_AS, "RLIMIT_AS"),
      "; raise it (ulimit -u, ulimit -v, docker --pids-limit), or let the process have fewer "
      "threads");
  return {StatusCode::kUnknown, message, os_error};
}

}  // namespace

Result<std::thread> StartThread(const std::string& name, std::function<void()> body) {
  if (g_may_start != nullptr && !(*g_may_start)()) return NotStarted(name, EAGAIN);
  try {
    return std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name.c_str());
      body();
    });
  } catch (const std::system_error& error) {
    return NotStarted(name, error.code().value());
  } catch (const std::bad_alloc&) {
    return NotStarted(name, ENOMEM);
  }
}

void YieldToOthers() {
  constexpr int kNice = 5;
  // On Linux, a process of number 0 is the calling thread, contrary to POSIX (setpriority(2)).
  (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNice);
}

void SetThreadStartHook(std::function<bool()> may_start) {
  delete std::exchange(g_may_start, nullptr);
  if (may_start) g_may_start = new std::function<bool()>(std::move(may_start));
}

}  // namespace stepwell::io
