// SPDX-License-Identifier: Apache-2.0
// `stepwell verify STORE [--step N]`: reads everything that is stored and checks every checksum. Of
// an export, too, and of the stores in a facade's root or checkpoint.
#include <algorithm>
#include <optional>

#include <stepwell/checkpoint.h>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

Json ProblemJson(const VerifyProblem& problem) {
  Json json = {{"step", nullptr},
               {"item", problem.item},
               {"path", problem.path},
               {"file", problem.file},
               {"offset", problem.offset_bytes},
               {"message", problem.message},
               {"unchecked", problem.unchecked}};
  if (problem.step) json["step"] = *problem.step;
  return json;
}

std::string ProblemText(const VerifyProblem& problem) {
  std::string text = Emphasize(problem.unchecked ? "not checked" : "damaged", "1;31");
  if (problem.step) text += StrCat(" step ", *problem.step);
  if (!problem.item.empty()) text += " item " + Printable(problem.item);
  if (!problem.path.empty()) text += " leaf " + Printable(problem.path);
  if (!problem.file.empty()) text += StrCat(" (", problem.file, " at ", problem.offset_bytes, ")");
  return text + ": " + Printable(problem.message) + "\n";
}

// One that Orbax reads, or an export that may be too damaged for that.
bool IsCheckpoint(const std::string& path) {
  const auto stop = [](uint64_t, uint64_t) { return false; };
  return ReadCheckpointInfo(path).ok() ||
         VerifyExport(path, stop).status().code() != StatusCode::kFailedPrecondition;
}

// The checkpoints that a path means which is not a store: those below a manager's root, or itself.
// None when it is not about checkpoints.
Result<std::vector<std::string>> CheckpointsAt(const StoreArguments& arguments) {
  const std::string& path = arguments.store;
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<OrbaxStep> steps, FindOrbaxSteps(path));
  std::vector<std::string> paths;
  for (const OrbaxStep& step : steps) {
    if (arguments.step.empty() || arguments.step == std::to_string(step.step)) {
      paths.push_back(step.path);
    }
  }
  if (!steps.empty() && paths.empty()) {
    return NotFoundError(StrCat(path, " has no step ", arguments.step));
  }
  if (paths.empty() && IsCheckpoint(path)) paths.push_back(path);
  return paths;
}

// Collects what a verification read and what it found.
struct Verified {
  std::string text;
  Json stores = Json::array();
  Json checkpoints = Json::array();
  Json problems = Json::array();
  size_t damaged = 0;
  size_t unchecked = 0;  // that could not be read
  size_t unknown = 0;    // checkpoints without digests
};

Status VerifyCheckpoint(const std::string& path, bool beside_store, Progress* progress,
                        Verified* verified) {
  const auto report = VerifyExport(path, [&](uint64_t done, uint64_t all) {
    progress->Update(done, all);
    return true;
  });
  if (report.status().code() == StatusCode::kFailedPrecondition) {
    if (beside_store) return OkStatus();  // its data are the store's, which was checked
    ++verified->unknown;
    verified->checkpoints.push_back({{"path", path}, {"checked", false}});
    verified->text += StrCat(Printable(path),
                             ": no digests, as Orbax writes none: nothing to check it against\n");
    return OkStatus();
  }
  STEPWELL_RETURN_IF_ERROR(report.status());
  verified->checkpoints.push_back({{"path", path},
                                   {"checked", true},
                                   {"files", report->files},
                                   {"chunks", report->chunks},
                                   {"bytes", report->bytes}});
  for (const VerifyProblem& found : report->problems) {
    ++verified->damaged;
    verified->problems.push_back(
        {{"file", found.file}, {"offset", found.offset_bytes}, {"message", found.message}});
    verified->text += StrCat(Emphasize("damaged", "1;31"), " (", Printable(found.file), " at ",
                             found.offset_bytes, "): ", Printable(found.message), "\n");
  }
  verified->text +=
      StrCat(Printable(path), ": ", Plural(report->files, "file", "files"), ", ",
             Plural(report->chunks, "chunk", "chunks"), ", ", HumanBytes(report->bytes), " read: ",
             report->problems.empty() ? std::string("no damage")
                                      : Plural(report->problems.size(), "problem", "problems"),
             "\n");
  return OkStatus();
}

Status VerifyStore(Store* store, const std::string& name, const std::optional<uint64_t>& step,
                   Progress* progress, Verified* verified) {
  VerifyOptions verify;
  verify.step = step;
  verify.progress = [&](uint64_t done, uint64_t all) {
    progress->Update(done, all);
    return true;
  };
  STEPWELL_ASSIGN_OR_RETURN(VerifyReport report, store->Verify(verify));
  STEPWELL_ASSIGN_OR_RETURN(const RecoveryReport recovery, store->Recovery());
  for (const std::string& found : recovery.problems) {
    const auto is_it = [&](const VerifyProblem& known) { return known.message == found; };
    if (std::any_of(report.problems.begin(), report.problems.end(), is_it)) continue;
    VerifyProblem problem;
    problem.message = found;
    report.problems.push_back(std::move(problem));
  }
  const auto unchecked = static_cast<size_t>(
      std::count_if(report.problems.begin(), report.problems.end(),
                    [](const VerifyProblem& problem) { return problem.unchecked; }));
  const size_t damaged = report.problems.size() - unchecked;
  verified->unchecked += unchecked;
  verified->damaged += damaged;
  verified->stores.push_back({{"store", store->path()},
                              {"steps", report.steps},
                              {"leaves", report.leaves},
                              {"chunks", report.chunks},
                              {"bytes", report.bytes}});
  for (const VerifyProblem& problem : report.problems) {
    verified->problems.push_back(ProblemJson(problem));
    verified->text += ProblemText(problem);
  }
  verified->text += StrCat(
      name.empty() ? "" : Printable(name) + ": ", Plural(report.steps, "step", "steps"), ", ",
      Plural(report.leaves, "leaf", "leaves"), ", ", Plural(report.chunks, "chunk", "chunks"), ", ",
      HumanBytes(report.bytes),
      " read: ", damaged == 0 ? std::string("no damage") : Plural(damaged, "problem", "problems"),
      unchecked == 0 ? "" : StrCat("; ", unchecked, " could not be checked"), "\n");
  return OkStatus();
}

CommandResult OutcomeOf(Verified verified, bool json, Json document) {
  CommandResult outcome;
  outcome.text = std::move(verified.text);
  outcome.exit = verified.damaged > 0     ? ExitCode::kCorruption
                 : verified.unchecked > 0 ? ExitCode::kError
                 : verified.unknown > 0   ? ExitCode::kNothingToCheck
                                          : ExitCode::kOk;
  if (!json) return outcome;
  document["schema"] = kJsonSchema;
  document["ok"] = outcome.exit == ExitCode::kOk;
  document["problems"] = std::move(verified.problems);
  outcome.text = JsonText(document);
  return outcome;
}

// The root of a facade, or a single checkpoint: the stores in it, and the files beside these.
Result<CommandResult> VerifyWithin(const StoreArguments& arguments,
                                   const std::vector<std::string>& stores, Invocation* invocation) {
  Progress progress("verifying");
  Verified verified;
  bool found = arguments.step.empty();
  std::vector<std::string> checkpoints;
  if (auto at = CheckpointsAt(arguments); at.ok()) {
    checkpoints = std::move(*at);
  } else if (at.status().code() != StatusCode::kNotFound) {  // a store may have the step
    return at.status();
  }
  for (const std::string& path : stores) {
    STEPWELL_ASSIGN_OR_RETURN(Store store, OpenStore(path, /*read_only=*/true, invocation));
    std::optional<uint64_t> number;
    if (!arguments.step.empty()) {
      const auto step = ReadStep(&store, arguments.step);
      if (step.status().code() == StatusCode::kNotFound) continue;
      STEPWELL_RETURN_IF_ERROR(step.status());
      number = step->info().step;
    }
    found = true;
    STEPWELL_RETURN_IF_ERROR(VerifyStore(&store, path, number, &progress, &verified));
  }
  for (const std::string& path : checkpoints) {
    found = true;
    const Result<bool> shown = IsShownStep(path);
    const bool beside_store = path == arguments.store || (shown.ok() && *shown);
    STEPWELL_RETURN_IF_ERROR(VerifyCheckpoint(path, beside_store, &progress, &verified));
  }
  if (!found) return NotFoundError(StrCat(arguments.store, " has no step ", arguments.step));
  Json document = {{"stores", verified.stores}, {"checkpoints", verified.checkpoints}};
  return OutcomeOf(std::move(verified), invocation->json, std::move(document));
}

Result<CommandResult> RunVerify(const StoreArguments& arguments, Invocation* invocation) {
  const std::vector<std::string> within = StoresWithin(arguments.store);
  if (!within.empty()) return VerifyWithin(arguments, within, invocation);
  Result<Store> store = OpenStore(arguments.store, /*read_only=*/true, invocation);
  const StatusCode code = store.status().code();
  Progress progress("verifying");
  Verified verified;
  if (code == StatusCode::kNotFound || code == StatusCode::kUnimplemented) {
    STEPWELL_ASSIGN_OR_RETURN(const auto checkpoints, CheckpointsAt(arguments));
    for (const std::string& path : checkpoints) {
      STEPWELL_RETURN_IF_ERROR(VerifyCheckpoint(path, false, &progress, &verified));
    }
    if (!checkpoints.empty()) {
      Json document = {{"checkpoints", verified.checkpoints}};
      return OutcomeOf(std::move(verified), invocation->json, std::move(document));
    }
  }
  STEPWELL_RETURN_IF_ERROR(store.status());
  std::optional<uint64_t> number;
  if (!arguments.step.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(const Step step, ReadStep(&*store, arguments.step));
    number = step.info().step;
  }
  STEPWELL_RETURN_IF_ERROR(VerifyStore(&*store, "", number, &progress, &verified));
  Json document = verified.stores[0];
  document["store"] = arguments.store;
  return OutcomeOf(std::move(verified), invocation->json, std::move(document));
}

}  // namespace

void AddVerify(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<StoreArguments>();
  CLI::App* command = AddCommand(program, invocation, "verify",
                                 "read everything, check every checksum; of exports, too",
                                 [=] { return RunVerify(*arguments, invocation); });
  AddStore(command, &arguments->store);
  command->add_option("--step", arguments->step, "only this step")->type_name("STEP");
}

}  // namespace stepwell::cli
