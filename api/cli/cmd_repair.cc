// SPDX-License-Identifier: Apache-2.0
// `stepwell repair STORE`: writes damaged frames anew, from copies or the index; with --accept,
// ends losses; with --discard, gives up steps that cannot be checked.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct RepairArguments : StoreArguments {
  bool accept = false;
  std::vector<uint64_t> discard;
};

Result<CommandResult> RunRepair(const RepairArguments& arguments, Invocation* invocation) {
  invocation->discard.insert(arguments.discard.begin(), arguments.discard.end());
  STEPWELL_ASSIGN_OR_RETURN(auto store,
                            OpenStore(arguments.store, /*read_only=*/false, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const RecoveryReport opened, store.Recovery());
  STEPWELL_ASSIGN_OR_RETURN(const RepairReport report, store.Repair(arguments.accept));
  STEPWELL_RETURN_IF_ERROR(store.Close());
  CommandResult outcome;
  const bool open_losses = !report.losses.empty() && !report.losses_accepted;
  if (open_losses) outcome.exit = ExitCode::kCorruption;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"repaired", opened.repaired},
                             {"steps_rewritten", report.steps_rewritten},
                             {"losses", report.losses},
                             {"losses_accepted", report.losses_accepted},
                             {"commits_discarded", opened.commits_rejected}});
    return outcome;
  }
  for (const std::string& line : opened.repaired) outcome.text += Printable(line) + "\n";
  for (const uint64_t step : report.steps_rewritten) {
    outcome.text += StrCat("step ", step, ": a damaged frame was written anew\n");
  }
  for (const std::string& loss : report.losses) {
    outcome.text += StrCat(report.losses_accepted ? "accepted: " : "", Printable(loss), "\n");
  }
  if (open_losses) outcome.text += "`--accept` takes what is there as it is\n";
  if (outcome.text.empty()) outcome.text = "nothing to repair\n";
  return outcome;
}

}  // namespace

void AddRepair(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<RepairArguments>();
  CLI::App* command = AddCommand(program, invocation, "repair",
                                 "write damaged records anew, from copies or the index",
                                 [=] { return RunRepair(*arguments, invocation); });
  AddStore(command, &arguments->store);
  command->add_flag("--accept", arguments->accept,
                    "take what is there as it is where records are lost for good");
  command
      ->add_option("--discard", arguments->discard,
                   "give up this step, which was being written last and cannot be read")
      ->type_name("STEP")
      ->allow_extra_args(false);
}

}  // namespace stepwell::cli
