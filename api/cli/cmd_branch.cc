// SPDX-License-Identifier: Apache-2.0
// `stepwell branch STORE NAME` and `stepwell branches STORE`, by the Python package.
#include "api/cli/command.h"
#include "api/cli/python.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct BranchArguments : StoreArguments {
  std::string name;
};

Result<CommandResult> RunBranch(const BranchArguments& arguments, bool json) {
  std::vector<std::string> words = {"branch"};
  if (!arguments.step.empty()) {
    STEPWELL_RETURN_IF_ERROR(ParseStep(arguments.step).status());
    words.insert(words.end(), {"--step", arguments.step});
  }
  if (json) words.emplace_back("--json");
  words.insert(words.end(), {"--", arguments.store, arguments.name});
  return RunPython(std::move(words));
}

Result<CommandResult> RunBranches(const StoreArguments& arguments, bool json) {
  std::vector<std::string> words = {"branches"};
  if (json) words.emplace_back("--json");
  words.insert(words.end(), {"--", arguments.store});
  return RunPython(std::move(words));
}

}  // namespace

void AddBranch(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<BranchArguments>();
  CLI::App* command = AddCommand(program, invocation, "branch",
                                 "make a store that begins as a copy of this one's steps",
                                 [=] { return RunBranch(*arguments, invocation->json); });
  AddStore(command, &arguments->store);
  command->add_option("NAME", arguments->name, "the branch: STORE/branches/NAME")->required();
  command->add_option("--step", arguments->step, "the last step that it has; default: the newest")
      ->type_name("NUMBER");
}

void AddBranches(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<StoreArguments>();
  CLI::App* command = AddCommand(program, invocation, "branches", "list the branches of a store",
                                 [=] { return RunBranches(*arguments, invocation->json); });
  AddStore(command, &arguments->store);
}

}  // namespace stepwell::cli
