// SPDX-License-Identifier: Apache-2.0
// `stepwell verify STORE [--step N]`: reads everything that is stored and checks every checksum.
#include <algorithm>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

Json ProblemJson(const db::VerifyProblem& problem) {
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

std::string ProblemText(const db::VerifyProblem& problem) {
  std::string text = Emphasize(problem.unchecked ? "not checked" : "damaged", "1;31");
  if (problem.step) text += StrCat(" step ", *problem.step);
  if (!problem.item.empty()) text += " item " + Printable(problem.item);
  if (!problem.path.empty()) text += " leaf " + Printable(problem.path);
  if (!problem.file.empty()) text += StrCat(" (", problem.file, " at ", problem.offset_bytes, ")");
  return text + ": " + Printable(problem.message) + "\n";
}

using Arguments = StoreArguments;

Result<Outcome> RunVerify(const Arguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  db::VerifyOptions verify;
  if (!arguments.step.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(std::shared_ptr<db::StepReader> reader,
                              ReadStep(store.get(), arguments.step));
    verify.step = reader->step().step;
  }
  Progress progress("verifying");
  verify.progress = [&](uint64_t done, uint64_t all) {
    progress.Update(done, all);
    return true;
  };
  STEPWELL_ASSIGN_OR_RETURN(db::VerifyReport report, store->Verify(verify));
  for (const std::string& found : store->recovery().problems) {
    db::VerifyProblem problem;
    problem.message = found;
    report.problems.push_back(std::move(problem));
  }
  const auto unchecked = static_cast<size_t>(
      std::count_if(report.problems.begin(), report.problems.end(),
                    [](const db::VerifyProblem& problem) { return problem.unchecked; }));
  const size_t damaged = report.problems.size() - unchecked;
  Outcome outcome;
  outcome.exit = damaged > 0     ? ExitCode::kCorruption
                 : unchecked > 0 ? ExitCode::kError
                                 : ExitCode::kOk;
  if (invocation->json) {
    Json problems = Json::array();
    for (const db::VerifyProblem& problem : report.problems) {
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
  for (const db::VerifyProblem& problem : report.problems) outcome.text += ProblemText(problem);
  outcome.text += StrCat(
      Plural(report.steps, "step", "steps"), ", ", Plural(report.leaves, "leaf", "leaves"), ", ",
      Plural(report.chunks, "chunk", "chunks"), ", ", HumanBytes(report.bytes),
      " read: ", damaged == 0 ? std::string("no damage") : Plural(damaged, "problem", "problems"),
      unchecked == 0 ? "" : StrCat("; ", unchecked, " could not be checked"), "\n");
  return outcome;
}

}  // namespace

void AddVerify(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      AddCommand(program, invocation, "verify", "read everything, check every checksum",
                 [=] { return RunVerify(*arguments, invocation); });
  AddStore(command, &arguments->store);
  command->add_option("--step", arguments->step, "only this step")->type_name("STEP");
}

}  // namespace stepwell::cli
