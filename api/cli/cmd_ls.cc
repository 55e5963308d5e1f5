// SPDX-License-Identifier: Apache-2.0
// `stepwell ls STORE`: one line a step.
#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

std::string ItemNames(const format::StepRecord& step) {
  std::string names;
  for (const format::ItemRecord& item : step.items) {
    if (!names.empty()) names += ',';
    names += Printable(item.name);
  }
  return names;
}

Json StepJson(const format::StepRecord& step) {
  Json items = Json::array();
  for (const format::ItemRecord& item : step.items) items.push_back(item.name);
  return {{"step", step.step},
          {"time", UtcTime(step.time_ns)},
          {"commit", step.commit},
          {"items", items},
          {"leaves", step.leaf_count},
          {"logical_bytes", step.logical_bytes},
          {"stored_bytes", step.stored_bytes}};
}

using Arguments = StoreArguments;

Result<Outcome> RunLs(const Arguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(std::vector<db::StepSummary> steps, store->Steps());
  Outcome outcome;
  if (invocation->json) {
    Json list = Json::array();
    for (const db::StepSummary& summary : steps) list.push_back(StepJson(summary.step));
    outcome.text =
        JsonText({{"schema", kJsonSchema}, {"store", arguments.store}, {"steps", std::move(list)}});
    return outcome;
  }
  if (steps.empty()) {
    Warn(arguments.store + " has no steps yet");
    return outcome;
  }
  std::vector<std::vector<std::string>> rows = {
      {"STEP", "COMMITTED", "ITEMS", "LEAVES", "SIZE", "STORED", "RATIO"}};
  for (const db::StepSummary& summary : steps) {
    const format::StepRecord& step = summary.step;
    rows.push_back({std::to_string(step.step), LocalTime(step.time_ns), ItemNames(step),
                    HumanCount(step.leaf_count), HumanBytes(step.logical_bytes),
                    HumanBytes(step.stored_bytes), Ratio(step.logical_bytes, step.stored_bytes)});
  }
  outcome.text = Table(rows, {true, false, false, true, true, true, true});
  return outcome;
}

}  // namespace

void AddLs(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = AddCommand(program, invocation, "ls", "list the steps",
                                 [=] { return RunLs(*arguments, invocation); });
  AddStore(command, &arguments->store);
}

}  // namespace stepwell::cli
