// SPDX-License-Identifier: Apache-2.0
#include "api/cli/program.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <regex>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

constexpr const char* kFooter =
    R"(Exit status: 0 all is well, 1 an error of another kind, 2 wrong usage, 3 no such store, step
or path, 4 damage found, 5 locked by another process, 6 no space left, 7 the steps differ (diff
--exit-code only), 8 not known whether the change was done, 9 nothing to check against (verify of
a checkpoint that Stepwell did not make).

repair, import, pull and branch write, and need the store for themselves. rm, pin, unpin, taint,
untaint, rollback and reclaim do, too, or ask the process that is writing to it. All others only
read, and work beside a live writer.

Paths are components joined by "/", with \ before any / in a name; the first one is the item,
which may be left out when a step has only the item "state".

`stepwell help COMMAND` has the options of a command, and an example.)";

struct Command {
  void (*add)(CLI::App*, Invocation*);
  const char* example;
};

constexpr Command kCommands[] = {
    {AddLs, "stepwell ls run1"},
    {AddShow, "stepwell show run1 latest params"},
    {AddCat, "stepwell cat run1 900 params/head/kernel --slice 0:16,: --npy -o rows.npy"},
    {AddDiff, "stepwell diff run1 800 900 params"},
    {AddHistory, "stepwell history run1 params/head/bias --steps 100:200"},
    {AddDigest, "stepwell digest run1 900 params"},
    {AddTop, "stepwell top run1"},
    {AddBisect, "stepwell bisect run1 --good 100 --bad 900 -- python evaluate.py {run} {step}"},
    {AddReport, "stepwell report run1 -o run1.html"},
    {AddServe, "stepwell serve run1"},
    {AddExplain, "stepwell explain run1 900 --mesh data=2,model=4 --spec 'params/**=(model,data)'"},
    {AddVerify, "stepwell verify run1"},
    {AddStats, "stepwell stats run1"},
    {AddExport, "stepwell export run1 900 weights.safetensors --to safetensors --path params"},
    {AddPatch, "stepwell patch run1 800 900 800-900.safetensors --item params --dtype bfloat16"},
    {AddMirror, "stepwell mirror run1 checkpoints/"},
    {AddRetention, "stepwell retention run1"},
    {AddRm, "stepwell rm run1 100-899"},
    {AddPin, "stepwell pin run1 900"},
    {AddUnpin, "stepwell unpin run1 900"},
    {AddTaint, "stepwell taint run1 900 'loss spike at 880'"},
    {AddUntaint, "stepwell untaint run1 900"},
    {AddRollback, "stepwell rollback run1 --to 870 --taint 'loss spike at 880'"},
    {AddReclaim, "stepwell reclaim run1"},
    {AddRepair, "stepwell repair run1"},
    {AddImport, "stepwell import checkpoints/ run1"},
    {AddPush, "stepwell push run1 900 s3://bucket/run1/900"},
    {AddPull, "stepwell pull s3://bucket/run1/900 run2"},
    {AddBranch, "stepwell branch run1 colder --step 800"},
    {AddBranches, "stepwell branches run1"},
    {AddDoctor, "stepwell doctor /data"},
    {AddCompletion,
     "stepwell completion bash > ~/.local/share/bash-completion/completions/stepwell"}};

// An option of the library, as messages of the engine write it (on_unsupported "skip"), is the
// program's (--on-unsupported skip).
std::string SpellOptions(std::string message, const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name.find('-') == std::string::npos) continue;  // a word of English, perhaps
      std::string word = name;
      std::replace(word.begin(), word.end(), '-', '_');
      message = std::regex_replace(message, std::regex(StrCat("\\b", word, " \"(\\w+)\"")),
                                   StrCat("--", name, " $1"));
    }
  }
  return message;
}

// Runs the command and says how it went; nothing of it is printed when it fails.
ExitCode Run(const Invocation& invocation, const CLI::App& command) {
  const Result<CommandResult> outcome = invocation.run();
  const Status status = outcome.ok() ? WriteStdout(outcome->text) : outcome.status();
  if (status.ok()) return outcome->exit;
  ReportError(Status(status.code(), SpellOptions(status.message(), command), status.os_error()),
              invocation.hint.value_or(HintFor(status, invocation.opened, invocation.command)),
              invocation.json);
  return ExitCodeOf(status);
}

ExitCode UsageError(const std::string& message, const std::string& hint, int argc,
                    const char* const* argv) {
  const bool json =
      std::any_of(argv, argv + argc, [](const char* arg) { return !std::strcmp(arg, "--json"); });
  ReportError(InvalidArgumentError(message), hint, json);
  return ExitCode::kUsage;
}

// Single characters to insert, delete or replace until `a` is `b` (Wagner and Fischer, 1974).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

bool HasCommand(const CLI::App& program, std::string_view name) {
  const auto is_it = [&](const CLI::App* command) { return command->get_name() == name; };
  return !program.get_subcommands(is_it).empty();
}

// "no command \"lss\"; did you mean ls?", or all there are.
std::string NoCommand(const CLI::App& program, const std::string& given) {
  std::string names;
  std::string nearest;
  size_t distance = 3;  // from here on names only look alike by chance
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;  // hidden
    const std::string& name = command->get_name();
    names += StrCat(names.empty() ? "" : ", ", name);
    const size_t edits = EditDistance(given, name);
    if (edits < std::min(distance, name.size())) {
      distance = edits;
      nearest = name;
    }
  }
  return StrCat(
      "no command \"", given, "\"; ",
      nearest.empty() ? StrCat("there are ", names) : StrCat("did you mean ", nearest, "?"));
}

// Returns true for commands that change a store. They are refused for a store that is not trusted.
// Python's push has no such option.
bool Writes(const CLI::App& command) {
  static const std::set<std::string> kNames = {"import",  "pin",    "pull",   "push",
                                               "reclaim", "repair", "rm",     "rollback",
                                               "taint",   "unpin",  "untaint"};
  return kNames.contains(command.get_name());
}

// Declares all commands. Names of arguments say what they are; their types would say "TEXT".
void AddCommands(CLI::App* program, Invocation* invocation) {
  program->get_formatter()->label("REQUIRED", "");
  for (const Command& each : kCommands) {
    each.add(program, invocation);
    CLI::App* command = program->get_subcommands([](const CLI::App*) { return true; }).back();
    command->footer(StrCat("Example:\n  ", each.example));
    for (CLI::Option* option : command->get_options()) {
      if (option->get_positional()) option->type_name("");
    }
    if (command->get_option_no_throw("STORE") == nullptr || Writes(*command)) continue;
    command->add_flag("--untrusted", invocation->untrusted,
                      "only read the store: its files may come from an attacker");
  }
}

ExitCode ParseAndRun(int argc, const char* const* argv) {
  Invocation invocation;
  CLI::App program("Looks into Stepwell checkpoint stores, and tends them.", "stepwell");
  program.set_version_flag("--version", "stepwell " STEPWELL_VERSION);
  program.require_subcommand(1);
  program.footer(kFooter);
  AddCommands(&program, &invocation);
  // `stepwell`, `stepwell help` and `stepwell help COMMAND` are what --help is.
  std::vector<const char*> args(argv, argv + argc);
  if (args.size() > 1 && std::string_view(args[1]) == "help") args.erase(args.begin() + 1);
  const bool helps = args.size() < static_cast<size_t>(argc);
  if (helps && args.size() > 1 && args[1][0] != '-' && !HasCommand(program, args[1])) {
    return UsageError(NoCommand(program, args[1]), kUsageHint, argc, argv);
  }
  if (args.size() == 1 || helps) args.push_back("--help");
  try {
    program.parse(static_cast<int>(args.size()), args.data());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      program.exit(error);
      return ExitCode::kOk;
    }
    const auto commands = program.get_subcommands();
    if (commands.empty() && args[1][0] != '-') {
      return UsageError(NoCommand(program, args[1]), kUsageHint, argc, argv);
    }
    return UsageError(error.what(),
                      commands.empty() ? kUsageHint : UsageHint(commands.front()->get_name()), argc,
                      argv);
  }
  const CLI::App& command = *program.get_subcommands().front();
  invocation.command = command.get_name();
  return Run(invocation, command);
}

}  // namespace

int Main(int argc, const char* const* argv) {
  try {
    return static_cast<int>(ParseAndRun(argc, argv));
  } catch (const std::exception& error) {  // the parser or a JSON library threw: a bug here
    ReportError(InternalError(error.what()), "", false);
    return static_cast<int>(ExitCode::kError);
  }
}

}  // namespace stepwell::cli
