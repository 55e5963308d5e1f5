// SPDX-License-Identifier: Apache-2.0
// Forked processes for tests of locks and pins: a child that does one thing, and a pipe to tell it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/io/support/end_child.h"

namespace stepwell::db {

// A pipe between processes, one byte at a time.
class Signal {
 public:
  Signal() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Raise() const { EXPECT_EQ(write(ends_[1], "x", 1), 1); }
  void Wait() const {
    char byte;
    EXPECT_EQ(read(ends_[0], &byte, 1), 1);
  }

 private:
  int ends_[2] = {-1, -1};
};

// Runs `body` in a forked process, whose exit status is 0 when it returns true.
inline pid_t Fork(const std::function<bool()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  EndChild(body() ? 0 : 1);
}
inline int Reap(pid_t pid) {
  int status = -1;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}
inline void Kill(pid_t pid) {
  kill(pid, SIGKILL);
  Reap(pid);
}

}  // namespace stepwell::db
