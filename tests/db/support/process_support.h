// SPDX-License-Identifier: Apache-2.0
// A program of the tests in a process of its own, which talks through a pipe.
#pragma once

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::db {

class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> arguments) {
    int ends[2];
    if (pipe(ends) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ) != 0) pid_ = 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    out_ = ends[0];
  }
  ~ChildProcess() {
    if (pid_ > 0) Kill();
    if (out_ >= 0) close(out_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // Its next line; "" at its end.
  std::string Line() {
    for (;;) {
      if (const size_t end = text_.find('\n'); end != std::string::npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      char buffer[4096];
      const ssize_t size = read(out_, buffer, sizeof(buffer));
      if (size <= 0) return std::exchange(text_, "");
      text_.append(buffer, static_cast<size_t>(size));
    }
  }

  // All lines up to its end.
  std::vector<std::string> Rest() {
    std::vector<std::string> lines;
    for (std::string line = Line(); !line.empty(); line = Line()) lines.push_back(line);
    return lines;
  }

  // SIGKILL, and waits until it is gone.
  void Kill() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    Wait();
  }

  // Returns the status as waitpid reports it.
  int Wait() {
    int status = pid_ > 0 ? 0 : -1;  // it never ran
    while (pid_ > 0 && waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status;
  }

 private:
  pid_t pid_ = 0;
  int out_ = -1;
  std::string text_;
};

}  // namespace stepwell::db
