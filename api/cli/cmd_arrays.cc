// SPDX-License-Identifier: Apache-2.0
// `stepwell cat STORE STEP PATH`, `stepwell diff STORE A B [PATH]`, `stepwell history STORE PATH`,
// `stepwell digest STORE [STEP] [PATH]`: run by the Python package, with NumPy.
#include <optional>

#include "api/cli/command.h"
#include "api/cli/python.h"

namespace stepwell::cli {
namespace {

struct CatArguments : StoreArguments {
  bool full = false;
  std::optional<std::string> slice;
  bool npy = false;
  bool bits = false;
  std::optional<std::string> output;
};

struct DiffArguments : StoreArguments {
  std::string step_b;
  std::string other;
  bool exit_code = false;
  bool records = false;
};

struct HistoryArguments : StoreArguments {
  std::optional<std::string> steps;
  std::optional<std::string> slice;
  bool csv = false;
};

Status CheckStep(const std::string& text) {
  return text == "latest" ? OkStatus() : ParseStep(text).status();
}

Result<CommandResult> RunCat(const CatArguments& arguments, const Invocation& invocation) {
  STEPWELL_RETURN_IF_ERROR(CheckStep(arguments.step));
  std::vector<std::string> words = {"cat"};
  if (arguments.full) words.emplace_back("--full");
  if (arguments.npy) words.emplace_back("--npy");
  if (arguments.bits) words.emplace_back("--bits");
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  if (arguments.slice) words.push_back("--slice=" + *arguments.slice);
  if (arguments.output) words.push_back("--output=" + *arguments.output);
  words.insert(words.end(), {"--", StoreWithin(arguments.store), arguments.step, arguments.path});
  return RunPython(std::move(words));
}

Result<CommandResult> RunDiff(const DiffArguments& arguments, const Invocation& invocation) {
  STEPWELL_RETURN_IF_ERROR(CheckStep(arguments.step));
  STEPWELL_RETURN_IF_ERROR(CheckStep(arguments.step_b));
  std::vector<std::string> words = {"diff"};
  if (!arguments.other.empty()) words.push_back("--other=" + StoreWithin(arguments.other));
  if (arguments.exit_code) words.emplace_back("--exit-code");
  if (arguments.records) words.emplace_back("--records");
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  words.insert(words.end(), {"--", StoreWithin(arguments.store), arguments.step, arguments.step_b,
                             arguments.path});
  return RunPython(std::move(words));
}

Result<CommandResult> RunHistory(const HistoryArguments& arguments, const Invocation& invocation) {
  std::vector<std::string> words = {"history"};
  if (arguments.csv) words.emplace_back("--csv");
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  if (arguments.steps) words.push_back("--steps=" + *arguments.steps);
  if (arguments.slice) words.push_back("--slice=" + *arguments.slice);
  words.insert(words.end(), {"--", StoreWithin(arguments.store), arguments.path});
  return RunPython(std::move(words));
}

Result<CommandResult> RunDigest(const StoreArguments& arguments, const Invocation& invocation) {
  const std::string step = arguments.step.empty() ? "latest" : arguments.step;
  STEPWELL_RETURN_IF_ERROR(CheckStep(step));
  std::vector<std::string> words = {"digest"};
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  words.insert(words.end(), {"--", StoreWithin(arguments.store), step, arguments.path});
  return RunPython(std::move(words));
}

}  // namespace

void AddCat(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<CatArguments>();
  CLI::App* command = AddCommand(program, invocation, "cat", "print arrays and values",
                                 [=] { return RunCat(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step)->required();
  AddPath(command, &arguments->path)
      ->required()
      ->description("of an array or value; a glob prints each that it names");
  command->add_flag("--full", arguments->full,
                    "every element of a large array, not only its corners");
  command
      ->add_option("--slice", arguments->slice,
                   "only these elements, as NumPy's basic slices, e.g. \"0:16,:,-1\"; reads just "
                   "the chunks that have them")
      ->type_name("SLICE");
  command->add_flag("--npy", arguments->npy, "write a NumPy .npy file");
  command->add_option("-o,--output", arguments->output, "--npy: the file to write, not stdout")
      ->type_name("FILE");
  command->add_flag("--bits", arguments->bits,
                    "--npy: write types that NumPy itself lacks (bfloat16, float8, int4, ...) as "
                    "unsigned integers of their size");
}

void AddDiff(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = AddCommand(program, invocation, "diff", "compare two steps",
                                 [=] { return RunDiff(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  command->add_option("A", arguments->step, "a step: a number, or latest")->required();
  command->add_option("B", arguments->step_b, "the step that is compared with A")->required();
  AddPath(command, &arguments->path);
  command->add_option("--other", arguments->other, "B is a step of this store")->type_name("STORE");
  command->add_flag("--exit-code", arguments->exit_code, "exit with status 7 when they differ");
  command->add_flag(
      "--records", arguments->records,
      "only which leaves and chunks differ, which takes no reading of arrays; not how "
      "far apart they are");
}

void AddHistory(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<HistoryArguments>();
  CLI::App* command = AddCommand(program, invocation, "history", "print one leaf over time",
                                 [=] { return RunHistory(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  AddPath(command, &arguments->path)->required()->description("of an array or a number");
  command
      ->add_option("--steps", arguments->steps,
                   "only these steps, from FIRST on and before END, as Python's slices")
      ->type_name("FIRST:END");
  command
      ->add_option("--slice", arguments->slice,
                   "only these elements, as NumPy's basic slices, e.g. \"0:16,:,-1\"; one element "
                   "is a value")
      ->type_name("SLICE");
  command->add_flag("--csv", arguments->csv, "comma-separated values");
}

void AddDigest(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<StoreArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "digest", "print the SHA-256 of what a step's leaves hold",
                 [=] { return RunDigest(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step);
  AddPath(command, &arguments->path);
}

}  // namespace stepwell::cli
