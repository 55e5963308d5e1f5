// SPDX-License-Identifier: Apache-2.0
// `stepwell verify STORE [--step N]`: reads everything that is stored and checks every checksum. Of
// an export, too.
#include <algorithm>

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

Result<Outcome> VerifyCheckpoints(const std::vector<std::string>& paths, bool json) {
  Progress progress("verifying");
  const auto show = [&](uint64_t done, uint64_t all) {
    progress.Update(done, all);
    return true;
  };
  Outcome outcome;
  Json list = Json::array();
  Json problems = Json::array();
  bool unknown = false;
  for (const std::string& path : paths) {
    const auto report = VerifyExport(path, show);
    if (report.status().code() == StatusCode::kFailedPrecondition) {
      unknown = true;
      list.push_back({{"path", path}, {"checked", false}});
      outcome.text += StrCat(Printable(path),
                             ": no digests, as Orbax writes none: nothing to check it against\n");
      continue;
    }
    STEPWELL_RETURN_IF_ERROR(report.status());
    list.push_back({{"path", path},
                    {"checked", true},
                    {"files", report->files},
                    {"chunks", report->chunks},
                    {"bytes", report->bytes}});
    for (const VerifyProblem& found : report->problems) {
      problems.push_back(
          {{"file", found.file}, {"offset", found.offset_bytes}, {"message", found.message}});
      outcome.text += StrCat(Emphasize("damaged", "1;31"), " (", Printable(found.file), " at ",
                             found.offset_bytes, "): ", Printable(found.message), "\n");
    }
    outcome.text += StrCat(
        Printable(path), ": ", Plural(report->files, "file", "files"), ", ",
        Plural(report->chunks, "chunk", "chunks"), ", ", HumanBytes(report->bytes), " read: ",
        report->problems.empty() ? std::string("no damage")
                                 : Plural(report->problems.size(), "problem", "problems"),
        "\n");
  }
  const bool damaged = !problems.empty();
  if (damaged) {
    outcome.exit = ExitCode::kCorruption;
  } else if (unknown) {
    outcome.exit = ExitCode::kNothingToCheck;
  }
  if (json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"ok", !damaged && !unknown},
                             {"checkpoints", std::move(list)},
                             {"problems", std::move(problems)}});
  }
  return outcome;
}

Result<Outcome> RunVerify(const StoreArguments& arguments, Invocation* invocation) {
  Result<Store> store = OpenStore(arguments.store, /*read_only=*/true, invocation);
  const StatusCode code = store.status().code();
  if (code == StatusCode::kNotFound || code == StatusCode::kUnimplemented) {
    STEPWELL_ASSIGN_OR_RETURN(const auto checkpoints, CheckpointsAt(arguments));
    if (!checkpoints.empty()) return VerifyCheckpoints(checkpoints, invocation->json);
  }
  STEPWELL_RETURN_IF_ERROR(store.status());
  VerifyOptions verify;
  if (!arguments.step.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(const Step step, ReadStep(&*store, arguments.step));
    verify.step = step.info().step;
  }
  Progress progress("verifying");
  verify.progress = [&](uint64_t done, uint64_t all) {
    progress.Update(done, all);
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
  Outcome outcome;
  outcome.exit = damaged > 0     ? ExitCode::kCorruption
                 : unchecked > 0 ? ExitCode::kError
                                 : ExitCode::kOk;
  if (invocation->json) {
    Json problems = Json::array();
    for (const VerifyProblem& problem : report.problems) {
      problems.push_back(ProblemJson(problem));
    }
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"ok", report.problems.empty()},
                             {"steps", report.steps},
                             {"leaves", report.leaves},
                             {"chunks", report.chunks},
                             {"bytes", report.bytes},
                             {"problems", std::move(problems)}});
    return outcome;
  }
  for (const VerifyProblem& problem : report.problems) outcome.text += ProblemText(problem);
  outcome.text += StrCat(
      Plural(report.steps, "step", "steps"), ", ", Plural(report.leaves, "leaf", "leaves"), ", ",
      Plural(report.chunks, "chunk", "chunks"), ", ", HumanBytes(report.bytes),
      " read: ", damaged == 0 ? std::string("no damage") : Plural(damaged, "problem", "problems"),
      unchecked == 0 ? "" : StrCat("; ", unchecked, " could not be checked"), "\n");
  return outcome;
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
