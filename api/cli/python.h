// SPDX-License-Identifier: Apache-2.0
// Commands that the Python package runs: its libraries know object stores and the files of others.
// The program checks the options that it declares and passes the rest to `python -m stepwell`.
#pragma once

#include <string>
#include <vector>

#include "api/cli/command.h"

namespace stepwell::cli {

// Becomes `python -m stepwell WORDS`; does not return when that works.
Result<CommandResult> RunPython(std::vector<std::string> words);

// The store that is meant, where the directory around it was given.
std::string StoreWithin(const std::string& path);

}  // namespace stepwell::cli
