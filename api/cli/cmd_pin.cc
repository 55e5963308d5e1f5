// SPDX-License-Identifier: Apache-2.0
// `stepwell pin STORE STEP...` and `unpin`: pinned steps are kept, whatever the rules say.
// `stepwell taint STORE STEP WHY` and `untaint STORE STEP...`: tainted steps are not resumed from.
// `stepwell rollback STORE --to STEP`: deletes or taints all steps above one.
#include <functional>
#include <optional>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct MarkArguments : StoreArguments {
  std::vector<std::string> steps;
  std::string why;  // taint
};

// What one of the commands makes of the steps.
struct Mark {
  std::string key;   // in the JSON document
  Json value;        // of it
  std::string verb;  // in words: "pinned"
  std::function<Status(Store*, const std::vector<uint64_t>&)> set;
};

Result<CommandResult> RunMark(const std::string& path, const std::vector<std::string>& texts,
                              const Mark& mark, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenToChange(path, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, StepNumbers(&store, texts));
  STEPWELL_RETURN_IF_ERROR(mark.set(&store, steps));
  STEPWELL_RETURN_IF_ERROR(store.Close());
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText(
        {{"schema", kJsonSchema}, {"store", path}, {"steps", steps}, {mark.key, mark.value}});
    return outcome;
  }
  for (const uint64_t step : steps) outcome.text += StrCat(mark.verb, " step ", step, "\n");
  return outcome;
}

Mark PinMark(bool pinned) {
  return {"pinned", pinned, pinned ? "pinned" : "unpinned",
          [pinned](Store* store, const std::vector<uint64_t>& steps) {
            return store->SetPinned(steps, pinned);
          }};
}

// "": takes the taints away.
Mark TaintMark(const std::string& why) {
  return {"taint", why.empty() ? Json() : Json(why), why.empty() ? "untainted" : "tainted",
          [why](Store* store, const std::vector<uint64_t>& steps) {
            return store->SetTaint(steps, why);
          }};
}

void AddMark(CLI::App* program, Invocation* invocation, const char* name, const char* what,
             const Mark& mark) {
  auto arguments = std::make_shared<MarkArguments>();
  CLI::App* command = AddCommand(program, invocation, name, what, [=] {
    return RunMark(arguments->store, arguments->steps, mark, invocation);
  });
  AddStore(command, &arguments->store);
  AddSteps(command, &arguments->steps);
}

Result<CommandResult> RunRollback(const std::string& path, const std::string& to,
                                  const std::optional<std::string>& why, Invocation* invocation) {
  if (why && why->empty()) return InvalidArgumentError("WHY must say something");
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenToChange(path, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const Step step, ReadStep(&store, to));
  const uint64_t number = step.info().step;
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store.RollBack(number, why.value_or("")));
  STEPWELL_RETURN_IF_ERROR(store.Close());
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", path},
                             {"to", number},
                             {"steps", steps},
                             {"taint", why ? Json(*why) : Json()}});
    return outcome;
  }
  if (steps.empty()) Warn(StrCat(path, " has no step above ", number));
  for (const uint64_t each : steps) {
    outcome.text += StrCat(why ? "tainted" : "deleted", " step ", each, "\n");
  }
  return outcome;
}

}  // namespace

void AddPin(CLI::App* program, Invocation* invocation) {
  AddMark(program, invocation, "pin", "keep steps, whatever the retention rules say",
          PinMark(true));
}

void AddUnpin(CLI::App* program, Invocation* invocation) {
  AddMark(program, invocation, "unpin", "take the pins of steps away", PinMark(false));
}

void AddTaint(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<MarkArguments>();
  CLI::App* command = AddCommand(
      program, invocation, "taint", "mark a step as not to be resumed from",
      [=]() -> Result<CommandResult> {
        if (arguments->why.empty()) return InvalidArgumentError("WHY must say something");
        return RunMark(arguments->store, {arguments->step}, TaintMark(arguments->why), invocation);
      });
  AddStore(command, &arguments->store);
  command
      ->add_option("STEP", arguments->step,
                   "a number, a range as 100-200 (both ends too), or latest")
      ->required();
  command->add_option("WHY", arguments->why, "the reason, which ls and show print")->required();
}

void AddUntaint(CLI::App* program, Invocation* invocation) {
  AddMark(program, invocation, "untaint", "take the taints of steps away", TaintMark(""));
}

void AddRollback(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<MarkArguments>();
  auto why = std::make_shared<std::optional<std::string>>();
  CLI::App* command =
      AddCommand(program, invocation, "rollback", "delete all steps above one, or taint them",
                 [=] { return RunRollback(arguments->store, arguments->step, *why, invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("--to", arguments->step,
                   "the step to go back to, which is not tainted: a number, or latest")
      ->type_name("STEP")
      ->required();
  command->add_option("--taint", *why, "taint the steps above with this reason, delete none")
      ->type_name("WHY");
}

}  // namespace stepwell::cli
