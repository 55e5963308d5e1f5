// SPDX-License-Identifier: Apache-2.0
// `stepwell stats STORE`: where every byte of the store's directory is.
#include <algorithm>
#include <map>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

// One item over all steps.
struct ItemTotal {
  uint64_t steps = 0;
  uint64_t leaves = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
  bool known = true;  // false: a process that stored some of it is missing
};
using ItemTotals = std::map<std::string, ItemTotal>;

struct SpacePart {
  const char* name;
  uint64_t bytes;
  const char* what;
};

std::vector<SpacePart> Parts(const SpaceStats& space) {
  return {{"live", space.live_bytes, "payloads of the steps"},
          {"padding", space.padding_bytes, "what payloads do not fill of their blocks"},
          {"overhead", space.overhead_bytes, "frames, their copies, and catalogs"},
          {"dead", space.dead_bytes, "of deleted steps and old catalogs, not given back yet"},
          {"reserved", space.reserved_bytes, "allocated ahead: the log's end, spares, the ballast"},
          {"index", space.index_bytes, "RocksDB"},
          {"other", space.other_bytes, "STEPWELL, LOCK, readers' pins"}};
}

std::vector<SpacePart> Subtotals(const SpaceStats& space) {
  return {{"pinned_by_readers", space.pinned_by_readers_bytes, "deleted, but a reader holds them"},
          {"linked", space.linked_bytes, "in segments with another hard link"}};
}

Json StatsJson(const StoreArguments& arguments, const StoreStats& stats, const ItemTotals& totals) {
  Json space = {{"total_bytes", stats.space.total_bytes}};
  for (const SpacePart& part : Parts(stats.space)) space[StrCat(part.name, "_bytes")] = part.bytes;
  for (const SpacePart& part : Subtotals(stats.space)) {
    space[StrCat(part.name, "_bytes")] = part.bytes;
  }
  Json items = Json::array();
  for (const auto& [name, total] : totals) {
    Json stored = total.stored_bytes;
    if (!total.known) stored = nullptr;
    items.push_back({{"name", name},
                     {"steps", total.steps},
                     {"leaves", total.leaves},
                     {"logical_bytes", total.logical_bytes},
                     {"stored_bytes", stored}});
  }
  return {{"schema", kJsonSchema},
          {"store", arguments.store},
          {"steps", stats.steps},
          {"pinned_steps", stats.pinned_steps},
          {"segments", stats.segments},
          {"space", space},
          {"items", items},
          {"index", stats.index_state},
          {"old_pins", stats.old_pins}};
}

std::string StatsText(const StoreStats& stats, const ItemTotals& totals) {
  std::string text =
      StrCat(Plural(stats.steps, "step", "steps"), " (", HumanCount(stats.pinned_steps),
             " pinned), ", Plural(stats.segments, "segment", "segments"), "\n\n");
  std::vector<std::vector<std::string>> rows;
  for (const SpacePart& part : Parts(stats.space)) {
    rows.push_back({part.name, HumanBytes(part.bytes), HumanCount(part.bytes), part.what});
  }
  rows.push_back({"total", HumanBytes(stats.space.total_bytes), HumanCount(stats.space.total_bytes),
                  "as the file system allocates them"});
  for (const SpacePart& part : Subtotals(stats.space)) {
    if (part.bytes == 0) continue;
    rows.push_back({StrCat("of which ", part.name), HumanBytes(part.bytes), HumanCount(part.bytes),
                    part.what});
  }
  text += Table(rows, {false, true, true, false});
  if (!totals.empty()) {
    std::vector<std::vector<std::string>> table = {
        {"ITEM", "STEPS", "LEAVES", "SIZE", "STORED", "RATIO"}};
    for (const auto& [name, total] : totals) {
      table.push_back({Printable(name), HumanCount(total.steps), HumanCount(total.leaves),
                       HumanBytes(total.logical_bytes),
                       total.known ? HumanBytes(total.stored_bytes) : "?",
                       total.known ? Ratio(total.logical_bytes, total.stored_bytes) : "?"});
    }
    text += "\n" + Table(table, {false, true, true, true, true, true});
  }
  for (const std::string& pin : stats.old_pins) {
    text += StrCat("held by a reader: ", Printable(pin), "\n");
  }
  return text;
}

Result<CommandResult> RunStats(const StoreArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<StepInfo> steps, store.Steps());
  ItemTotals totals;
  for (StepInfo step : steps) {
    bool known = true;
    if (step.processes.size() > 1) {  // the others' shares are in their frames
      const Result<Step> reader = store.Read(step.step);
      known = reader.ok();
      if (known) step = reader->info();
      if (!known && !invocation->json) Warn(Printable(reader.status().message()));
    }
    for (const ItemInfo& item : step.items) {
      ItemTotal& total = totals[item.name];
      total.steps += 1;
      total.leaves += item.leaves;
      total.logical_bytes += item.logical_bytes;
      total.stored_bytes += item.stored_bytes;
      total.known = total.known && known;
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(StoreStats stats, store.Stats());
  stats.steps = steps.size();  // the items are of the same moment
  stats.pinned_steps = static_cast<uint64_t>(
      std::count_if(steps.begin(), steps.end(), [](const StepInfo& step) { return step.pinned; }));
  CommandResult outcome;
  outcome.text =
      invocation->json ? JsonText(StatsJson(arguments, stats, totals)) : StatsText(stats, totals);
  return outcome;
}

}  // namespace

void AddStats(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<StoreArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "stats", "account for every byte of a store's directory",
                 [=] { return RunStats(*arguments, invocation); });
  AddStore(command, &arguments->store);
}

}  // namespace stepwell::cli
