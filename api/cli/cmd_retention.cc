// SPDX-License-Identifier: Apache-2.0
// `stepwell retention STORE`: which rule keeps each step, what the next save deletes, and
// what deleting a step frees.
#include <map>
#include <optional>

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
  if (step.newest_untainted) text += StrCat(text.empty() ? "" : ", ", "the newest untainted step");
  if (text.empty() && report.rules.empty()) return "no rule deletes it";
  return step.goes_next ? "nothing: the next save deletes it" : text.empty() ? "-" : text;
}

// By step: what deleting it would free; no value where it is not known.
using FreesBytes = std::map<uint64_t, std::optional<uint64_t>>;

// A step may have come since.
std::optional<uint64_t> FreedBy(const FreesBytes& frees, uint64_t step) {
  const auto it = frees.find(step);
  return it == frees.end() ? std::nullopt : it->second;
}

Json RetentionJson(const StoreArguments& arguments, const RetentionReport& report,
                   const FreesBytes& frees) {
  Json steps = Json::array();
  for (const RetentionReport::Step& step : report.steps) {
    Json kept_by = Json::array();
    for (const size_t rule : step.kept_by) kept_by.push_back(report.rule_texts[rule]);
    const auto bytes = FreedBy(frees, step.step);
    steps.push_back({{"step", step.step},
                     {"frees_bytes", bytes ? Json(*bytes) : Json()},
                     {"pinned", step.pinned},
                     {"kept_by", kept_by},
                     {"newest_untainted", step.newest_untainted},
                     {"goes_next", step.goes_next}});
  }
  return {{"schema", kJsonSchema},
          {"store", arguments.store},
          {"rules", report.rule_texts},
          {"steps", steps},
          {"warnings", report.warnings}};
}

std::string RetentionText(const RetentionReport& report, const FreesBytes& frees) {
  std::string text;
  for (const std::string& rule : report.rule_texts) {
    text += StrCat(text.empty() ? "keeps " : "  and ", Printable(rule), "\n");
  }
  if (report.rules.empty()) text = "keeps every step: the last program that saved had no rules\n";
  for (const std::string& warning : report.warnings) {
    text += StrCat("warning: ", Printable(warning), "\n");
  }
  if (report.steps.empty()) return text + "no steps\n";
  std::vector<std::vector<std::string>> rows = {{"STEP", "FREES", "KEPT BY"}};
  for (const RetentionReport::Step& step : report.steps) {
    const auto bytes = FreedBy(frees, step.step);
    rows.push_back(
        {std::to_string(step.step), bytes ? HumanBytes(*bytes) : "?", KeptBy(report, step)});
  }
  return StrCat(text, "\n", Table(rows, {true, true, false}));
}

Result<CommandResult> RunRetention(const StoreArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const RetentionReport report, store.Retention());
  STEPWELL_ASSIGN_OR_RETURN(const FreesBytes frees, store.FreesBytes());
  CommandResult outcome;
  outcome.text = invocation->json ? JsonText(RetentionJson(arguments, report, frees))
                                  : RetentionText(report, frees);
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
