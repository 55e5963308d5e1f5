// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM for commands that clean up before they end.
#pragma once

#include <csignal>

namespace stepwell::cli {

// While it lives SIGINT and SIGTERM are noted instead of ending the process, also where they were
// ignored. The second one of a kind ends it as ever. One at a time.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  static bool Received();

 private:
  struct sigaction interrupt_ {};
  struct sigaction terminate_ {};
};

}  // namespace stepwell::cli
