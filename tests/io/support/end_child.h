// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include <stepwell/text.h>

// There where the linker was told to want it: a weak reference takes nothing out of an archive.
extern "C" void __gcov_dump() __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

namespace stepwell {

// Ends a forked child without running what its parent registered for its own end. Under
// tests/coverage what the child ran counts.
[[noreturn]] inline void EndChild(int status) {
  if (__gcov_dump != nullptr) __gcov_dump();
  _exit(status);
}

// Runs `body` in a forked child, so that it may change limits of the whole process. Empty when it
// returned an empty string; otherwise its output, or how it died.
inline std::string InChild(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return "pipe failed";
  const pid_t child = fork();
  if (child < 0) return "fork failed";
  if (child == 0) {
    close(ends[0]);
    const std::string output = body();
    const bool whole =
        write(ends[1], output.data(), output.size()) == static_cast<ssize_t>(output.size());
    EndChild(whole ? 0 : 1);
  }
  close(ends[1]);
  std::string output;
  char part[512];
  for (ssize_t got = 0; (got = read(ends[0], part, sizeof(part))) > 0;) {
    output.append(part, static_cast<size_t>(got));
  }
  close(ends[0]);
  int state = 0;
  waitpid(child, &state, 0);
  if (!WIFEXITED(state) || WEXITSTATUS(state) != 0) output += StrCat(" (child died: ", state, ")");
  return output;
}

}  // namespace stepwell
