// SPDX-License-Identifier: Apache-2.0
// The program `stepwell`: parses the command line, runs one command, reports how it went.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstring>
#include <exception>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "io/bytes.h"

namespace stepwell::cli {

Result<uint64_t> ParseStep(const std::string& text) {
  uint64_t step = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), step);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
      step > static_cast<uint64_t>(INT64_MAX)) {
    return InvalidArgumentError(
        StrCat("STEP must be a number from 0 to 2^63-1 or \"latest\", not \"", text, "\""));
  }
  return step;
}

Result<std::shared_ptr<db::StepReader>> ReadStep(db::Store* store, const std::string& text) {
  if (!text.empty() && text != "latest") {
    STEPWELL_ASSIGN_OR_RETURN(uint64_t step, ParseStep(text));
    return store->Read(step);
  }
  STEPWELL_ASSIGN_OR_RETURN(std::vector<db::StepSummary> steps, store->Steps());
  if (steps.empty()) return NotFoundError(store->path() + " has no steps yet");
  return store->Read(steps.back().step.step);
}

namespace {

constexpr const char* kFooter =
    "Exit status: 0 all is well, 1 an error of another kind, 2 wrong usage, 3 no such store, step "
    "or\n"
    "path, 4 damage found, 5 locked by another process, 6 no space left.\n"
    "\n"
    "Paths are components joined by \"/\", with \\ before any / in a name; the first one is the "
    "item,\n"
    "which may be left out when a step has only the item \"state\".\n"
    "\n"
    "Examples:\n"
    "  stepwell ls run1\n"
    "  stepwell show run1 latest params\n"
    "  stepwell cat run1 900 params/head/bias --json\n"
    "  stepwell verify run1";

using Command = Result<Outcome> (*)(db::Store*, const Options&);

CLI::App* AddCommand(CLI::App* app, const char* name, const char* what, Options* options) {
  CLI::App* command = app->add_subcommand(name, what);
  command->add_option("STORE", options->store, "the store's directory")->required();
  command->add_flag("--json", options->json, "print one JSON document");
  return command;
}

Result<std::unique_ptr<db::Store>> OpenStore(const std::string& path) {
  db::StoreOptions options;
  options.read_only = true;
  options.create = false;
  options.log = [](LogLevel level, std::string_view message) {
    if (level >= LogLevel::kWarning) Warn(std::string(message));
  };
  return db::Store::Open(path, options);
}

// Runs the command and says how it went; nothing of it is printed when it fails.
ExitCode Run(const Options& options, Command command) {
  Result<std::unique_ptr<db::Store>> store = OpenStore(options.store);
  if (!store.ok()) {
    ReportError(store.status(), HintFor(store.status(), false), options.json);
    return ExitCodeOf(store.status());
  }
  const Result<Outcome> outcome = command(store->get(), options);
  const Status status = outcome.ok() ? WriteStdout(outcome->text) : outcome.status();
  if (status.ok()) return outcome->exit;
  ReportError(status, HintFor(status, true), options.json);
  return ExitCodeOf(status);
}

int UsageError(const std::string& message, int argc, char** argv) {
  const bool json =
      std::any_of(argv, argv + argc, [](const char* arg) { return !std::strcmp(arg, "--json"); });
  ReportError(InvalidArgumentError(message), kUsageHint, json);
  return static_cast<int>(ExitCode::kUsage);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Looks into Stepwell checkpoint stores. Reads only; works beside a live writer.",
               "stepwell");
  app.set_version_flag("--version", "stepwell " STEPWELL_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);

  CLI::App* ls = AddCommand(&app, "ls", "list the steps", &options);
  CLI::App* show = AddCommand(&app, "show", "print the tree of a step", &options);
  show->add_option("STEP", options.step, "a number, or latest (the default)");
  show->add_option("PATH", options.path, "only what is at and below this path");
  CLI::App* cat = AddCommand(&app, "cat", "print an array or a value", &options);
  cat->add_option("STEP", options.step, "a number, or latest")->required();
  cat->add_option("PATH", options.path, "of the array or value")->required();
  cat->add_flag("--full", options.full, "every element of a large array, not only its corners");
  CLI::App* verify = AddCommand(&app, "verify", "read everything, check every checksum", &options);
  verify->add_option("--step", options.step, "only this step");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      return UsageError(StrCat("no command \"", argv[1], "\"; there are ls, show, cat, verify"),
                        argc, argv);
    }
    return UsageError(error.what(), argc, argv);
  }
  const std::pair<CLI::App*, Command> commands[] = {
      {ls, RunLs}, {show, RunShow}, {cat, RunCat}, {verify, RunVerify}};
  for (const auto& [parsed, command] : commands) {
    if (parsed->parsed()) return static_cast<int>(Run(options, command));
  }
  return static_cast<int>(ExitCode::kUsage);  // unreachable: one subcommand is required
}

}  // namespace
}  // namespace stepwell::cli

int main(int argc, char** argv) {
  // A reader that closes the pipe early ends the output, not the process (with its store open).
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return stepwell::cli::Main(argc, argv);
  } catch (const std::exception& error) {  // of the parser and JSON libraries: a bug here
    stepwell::cli::ReportError(stepwell::InternalError(error.what()), "", false);
    return static_cast<int>(stepwell::cli::ExitCode::kError);
  }
}
