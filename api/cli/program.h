// SPDX-License-Identifier: Apache-2.0
// The whole program as a function.
#pragma once

namespace stepwell::cli {

// Runs the command that the arguments name and returns its exit status. Throws nothing, keeps
// nothing, and may be called again; SIGPIPE should be ignored, or a closed pipe ends the process.
int Main(int argc, const char* const* argv);

}  // namespace stepwell::cli
