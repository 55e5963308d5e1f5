// SPDX-License-Identifier: Apache-2.0
// `stepwell pin STORE STEP...` and `unpin`: pinned steps are kept, whatever the rules say.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct PinArguments : StoreArguments {
  std::vector<std::string> steps;
};

Result<CommandResult> RunPin(const PinArguments& arguments, bool pinned, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenToChange(arguments.store, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps,
                            StepNumbers(&store, arguments.steps));
  STEPWELL_RETURN_IF_ERROR(store.SetPinned(steps, pinned));
  STEPWELL_RETURN_IF_ERROR(store.Close());
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"steps", steps},
                             {"pinned", pinned}});
    return outcome;
  }
  for (const uint64_t step : steps) {
    outcome.text += StrCat(pinned ? "pinned" : "unpinned", " step ", step, "\n");
  }
  return outcome;
}

void Add(CLI::App* program, Invocation* invocation, const char* name, const char* what,
         bool pinned) {
  auto arguments = std::make_shared<PinArguments>();
  CLI::App* command = AddCommand(program, invocation, name, what,
                                 [=] { return RunPin(*arguments, pinned, invocation); });
  AddStore(command, &arguments->store);
  AddSteps(command, &arguments->steps);
}

}  // namespace

void AddPin(CLI::App* program, Invocation* invocation) {
  Add(program, invocation, "pin", "keep steps, whatever the retention rules say", true);
}

void AddUnpin(CLI::App* program, Invocation* invocation) {
  Add(program, invocation, "unpin", "take the pins of steps away", false);
}

}  // namespace stepwell::cli
