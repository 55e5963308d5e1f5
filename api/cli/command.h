// SPDX-License-Identifier: Apache-2.0
// Declares what every command of the program shares: its declaration, its outcome, its exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <stepwell/result.h>
#include <stepwell/store.h>
#include <stepwell/text.h>

namespace stepwell::cli {

// Documented in --help and in api/docs/pages/command-line.md: scripts depend on them.
enum class ExitCode : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,
  kNotFound = 3,
  kCorruption = 4,
  kLocked = 5,
  kNoSpace = 6,
  kDifferent = 7,  // diff --exit-code only: never an error
  kOutcomeUnknown = 8,
  kNothingToCheck = 9,  // verify only: a checkpoint without digests
};

// Version of the JSON documents that --json prints.
inline constexpr int kJsonSchema = 1;

// The end of a command: the text that is still to be printed on stdout, and the exit status.
struct CommandResult {
  std::string text;
  ExitCode exit = ExitCode::kOk;
};

// The command that the parsed arguments name.
struct Invocation {
  std::function<Result<CommandResult>()> run;
  std::string command;  // its name
  bool json = false;
  bool untrusted = false;           // only for commands with a STORE: OpenOptions has it
  std::set<uint64_t> discard = {};  // steps that an open for writing may give up (repair)
  bool opened = false;              // set by OpenStore: later errors are about what is in a store
  std::optional<std::string> hint;  // instead of what an error's code suggests
};

// Arguments that most commands have.
struct StoreArguments {
  std::string store;
  std::string step;  // decimal, "latest", or empty
  std::string path;
};

// Each declares a command of `program`; when that is what is parsed, `invocation->run` is it.
void AddBisect(CLI::App* program, Invocation* invocation);
void AddBranch(CLI::App* program, Invocation* invocation);
void AddBranches(CLI::App* program, Invocation* invocation);
void AddCat(CLI::App* program, Invocation* invocation);
void AddCompletion(CLI::App* program, Invocation* invocation);
void AddDiff(CLI::App* program, Invocation* invocation);
void AddDoctor(CLI::App* program, Invocation* invocation);
void AddExplain(CLI::App* program, Invocation* invocation);
void AddExport(CLI::App* program, Invocation* invocation);
void AddHistory(CLI::App* program, Invocation* invocation);
void AddDigest(CLI::App* program, Invocation* invocation);
void AddImport(CLI::App* program, Invocation* invocation);
void AddLs(CLI::App* program, Invocation* invocation);
void AddMirror(CLI::App* program, Invocation* invocation);
void AddPatch(CLI::App* program, Invocation* invocation);
void AddPin(CLI::App* program, Invocation* invocation);
void AddPull(CLI::App* program, Invocation* invocation);
void AddPush(CLI::App* program, Invocation* invocation);
void AddReclaim(CLI::App* program, Invocation* invocation);
void AddRepair(CLI::App* program, Invocation* invocation);
void AddReport(CLI::App* program, Invocation* invocation);
void AddRetention(CLI::App* program, Invocation* invocation);
void AddRm(CLI::App* program, Invocation* invocation);
void AddServe(CLI::App* program, Invocation* invocation);
void AddShow(CLI::App* program, Invocation* invocation);
void AddStats(CLI::App* program, Invocation* invocation);
void AddTop(CLI::App* program, Invocation* invocation);
void AddUnpin(CLI::App* program, Invocation* invocation);
void AddTaint(CLI::App* program, Invocation* invocation);
void AddRollback(CLI::App* program, Invocation* invocation);
void AddUntaint(CLI::App* program, Invocation* invocation);
void AddVerify(CLI::App* program, Invocation* invocation);

// A command with --json, whose callback sets `run`.
CLI::App* AddCommand(CLI::App* program, Invocation* invocation, const std::string& name,
                     const std::string& what, std::function<Result<CommandResult>()> run);
// Positional arguments and options that mean the same in every command.
void AddStore(CLI::App* command, std::string* store);
CLI::Option* AddStep(CLI::App* command, std::string* step);
CLI::Option* AddSteps(CLI::App* command, std::vector<std::string>* steps);  // one or more
CLI::Option* AddPath(CLI::App* command, std::string* path);
// Adds the options that shape Orbax checkpoints: --zarr, --layout, --leaves, --on-unsupported,
// --step-prefix, --step-digits, --unnamed-default.
void AddCheckpointOptions(CLI::App* command, ExportOptions* options);
// An option whose values have names.
template <typename Value>
void AddChoice(CLI::App* command, const char* name, Value* value, const char* type,
               const char* what, const std::map<std::string, Value>& choices) {
  const auto choose = [=](const std::string& text) {
    const auto found = choices.find(text);
    if (found != choices.end()) {
      *value = found->second;
      return;
    }
    std::string names;
    for (const auto& [each, unused] : choices) names += StrCat(names.empty() ? "" : ", ", each);
    throw CLI::ValidationError(name, StrCat("one of ", names, ", not \"", text, "\""));
  };
  command->template add_option_function<std::string>(name, choose, what)->type_name(type);
}

// Refuses a URL, of which a directory's name would be made; `takes` and `hint` say what to do. With
// one slash it is a typo, or what Python's pathlib makes of one.
Status CheckNoUrl(const std::string& path, std::string_view takes, const std::string& hint,
                  Invocation* invocation);

// For reading it takes no lock, and takes the directory around a store for that. `create`: where
// there is none, one is made. Warnings of the engine go to stderr.
Result<Store> OpenStore(const std::string& path, bool read_only, Invocation* invocation,
                        bool create = false);
// For deletes, pins and reclaim; a process that writes is asked to do them.
Result<Store> OpenToChange(const std::string& path, Invocation* invocation);
// The step that `text` names ("latest", empty: the newest).
Result<Step> ReadStep(Store* store, const std::string& text);
// Numbers of the steps that `texts` name, each once, ascending: a number that may not be there,
// "latest", or those of a range, "100-200", that are there.
Result<std::vector<uint64_t>> StepNumbers(Store* store, const std::vector<std::string>& texts);
// kInvalidArgument unless `text` is a decimal step number.
Result<uint64_t> ParseStep(const std::string& text);
// For options: the engine's warnings on stderr.
void WarnOf(LogLevel level, std::string_view message);

}  // namespace stepwell::cli
