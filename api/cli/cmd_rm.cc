// SPDX-License-Identifier: Apache-2.0
// `stepwell rm STORE STEP...`: deletes steps, or items of them. All arguments are checked before
// anything is deleted. `stepwell rm URL STEP...`: deletes steps of a pushed run.
#include <algorithm>
#include <set>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/python.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct RmArguments : StoreArguments {
  std::vector<std::string> steps;
  std::vector<std::string> items;
  bool dry_run = false;
  std::vector<std::string> options;  // for the library that opens a URL
  bool sweep = false;
};

// Names what to remove: whole steps, or the named items of each step.
struct Removal {
  uint64_t step = 0;
  uint64_t stored_bytes = 0;
};

Result<Removal> PlanRemoval(const StepInfo& step, const std::vector<std::string>& items) {
  if (step.pinned) {
    return FailedPreconditionError(
        StrCat("step ", step.step, " is pinned; `stepwell unpin` it before it can be deleted"));
  }
  if (items.empty()) return Removal{step.step, step.stored_bytes};
  Removal removal{step.step, 0};
  std::string names;
  for (const ItemInfo& item : step.items) {
    names += StrCat(names.empty() ? "" : ", ", item.name);
  }
  for (const std::string& name : items) {
    const auto found = std::find_if(step.items.begin(), step.items.end(),
                                    [&](const auto& item) { return item.name == name; });
    if (found == step.items.end()) {
      return NotFoundError(StrCat("step ", step.step, " has no item ", name, "; it has: ", names));
    }
    removal.stored_bytes += found->stored_bytes;
  }
  if (items.size() == step.items.size()) {
    return InvalidArgumentError(StrCat("step ", step.step,
                                       " would have no item left; delete the whole step instead, "
                                       "without --item"));
  }
  return removal;
}

Status Remove(Store* store, const std::vector<Removal>& removals,
              const std::vector<std::string>& items) {
  if (items.empty()) {
    std::vector<uint64_t> steps;
    steps.reserve(removals.size());
    for (const Removal& removal : removals) steps.push_back(removal.step);
    return store->Delete(steps);
  }
  for (size_t i = 0; i < removals.size(); ++i) {
    const Status status = store->DeleteItems(removals[i].step, items);
    if (status.ok()) continue;
    if (i == 0) return status;
    // Whatever else is wrong, it is not so that nothing was done.
    const bool unknown = status.code() == StatusCode::kOutcomeUnknown;
    return {unknown ? status.code() : StatusCode::kAborted,
            StrCat("the items of ", i, " of ", removals.size(), " steps were deleted, up to step ",
                   removals[i - 1].step, "; then: ", status.message())};
  }
  return OkStatus();
}

Result<CommandResult> RemovePushed(const RmArguments& arguments, bool json) {
  if (!arguments.items.empty() || arguments.dry_run) {
    return InvalidArgumentError("--item and --dry-run are for stores; this is a pushed run");
  }
  std::vector<std::string> words = {"rm"};
  for (const std::string& option : arguments.options) words.push_back("--option=" + option);
  if (arguments.sweep) words.emplace_back("--sweep");
  if (json) words.emplace_back("--json");
  words.insert(words.end(), {"--", arguments.store});
  words.insert(words.end(), arguments.steps.begin(), arguments.steps.end());
  return RunPython(std::move(words));
}

Result<CommandResult> RunRm(const RmArguments& arguments, Invocation* invocation) {
  if (arguments.store.find("://") != std::string::npos) {
    return RemovePushed(arguments, invocation->json);
  }
  if (arguments.sweep || !arguments.options.empty()) {
    return InvalidArgumentError("--sweep and --option are for pushed runs, at a URL");
  }
  std::vector<std::string> items(arguments.items);
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  STEPWELL_ASSIGN_OR_RETURN(
      auto store, arguments.dry_run ? OpenStore(arguments.store, /*read_only=*/true, invocation)
                                    : OpenToChange(arguments.store, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps,
                            StepNumbers(&store, arguments.steps));
  std::vector<Removal> removals;
  uint64_t stored_bytes = 0;
  for (const uint64_t step : steps) {
    STEPWELL_ASSIGN_OR_RETURN(const Step reader, store.Read(step));
    STEPWELL_ASSIGN_OR_RETURN(const Removal removal, PlanRemoval(reader.info(), items));
    removals.push_back(removal);
    stored_bytes += removal.stored_bytes;
  }
  if (!arguments.dry_run) {
    STEPWELL_RETURN_IF_ERROR(Remove(&store, removals, items));
    STEPWELL_RETURN_IF_ERROR(store.Close());
  }
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"steps", steps},
                             {"items", items},
                             {"stored_bytes", stored_bytes},
                             {"dry_run", arguments.dry_run}});
    return outcome;
  }
  std::string names;
  for (const std::string& item : items) names += StrCat(names.empty() ? " item " : ", ", item);
  for (const Removal& removal : removals) {
    outcome.text += StrCat(arguments.dry_run ? "would delete" : "deleted", " step ", removal.step,
                           Printable(names), ", ", HumanBytes(removal.stored_bytes), " stored\n");
  }
  return outcome;
}

}  // namespace

void AddRm(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<RmArguments>();
  CLI::App* command = AddCommand(program, invocation, "rm", "delete steps, or items of steps",
                                 [=] { return RunRm(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddSteps(command, &arguments->steps);
  command
      ->add_option("--item", arguments->items,
                   "delete this item of each step, and keep the rest; may be given more than once")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command->add_flag("--dry-run", arguments->dry_run, "only say what would be deleted");
  command
      ->add_option("--option", arguments->options,
                   "of a pushed run: for the library that opens the URL, such as region=eu-west-1")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--sweep", arguments->sweep,
                    "of a pushed run: also the data of pushes that were cut off; none may be under "
                    "way");
}

}  // namespace stepwell::cli
