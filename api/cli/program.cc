// SPDX-License-Identifier: Apache-2.0
#include "api/cli/program.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "io/bytes.h"

namespace stepwell::cli {
namespace {

constexpr const char* kFooter =
    "Exit status: 0 all is well, 1 an error of another kind, 2 wrong usage, 3 no such store, step "
    "or\n"
    "path, 4 damage found, 5 locked by another process, 6 no space left, 7 the steps differ (diff\n"
    "--exit-code only), 8 not known whether the change was done, 9 nothing to check against "
    "(verify\n"
    "of a checkpoint that is no export).\n"
    "\n"
    "rm, pin, unpin, reclaim, repair, import and pull write, and need the store for themselves; "
    "all "
    "others\n"
    "only read, and work beside a live writer.\n"
    "\n"
    "Paths are components joined by \"/\", with \\ before any / in a name; the first one is the "
    "item,\n"
    "which may be left out when a step has only the item \"state\".\n"
    "\n"
    "Examples:\n"
    "  stepwell ls run1\n"
    "  stepwell show run1 latest params\n"
    "  stepwell cat run1 900 params/head/bias --json\n"
    "  stepwell cat run1 900 params/head/kernel --slice 0:16,: --npy -o rows.npy\n"
    "  stepwell diff run1 800 900 params\n"
    "  stepwell explain run1 900 --mesh data=2,model=4 --spec 'params/**=(model,data)'\n"
    "  stepwell verify run1\n"
    "  stepwell export run1 900 /data/checkpoint_900\n"
    "  stepwell export run1 900 weights.safetensors --to safetensors --path params\n"
    "  stepwell import checkpoints/ run1\n"
    "  stepwell push run1 900 s3://bucket/run1/900";

constexpr void (*kCommands[])(CLI::App*, Invocation*) = {
    AddLs,     AddShow,   AddCat,  AddDiff,   AddExplain,    AddVerify,  AddStats,
    AddExport, AddMirror, AddRm,   AddPin,    AddUnpin,      AddReclaim, AddRepair,
    AddImport, AddPush,   AddPull, AddDoctor, AddCompletion, AddMan};

// Runs the command and says how it went; nothing of it is printed when it fails.
ExitCode Run(const Invocation& invocation) {
  const Result<Outcome> outcome = invocation.run();
  const Status status = outcome.ok() ? WriteStdout(outcome->text) : outcome.status();
  if (status.ok()) return outcome->exit;
  ReportError(status, invocation.hint.value_or(HintFor(status, invocation.opened)),
              invocation.json);
  return ExitCodeOf(status);
}

ExitCode UsageError(const std::string& message, int argc, const char* const* argv) {
  const bool json =
      std::any_of(argv, argv + argc, [](const char* arg) { return !std::strcmp(arg, "--json"); });
  ReportError(InvalidArgumentError(message), kUsageHint, json);
  return ExitCode::kUsage;
}

std::string CommandNames(const CLI::App& program) {
  std::string names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // hidden
    names += StrCat(names.empty() ? "" : ", ", command->get_name());
  }
  return names;
}

ExitCode ParseAndRun(int argc, const char* const* argv) {
  Invocation invocation;
  CLI::App program("Looks into Stepwell checkpoint stores, and tends them.", "stepwell");
  program.set_version_flag("--version", "stepwell " STEPWELL_VERSION);
  program.require_subcommand(1);
  program.footer(kFooter);
  for (const auto add : kCommands) add(&program, &invocation);
  for (CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_option_no_throw("STORE") == nullptr) continue;
    command->add_flag("--untrusted", invocation.untrusted,
                      "only read the store, whose files somebody else may have made");
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      program.exit(error);
      return ExitCode::kOk;
    }
    if (program.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      return UsageError(StrCat("no command \"", argv[1], "\"; there are ", CommandNames(program)),
                        argc, argv);
    }
    return UsageError(error.what(), argc, argv);
  }
  return Run(invocation);
}

}  // namespace

int Main(int argc, const char* const* argv) {
  try {
    return static_cast<int>(ParseAndRun(argc, argv));
  } catch (const std::exception& error) {  // of the parser and JSON libraries: a bug here
    ReportError(InternalError(error.what()), "", false);
    return static_cast<int>(ExitCode::kError);
  }
}

}  // namespace stepwell::cli
