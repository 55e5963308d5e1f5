// SPDX-License-Identifier: Apache-2.0
// The program `stepwell` in the module of a wheel, which then has the engine once. The script
// `stepwell` of the environment (program.py) calls it without importing the module.
#include "api/cli/program.h"

extern "C" [[gnu::visibility("default")]] int stepwell_program(int argc, const char* const* argv) {
  return stepwell::cli::Main(argc, argv);
}
