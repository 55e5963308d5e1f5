// SPDX-License-Identifier: Apache-2.0
#include "api/cli/describe.h"

namespace stepwell::cli {

CommandInfo DescribeCommand(const CLI::App& command) {
  CommandInfo info{command.get_name(), command.get_description(), {}, {}};
  for (const CLI::Option* option : command.get_options()) {
    OptionInfo described;
    described.what = option->get_description();
    described.required = option->get_required();
    described.many = option->get_items_expected_max() > 1;
    if (option->get_positional()) {
      described.names = {option->get_single_name()};
      info.arguments.push_back(std::move(described));
      continue;
    }
    for (const std::string& name : option->get_snames()) described.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) described.names.push_back("--" + name);
    // Flags take values in CLI11, but need none.
    if (option->get_items_expected_min() > 0) described.value = option->get_type_name();
    info.options.push_back(std::move(described));
  }
  return info;
}

std::vector<CommandInfo> DescribeCommands(const CLI::App& program) {
  std::vector<CommandInfo> commands;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) commands.push_back(DescribeCommand(*command));
  }
  return commands;
}

}  // namespace stepwell::cli
