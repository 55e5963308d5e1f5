// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "api/cli/program.h"

int main(int argc, char** argv) {
  // A reader that closes the pipe early ends the output, not the process (with its store open).
  std::signal(SIGPIPE, SIG_IGN);
  return stepwell::cli::Main(argc, argv);
}
