// SPDX-License-Identifier: Apache-2.0
// `stepwell completion SHELL`: the script that completes commands, options, directories, steps and
// paths: completion/stepwell.SHELL.
#include "api/cli/command.h"
#include "api/cli/completion_scripts.h"
#include "api/cli/output.h"

namespace stepwell::cli {
namespace {

Result<CommandResult> RunCompletion(const std::string& shell, bool json) {
  CommandResult outcome;
  if (shell == "bash") {
    outcome.text = kBashScript;
  } else if (shell == "zsh") {
    outcome.text = kZshScript;
  } else if (shell == "fish") {
    outcome.text = kFishScript;
  } else {
    return InvalidArgumentError(StrCat("no completion for ", shell, "; there is bash, fish, zsh"));
  }
  if (json) {
    outcome.text = JsonText({{"schema", kJsonSchema}, {"shell", shell}, {"script", outcome.text}});
  }
  return outcome;
}

}  // namespace

void AddCompletion(CLI::App* program, Invocation* invocation) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(program, invocation, "completion",
                                 "print a script that completes commands in a shell",
                                 [=] { return RunCompletion(*shell, invocation->json); });
  command->add_option("SHELL", *shell, "bash, fish or zsh")->required();
}

}  // namespace stepwell::cli
