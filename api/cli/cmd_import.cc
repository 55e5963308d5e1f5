// SPDX-License-Identifier: Apache-2.0
// `stepwell import SRC STORE`: Orbax checkpoints as steps; all of a manager's root, or one. Files
// of other libraries the Python package reads.
#include <algorithm>
#include <filesystem>
#include <set>

#include <stepwell/checkpoint.h>

#include "api/cli/command.h"
#include "api/cli/interrupts.h"
#include "api/cli/output.h"
#include "api/cli/python.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct ImportArguments : StoreArguments {
  std::string source;
  std::vector<std::string> items;
  std::string if_exists = "error";
  std::string like;  // a step
  bool verify = false;
};

struct Import {
  uint64_t step = 0;
  std::string path;
  bool skipped = false;
  std::vector<std::string> items;
  uint64_t logical_bytes = 0;
};

ImportOptions OptionsOf(const ImportArguments& arguments, Progress* progress) {
  ImportOptions options;
  options.items = arguments.items;
  if (arguments.if_exists == "replace") options.if_exists = IfExists::kReplace;
  if (arguments.if_exists == "skip") options.if_exists = IfExists::kSkip;
  options.keep_waiting = [] { return !Interrupts::Received(); };
  if (progress != nullptr) {
    options.progress = [progress](uint64_t done, uint64_t all) { progress->Update(done, all); };
  }
  return options;
}

// Lists the steps to import, ascending.
Result<std::vector<Import>> Plan(const ImportArguments& arguments, std::optional<uint64_t> step) {
  std::vector<Import> imports;
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, FindOrbaxSteps(arguments.source));
  for (const OrbaxStep& found : steps) {
    if (!step || *step == found.step) imports.push_back({found.step, found.path, false, {}, 0});
  }
  if (!imports.empty()) return imports;
  if (!steps.empty()) {
    return NotFoundError(StrCat(arguments.source, " has no step ", *step, "; it has ", steps.size(),
                                ", from ", steps.front().step, " to ", steps.back().step));
  }
  STEPWELL_ASSIGN_OR_RETURN(const CheckpointInfo info, ReadCheckpointInfo(arguments.source));
  if (!step) step = info.step;
  if (!step) {
    return InvalidArgumentError(
        StrCat("the name of ", arguments.source,
               " is not a step's (7, step_7 and ckpt-7 are): give the step with --step"));
  }
  imports.push_back({*step, arguments.source, false, {}, 0});
  return imports;
}

// Before anything is read.
Status CheckSteps(Store* store, const ImportArguments& arguments, std::vector<Import>* imports) {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  std::set<uint64_t> there;
  for (const StepInfo& step : steps) there.insert(step.step);
  for (Import& import : *imports) {
    if (!there.contains(import.step) || arguments.if_exists == "replace") continue;
    if (arguments.if_exists == "error") {
      return AlreadyExistsError(StrCat(arguments.store, " has step ", import.step,
                                       " already; --if-exists replace or skip decides what then"));
    }
    import.skipped = true;
  }
  return OkStatus();
}

// One step is read while the one before it is written.
Status RunImports(Store* store, const ImportArguments& arguments, std::vector<Import>* imports) {
  std::optional<SaveHandle> last;
  for (Import& import : *imports) {
    if (import.skipped) continue;
    if (Interrupts::Received()) return CancelledError("the import was cancelled");
    Progress progress(StrCat("importing step ", import.step));
    STEPWELL_ASSIGN_OR_RETURN(SaveHandle handle, store->Import(import.path, import.step,
                                                               OptionsOf(arguments, &progress)));
    if (last) STEPWELL_RETURN_IF_ERROR(last->Wait());
    last = std::move(handle);
  }
  if (last) STEPWELL_RETURN_IF_ERROR(last->Wait());
  for (Import& import : *imports) {
    STEPWELL_ASSIGN_OR_RETURN(const Step step, store->Read(import.step));
    import.logical_bytes = step.info().logical_bytes;
    for (const ItemInfo& item : step.info().items) import.items.push_back(item.name);
  }
  return OkStatus();
}

// Verifies imported steps by a second read. Orbax's checkpoints have no checksums, so nothing else
// can detect a difference.
Status VerifyImports(Store* store, const ImportArguments& arguments,
                     const std::vector<Import>& imports) {
  for (const Import& import : imports) {
    if (import.skipped) continue;
    Progress progress(StrCat("verifying step ", import.step));
    const Status status =
        store->VerifyImport(import.path, import.step, OptionsOf(arguments, &progress));
    if (status.ok()) continue;
    if (status.code() != StatusCode::kDataLoss) return status;
    STEPWELL_RETURN_IF_ERROR(store->Delete({import.step}));
    return DataLossError(StrCat(status.message(), "; step ", import.step, " was deleted again"));
  }
  return OkStatus();
}

CommandResult ReportImports(const ImportArguments& arguments, const std::vector<Import>& imports,
                            bool json) {
  CommandResult outcome;
  if (json) {
    Json list = Json::array();
    for (const Import& import : imports) {
      list.push_back({{"step", import.step},
                      {"source", import.path},
                      {"skipped", import.skipped},
                      {"items", import.items},
                      {"logical_bytes", import.logical_bytes}});
    }
    outcome.text =
        JsonText({{"schema", kJsonSchema}, {"store", arguments.store}, {"steps", std::move(list)}});
    return outcome;
  }
  for (const Import& import : imports) {
    outcome.text +=
        import.skipped
            ? StrCat("skipped step ", import.step, ", which is there already\n")
            : StrCat("imported step ", import.step, ", ", HumanBytes(import.logical_bytes),
                     ", from ", Printable(import.path), "\n");
  }
  return outcome;
}

Result<CommandResult> ImportFile(const ImportArguments& arguments, bool json) {
  if (!arguments.items.empty() || arguments.verify) {
    return InvalidArgumentError(StrCat(arguments.source,
                                       " is a file: --item and --verify are for "
                                       "directories of Orbax"));
  }
  std::vector<std::string> words = {"import", "--if-exists", arguments.if_exists};
  for (const auto& [option, step] :
       {std::pair("--step", arguments.step), std::pair("--like", arguments.like)}) {
    if (step.empty()) continue;
    STEPWELL_RETURN_IF_ERROR(ParseStep(step).status());
    words.insert(words.end(), {option, step});
  }
  if (json) words.emplace_back("--json");
  words.insert(words.end(), {"--", arguments.source, arguments.store});
  return RunPython(std::move(words));
}

Result<CommandResult> RunImport(const ImportArguments& arguments, Invocation* invocation) {
  std::error_code unreadable;  // the import reports it
  if (std::filesystem::is_regular_file(arguments.source, unreadable)) {
    return ImportFile(arguments, invocation->json);
  }
  if (!arguments.like.empty()) {
    return InvalidArgumentError("--like is for files of leaves without their tree, as .eqx");
  }
  const Interrupts interrupts;
  std::optional<uint64_t> step;
  if (!arguments.step.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(step, ParseStep(arguments.step));
  }
  STEPWELL_ASSIGN_OR_RETURN(std::vector<Import> imports, Plan(arguments, step));
  STEPWELL_ASSIGN_OR_RETURN(Store store, OpenStore(arguments.store, /*read_only=*/false, invocation,
                                                   /*create=*/true));
  STEPWELL_RETURN_IF_ERROR(CheckSteps(&store, arguments, &imports));
  STEPWELL_RETURN_IF_ERROR(RunImports(&store, arguments, &imports));
  if (arguments.verify) {
    STEPWELL_RETURN_IF_ERROR(VerifyImports(&store, arguments, imports));
  }
  STEPWELL_RETURN_IF_ERROR(store.Close());
  return ReportImports(arguments, imports, invocation->json);
}

}  // namespace

void AddImport(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* command = AddCommand(program, invocation, "import",
                                 "save checkpoints of Orbax and other libraries as steps",
                                 [=] { return RunImport(*arguments, invocation); });
  command
      ->add_option("SRC", arguments->source,
                   "a checkpoint's directory; the root of a CheckpointManager: all its steps; or a "
                   "file: .safetensors, .npz, .msgpack, .eqx")
      ->required();
  AddStore(command, &arguments->store);
  command
      ->add_option("--step", arguments->step,
                   "of a root: only this step; of a checkpoint: the step that it becomes")
      ->type_name("NUMBER");
  command
      ->add_option("--item", arguments->items,
                   "only this item of the checkpoint; may be given more than once")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command
      ->add_option("--if-exists", arguments->if_exists,
                   "what to do about steps that are there: error, replace or skip")
      ->type_name("WHAT")
      ->check(CLI::IsMember({"error", "replace", "skip"}));
  command
      ->add_option("--like", arguments->like,
                   "of a .eqx or .msgpack file: a step of the store whose tree it has")
      ->type_name("STEP");
  command->add_flag("--verify", arguments->verify,
                    "read the source a second time and compare it with what was stored");
}

}  // namespace stepwell::cli
