// SPDX-License-Identifier: Apache-2.0
// `stepwell push STORE STEP URL`, `stepwell push --follow STORE URL` and `stepwell pull URL STORE`:
// run by the Python package, whose libraries know object stores (obstore, fsspec).
#include "api/cli/command.h"
#include "api/cli/python.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

struct TransferArguments : StoreArguments {
  std::string url;
  std::vector<std::string> options;
  std::vector<std::string> items;
  std::string if_exists = "error";
  std::string work_dir;
  std::string layout = "v1";
  std::string leaves;  // "": numpy
  std::string on_unsupported = "error";
  bool unnamed_default = false;
  bool verify = false;
  bool follow = false;
  std::string keep;
};

void AddCommon(const TransferArguments& arguments, bool json, std::vector<std::string>* words) {
  words->insert(words->end(), {"--if-exists", arguments.if_exists});
  for (const std::string& option : arguments.options) words->push_back("--option=" + option);
  if (!arguments.work_dir.empty()) words->push_back("--work-dir=" + arguments.work_dir);
  if (json) words->emplace_back("--json");
}

Result<CommandResult> RunPush(const TransferArguments& arguments, bool json) {
  if (arguments.follow != arguments.url.empty()) {
    return InvalidArgumentError(arguments.follow ? "--follow takes no STEP: it pushes the newest"
                                                 : "URL is required");
  }
  std::vector<std::string> words = {"push"};
  AddCommon(arguments, json, &words);
  words.insert(words.end(),
               {"--layout", arguments.layout, "--on-unsupported", arguments.on_unsupported});
  if (!arguments.leaves.empty()) words.insert(words.end(), {"--leaves", arguments.leaves});
  if (arguments.unnamed_default) words.emplace_back("--unnamed-default");
  if (arguments.verify) words.emplace_back("--verify");
  if (arguments.follow) words.emplace_back("--follow");
  if (!arguments.keep.empty()) words.push_back("--keep=" + arguments.keep);
  words.insert(words.end(), {"--", arguments.store, arguments.step});  // with --follow: the URL
  if (!arguments.follow) words.push_back(arguments.url);
  return RunPython(std::move(words));
}

Result<CommandResult> RunPull(const TransferArguments& arguments, bool json) {
  std::vector<std::string> words = {"pull"};
  AddCommon(arguments, json, &words);
  if (!arguments.step.empty()) {
    STEPWELL_RETURN_IF_ERROR(ParseStep(arguments.step).status());
    words.insert(words.end(), {"--step", arguments.step});
  }
  for (const std::string& item : arguments.items) words.push_back("--item=" + item);
  words.insert(words.end(), {"--", arguments.url, arguments.store});
  return RunPython(std::move(words));
}

CLI::Option* AddChoice(CLI::App* command, const char* name, std::string* value, const char* type,
                       std::vector<std::string> choices, const char* what) {
  return command->add_option(name, *value, what)
      ->type_name(type)
      ->check(CLI::IsMember(std::move(choices)));
}

CLI::Option* AddUrl(CLI::App* command, std::string* url, const char* what) {
  return command->add_option("URL", *url, what);
}

void AddShared(CLI::App* command, const std::shared_ptr<TransferArguments>& arguments) {
  command
      ->add_option("--option", arguments->options,
                   "for the library that opens the URL, such as region=eu-west-1; credentials are "
                   "taken from the environment, too")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--work-dir", arguments->work_dir,
                   "where to put what is on its way; default: beside the store")
      ->type_name("DIR");
}

}  // namespace

void AddPush(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TransferArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "push",
                 "copy a step to an object store, as an Orbax checkpoint with checksums",
                 [=] { return RunPush(*arguments, invocation->json); });
  AddStore(command, &arguments->store);
  command->add_option("STEP", arguments->step, "a number, or latest; with --follow left out")
      ->required();
  AddUrl(command, &arguments->url, "s3://bucket/run1/900, gs://..., az://..., or a directory");
  AddShared(command, arguments);
  AddChoice(command, "--if-exists", &arguments->if_exists, "WHAT", {"error", "replace", "skip"},
            "what to do about a step that was pushed there: error, replace or skip");
  AddChoice(
      command, "--layout", &arguments->layout, "v0|v1|stepwell", {"v0", "v1", "stepwell"},
      "of which of Orbax's interfaces, default v1; or stepwell: to a run of steps at URL, only "
      "what its steps lack");
  AddChoice(command, "--leaves", &arguments->leaves, "TYPE", {"numpy", "jax"},
            "numpy (loads anywhere) or jax (those that were, with their shardings)");
  AddChoice(command, "--on-unsupported", &arguments->on_unsupported, "WHAT",
            {"error", "skip", "widen"}, "what Orbax cannot hold: error, skip, or widen");
  command->add_flag("--unnamed-default", arguments->unnamed_default,
                    "v0: call a single item \"default\", as managers without item names expect");
  command->add_flag("--verify", arguments->verify, "read everything back before it counts");
  CLI::Option* follow = command->add_flag(
      "--follow", arguments->follow,
      "push the newest step to a run of steps at URL, and then each newer one, until Ctrl-C");
  command
      ->add_option("--keep", arguments->keep,
                   "with --follow: how many steps the run there keeps; default: all")
      ->type_name("N")
      ->needs(follow);
  for (const char* name :
       {"--if-exists", "--layout", "--leaves", "--on-unsupported", "--unnamed-default"}) {
    follow->excludes(command->get_option(name));
  }
}

void AddPull(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TransferArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "pull", "save a step that push copied to an object store",
                 [=] { return RunPull(*arguments, invocation->json); });
  AddUrl(command, &arguments->url,
         "where a step was pushed, or the place above several: the highest of them")
      ->required();
  AddStore(command, &arguments->store);
  AddShared(command, arguments);
  command
      ->add_option("--step", arguments->step,
                   "the step that it becomes, default: as it was; of a run: the step to "
                   "pull, default: the highest")
      ->type_name("NUMBER");
  command->add_option("--item", arguments->items, "only this item; may be given more than once")
      ->type_name("NAME")
      ->allow_extra_args(false);
  AddChoice(command, "--if-exists", &arguments->if_exists, "WHAT", {"error", "replace", "skip"},
            "what to do about a step that is there: error, replace or skip");
}

}  // namespace stepwell::cli
