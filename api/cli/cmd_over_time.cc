// SPDX-License-Identifier: Apache-2.0
// `stepwell top STORE` and `stepwell bisect STORE --good A --bad B -- CMD`: run by the Python
// package.
#include <optional>

#include "api/cli/command.h"
#include "api/cli/python.h"

namespace stepwell::cli {
namespace {

struct TopArguments : StoreArguments {
  std::optional<double> interval_s;
  bool once = false;
};

struct BisectArguments : StoreArguments {
  std::string good;
  std::string bad;
  std::string export_to;  // empty: where the command has {path}
  std::vector<std::string> words;
};

Result<CommandResult> RunTop(const TopArguments& arguments, const Invocation& invocation) {
  std::vector<std::string> words = {"top"};
  if (arguments.interval_s) words.push_back(StrCat("--interval=", *arguments.interval_s));
  if (arguments.once) words.emplace_back("--once");
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  words.insert(words.end(), {"--", StoreWithin(arguments.store)});
  return RunPython(std::move(words));
}

Result<CommandResult> RunBisect(const BisectArguments& arguments, const Invocation& invocation) {
  for (const std::string& step : {arguments.good, arguments.bad}) {
    if (step != "latest") STEPWELL_RETURN_IF_ERROR(ParseStep(step).status());
  }
  std::vector<std::string> words = {"bisect", "--good=" + arguments.good, "--bad=" + arguments.bad};
  if (!arguments.export_to.empty()) words.push_back("--export=" + arguments.export_to);
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  // With a character in front, without which Python's parser takes a word "--" for its own.
  for (const std::string& word : arguments.words) words.push_back("--word=:" + word);
  words.insert(words.end(), {"--", StoreWithin(arguments.store)});
  return RunPython(std::move(words));
}

}  // namespace

void AddTop(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* command = AddCommand(program, invocation, "top", "watch how a store does, live",
                                 [=] { return RunTop(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("--interval", arguments->interval_s,
                   "seconds from one look at the store to the next (default 1)")
      ->type_name("S")
      ->check(CLI::PositiveNumber);
  command->add_flag("--once", arguments->once,
                    "print one picture and end, as where standard output is no terminal");
}

void AddBisect(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<BisectArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "bisect", "find the step from which on a command fails",
                 [=] { return RunBisect(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("CMD", arguments->words,
                   "with its arguments, behind --; {step}, {run} and {path} in them stand for the "
                   "step, the store, and an export of the step; exit status 0 is good, 125 skips "
                   "the step, 1 to 127 are bad, and others end the search")
      ->required();
  command->add_option("--good", arguments->good, "a step that is good: a number, or latest")
      ->type_name("STEP")
      ->required();
  command->add_option("--bad", arguments->bad, "a step that is bad; it may be the lower one")
      ->type_name("STEP")
      ->required();
  AddChoice<std::string>(command, "--export", &arguments->export_to, "orbax|none",
                         "orbax: export each step, also where CMD has no {path}; it finds the path "
                         "in $STEPWELL_PATH",
                         {{"none", "none"}, {"orbax", "orbax"}});
}

}  // namespace stepwell::cli
