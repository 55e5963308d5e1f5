// SPDX-License-Identifier: Apache-2.0
// The commands as the parser knows them, for what is generated from them: completion, man page.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace stepwell::cli {

struct OptionInfo {
  std::vector<std::string> names;  // "-o", "--output"; of an argument: "STORE"
  std::string value;               // "FILE"; empty: a flag
  std::string what;
  bool required = false;
  bool many = false;
};

struct CommandInfo {
  std::string name;
  std::string what;
  std::vector<OptionInfo> options;
  std::vector<OptionInfo> arguments;
};

// In the order of --help; without hidden ones.
std::vector<CommandInfo> DescribeCommands(const CLI::App& program);
CommandInfo DescribeCommand(const CLI::App& command);

}  // namespace stepwell::cli
