// SPDX-License-Identifier: Apache-2.0
// `stepwell taint STORE STEP WHY` and `untaint STORE STEP...`: tainted steps are not resumed from.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct TaintArguments : StoreArguments {
  std::vector<std::string> steps;  // untaint
  std::string why;                 // untaint: ""
};

Result<CommandResult> RunTaint(const TaintArguments& arguments, bool taint,
                               Invocation* invocation) {
  if (taint && arguments.why.empty()) return InvalidArgumentError("WHY must say something");
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenToChange(arguments.store, invocation));
  STEPWELL_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> steps,
      StepNumbers(&store, taint ? std::vector{arguments.step} : arguments.steps));
  STEPWELL_RETURN_IF_ERROR(store.SetTaint(steps, arguments.why));
  STEPWELL_RETURN_IF_ERROR(store.Close());
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"steps", steps},
                             {"taint", taint ? Json(arguments.why) : Json()}});
    return outcome;
  }
  for (const uint64_t step : steps) {
    outcome.text += StrCat(taint ? "tainted" : "untainted", " step ", step, "\n");
  }
  return outcome;
}

}  // namespace

void AddTaint(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TaintArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "taint", "mark a step as not to be resumed from",
                 [=] { return RunTaint(*arguments, /*taint=*/true, invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("STEP", arguments->step,
                   "a number, a range as 100-200 (both ends too), or latest")
      ->required();
  command->add_option("WHY", arguments->why, "the reason, which ls and show print")->required();
}

void AddUntaint(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TaintArguments>();
  CLI::App* command = AddCommand(program, invocation, "untaint", "take the taints of steps away",
                                 [=] { return RunTaint(*arguments, /*taint=*/false, invocation); });
  AddStore(command, &arguments->store);
  AddSteps(command, &arguments->steps);
}

}  // namespace stepwell::cli
