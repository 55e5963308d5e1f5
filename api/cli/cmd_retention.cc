// SPDX-License-Identifier: Apache-2.0
// `stepwell retention STORE`: which rule keeps each step, and what the next save deletes.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

// "the latest 3 steps, multiples of 100".
std::string KeptBy(const RetentionReport& report, const RetentionReport::Step& step) {
  std::string text = step.pinned ? "its pin" : "";
  for (const size_t rule : step.kept_by) {
    text += StrCat(text.empty() ? "" : ", ", Printable(report.rule_texts[rule]));
  }
  if (text.empty() && report.rules.empty()) return "no rule deletes it";
  return step.goes_next ? "nothing: the next save deletes it" : text.empty() ? "-" : text;
}

Json RetentionJson(const StoreArguments& arguments, const RetentionReport& report) {
  Json steps = Json::array();
  for (const RetentionReport::Step& step : report.steps) {
    Json kept_by = Json::array();
    for (const size_t rule : step.kept_by) kept_by.push_back(report.rule_texts[rule]);
    steps.push_back({{"step", step.step},
                     {"pinned", step.pinned},
                     {"kept_by", kept_by},
                     {"goes_next", step.goes_next}});
  }
  return {{"schema", kJsonSchema},
          {"store", arguments.store},
          {"rules", report.rule_texts},
          {"steps", steps},
          {"warnings", report.warnings}};
}

std::string RetentionText(const RetentionReport& report) {
  std::string text;
  for (const std::string& rule : report.rule_texts) {
    text += StrCat(text.empty() ? "keeps " : "  and ", Printable(rule), "\n");
  }
  if (report.rules.empty()) text = "keeps every step: the last program that saved had no rules\n";
  for (const std::string& warning : report.warnings) {
    text += StrCat("warning: ", Printable(warning), "\n");
  }
  if (report.steps.empty()) return text + "no steps\n";
  std::vector<std::vector<std::string>> rows = {{"STEP", "KEPT BY"}};
  for (const RetentionReport::Step& step : report.steps) {
    rows.push_back({std::to_string(step.step), KeptBy(report, step)});
  }
  return StrCat(text, "\n", Table(rows, {true, false}));
}

Result<CommandResult> RunRetention(const StoreArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const RetentionReport report, store.Retention());
  CommandResult outcome;
  outcome.text =
      invocation->json ? JsonText(RetentionJson(arguments, report)) : RetentionText(report);
  return outcome;
}

}  // namespace

void AddRetention(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<StoreArguments>();
  CLI::App* command = AddCommand(program, invocation, "retention",
                                 "say which rule keeps each step, and what goes next",
                                 [=] { return RunRetention(*arguments, invocation); });
  AddStore(command, &arguments->store);
}

}  // namespace stepwell::cli
