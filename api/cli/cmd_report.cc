// SPDX-License-Identifier: Apache-2.0
// `stepwell report STORE -o FILE` and `stepwell serve STORE`: a run as a page, in a file or over
// HTTP. Run by the Python package.
#include <memory>
#include <optional>
#include <utility>

#include "api/cli/command.h"
#include "api/cli/python.h"

namespace stepwell::cli {
namespace {

struct ReportArguments : StoreArguments {
  std::optional<std::string> output;
  bool replace = false;
};

struct ServeArguments : StoreArguments {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
};

// The words that both hand to Python, the options of a command first.
Result<CommandResult> Run(std::vector<std::string> words, const std::string& store,
                          const Invocation& invocation) {
  if (invocation.untrusted) words.emplace_back("--untrusted");
  if (invocation.json) words.emplace_back("--json");
  words.insert(words.end(), {"--", StoreWithin(store)});
  return RunPython(std::move(words));
}

Result<CommandResult> RunReport(const ReportArguments& arguments, const Invocation& invocation) {
  std::vector<std::string> words = {"report"};
  if (arguments.output) words.push_back("--output=" + *arguments.output);
  if (arguments.replace) words.emplace_back("--replace");
  return Run(std::move(words), arguments.store, invocation);
}

Result<CommandResult> RunServe(const ServeArguments& arguments, const Invocation& invocation) {
  return Run({"serve", "--host=" + arguments.host, StrCat("--port=", arguments.port)},
             arguments.store, invocation);
}

}  // namespace

void AddReport(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "report", "write a page that shows a run in a browser",
                 [=] { return RunReport(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("-o,--output", arguments->output,
                   "the file to write; with --json it gets the document that the page shows")
      ->type_name("FILE");
  command->add_flag("--replace", arguments->replace, "a file that is there gives way");
}

void AddServe(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ServeArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "serve", "show a run in a browser while it grows",
                 [=] { return RunServe(*arguments, *invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("--host", arguments->host,
                   "the address to serve at (127.0.0.1); the network sees any that is not a "
                   "loopback address, unencrypted")
      ->type_name("ADDRESS");
  command->add_option("--port", arguments->port, "the port (0: one that is free)")
      ->type_name("PORT");
}

}  // namespace stepwell::cli
