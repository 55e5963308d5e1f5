// SPDX-License-Identifier: Apache-2.0
#include "api/python/exit.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace stepwell::python {
namespace {

std::atomic<pid_t> g_failed_pid{0};

// on_exit, unlike atexit, is told the status. At this point Python is finalized: every atexit
// callback has run and its files are flushed.
void OnExit(int status, void*) {
  if (status == 0 && g_failed_pid.load() == getpid()) {
    std::fflush(nullptr);
    _exit(1);
  }
}

}  // namespace

void InstallExitHandler() {
  static const int kInstalled = on_exit(OnExit, nullptr);
  (void)kInstalled;
}

void FailAtExit() { g_failed_pid.store(getpid()); }

}  // namespace stepwell::python
