// SPDX-License-Identifier: Apache-2.0
// `stepwell patch STORE SINCE TO FILE`: what changed between two steps, as a safetensors file. Run
// by the Python package, with NumPy.
#include <memory>
#include <utility>

#include "api/cli/command.h"
#include "api/cli/python.h"

namespace stepwell::cli {
namespace {

struct PatchArguments : StoreArguments {
  std::string to;
  std::string file;
  std::string item;
  std::vector<std::string> renames;
  std::string dtype;
  std::string on_unsupported = "error";
  bool no_digests = false;
  bool replace = false;
};

Result<CommandResult> RunPatch(const PatchArguments& arguments, const Invocation& invocation) {
  for (const std::string* step : {&arguments.step, &arguments.to}) {
    if (*step != "latest") STEPWELL_RETURN_IF_ERROR(ParseStep(*step).status());
  }
  std::vector<std::string> words = {"patch", "--on-unsupported", arguments.on_unsupported};
  if (!arguments.item.empty()) words.push_back("--item=" + arguments.item);
  for (const std::string& rename : arguments.renames) words.push_back("--rename=" + rename);
  if (!arguments.dtype.empty()) words.push_back("--dtype=" + arguments.dtype);
  if (arguments.no_digests) words.emplace_back("--no-digests");
  if (arguments.replace) words.emplace_back("--replace");
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  words.insert(words.end(), {"--", arguments.store, arguments.step, arguments.to, arguments.file});
  return RunPython(std::move(words));
}

}  // namespace

void AddPatch(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<PatchArguments>();
  CLI::App* command = AddCommand(program, invocation, "patch",
                                 "write what changed between two steps as a safetensors file",
                                 [=] { return RunPatch(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  command->add_option("SINCE", arguments->step, "the step that its readers have, or latest")
      ->required();
  command->add_option("TO", arguments->to, "the step that they shall have, or latest")->required();
  command->add_option("FILE", arguments->file, "the file, which must not exist")->required();
  command->add_option("--item", arguments->item, "only what is at and below this path")
      ->type_name("PATH");
  command
      ->add_option("--rename", arguments->renames,
                   "another name for what is at a path, such as params/*/w=model.*.weight; may be "
                   "given more than once, of which the first that matches applies")
      ->type_name("FROM=TO")
      ->allow_extra_args(false);
  command
      ->add_option("--dtype", arguments->dtype,
                   "the type of all floating-point tensors, such as bfloat16")
      ->type_name("TYPE");
  command
      ->add_option("--on-unsupported", arguments->on_unsupported,
                   "what safetensors cannot hold: error, skip, or widen")
      ->type_name("WHAT")
      ->check(CLI::IsMember({"error", "skip", "widen"}));
  command->add_flag("--no-digests", arguments->no_digests,
                    "without the digests of before and after; reads only what changed");
  command->add_flag("--replace", arguments->replace, "a file that is there gives way");
}

}  // namespace stepwell::cli
