// SPDX-License-Identifier: Apache-2.0
// `stepwell ls STORE`: one line a step. What was pushed to an object store or a directory the
// Python package lists.
#include <filesystem>
#include <map>
#include <set>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/python.h"
#include "api/cli/text.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

constexpr size_t kMetricColumnsMax = 4;

std::string ItemNames(const StepInfo& step) {
  std::string names;
  for (const ItemInfo& item : step.items) {
    if (!names.empty()) names += ',';
    names += Printable(item.name);
  }
  return names;
}

struct Line {
  StepInfo step;
  std::map<std::string, Json> metrics;  // those that are numbers
  // Says why a step of several processes could not be read. What it stores is then unknown.
  std::string problem;
};

// Recognizes the strings by which ParsedJson represents numbers that Python has and JSON lacks.
bool IsNonFinite(const Json& value) {
  return value == "NaN" || value == "Infinity" || value == "-Infinity";
}

std::string MetricText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : NumberText(value.get<double>(), 6);
}

Line MakeLine(Store* store, StepInfo step) {
  Line line{std::move(step), {}, ""};
  if (line.step.processes.size() > 1) {  // the others' shares are in their frames
    const auto reader = store->Read(line.step.step);
    if (reader.ok()) {
      line.step = reader->info();
    } else {  // deleted meanwhile, or damaged
      line.problem = reader.status().message();
    }
  }
  const Json parsed = ParsedJson(line.step.metrics_json);
  if (!parsed.is_object()) return line;
  for (const auto& [name, value] : parsed.items()) {
    if (value.is_number() || IsNonFinite(value)) line.metrics[name] = value;
  }
  return line;
}

Json StepJson(const Line& line) {
  const StepInfo& step = line.step;
  Json items = Json::array();
  for (const ItemInfo& item : step.items) items.push_back(item.name);
  Json stored = step.stored_bytes;
  Json owned = step.owned_bytes();
  if (!line.problem.empty()) stored = owned = nullptr;
  Json json = {{"step", step.step},      {"time", UtcTime(step.time)},
               {"commit", step.commit},  {"pinned", step.pinned},
               {"items", items},         {"metrics", line.metrics},
               {"leaves", step.leaves},  {"logical_bytes", step.logical_bytes},
               {"stored_bytes", stored}, {"owned_bytes", owned}};
  if (step.save_time.count() > 0) {
    json["save_s"] = std::chrono::duration<double>(step.save_time).count();
  }
  if (!step.taint.empty()) json["taint"] = step.taint;
  if (step.nonfinite() > 0) json["nonfinite"] = step.nonfinite();
  if (!line.problem.empty()) json["problem"] = line.problem;
  return json;
}

// Makes the table, with a column for what is a step's own where steps refer to others, one for
// elements that are not finite, one for pins and one for taints where there are any, and one for
// each metric where they are few.
std::string LinesText(const std::vector<Line>& lines) {
  std::set<std::string> names;
  bool any_pinned = false;
  bool any_tainted = false;
  bool any_referenced = false;
  bool any_nonfinite = false;
  for (const Line& line : lines) {
    any_pinned = any_pinned || line.step.pinned;
    any_tainted = any_tainted || !line.step.taint.empty();
    any_referenced = any_referenced || line.step.referenced_bytes > 0;
    any_nonfinite = any_nonfinite || line.step.nonfinite() > 0;
    for (const auto& [name, value] : line.metrics) names.insert(name);
  }
  if (names.size() > kMetricColumnsMax) names.clear();
  std::vector<std::string> header = {"STEP", "COMMITTED", "ITEMS", "LEAVES",
                                     "SIZE", "STORED",    "RATIO"};
  std::vector<bool> right = {true, false, false, true, true, true, true};
  if (any_referenced) {
    header.push_back("OWN");
    right.push_back(true);
  }
  if (any_nonfinite) {
    header.push_back("NONFINITE");
    right.push_back(true);
  }
  if (any_pinned) {
    header.push_back("PIN");
    right.push_back(false);
  }
  if (any_tainted) {
    header.push_back("TAINT");
    right.push_back(false);
  }
  for (const std::string& name : names) {
    header.push_back(Printable(name));
    right.push_back(true);
  }
  std::vector<std::vector<std::string>> rows = {header};
  for (const Line& line : lines) {
    const StepInfo& step = line.step;
    const bool known = line.problem.empty();
    rows.push_back({std::to_string(step.step), LocalTime(step.time), ItemNames(step),
                    HumanCount(step.leaves), HumanBytes(step.logical_bytes),
                    known ? HumanBytes(step.stored_bytes) : "?",
                    known ? Ratio(step.logical_bytes, step.stored_bytes) : "?"});
    if (any_referenced) rows.back().push_back(known ? HumanBytes(step.owned_bytes()) : "?");
    if (any_nonfinite) {
      rows.back().push_back(step.nonfinite() == 0 ? "" : HumanCount(step.nonfinite()));
    }
    if (any_pinned) rows.back().push_back(step.pinned ? "pinned" : "");
    if (any_tainted) rows.back().push_back(Printable(step.taint));
    for (const std::string& name : names) {
      const auto found = line.metrics.find(name);
      rows.back().push_back(found == line.metrics.end() ? "" : MetricText(found->second));
    }
  }
  return Table(rows, right);
}

struct LsArguments : StoreArguments {
  std::vector<std::string> options;  // for the library that opens a URL
  size_t last = 0;                   // 0: all
  bool wide = false;
};

Result<CommandResult> ListPushed(const LsArguments& arguments, bool json) {
  if (arguments.wide) {
    return InvalidArgumentError("--wide is for stores; what was pushed is listed without metrics");
  }
  std::vector<std::string> words = {"ls", "--last", std::to_string(arguments.last)};
  for (const std::string& option : arguments.options) words.push_back("--option=" + option);
  if (json) words.emplace_back("--json");
  words.insert(words.end(), {"--", arguments.store});
  return RunPython(std::move(words));
}

// Prints the table; the Python package draws the lines of bars below it, as it does for top.
Result<CommandResult> PrintWide(const LsArguments& arguments, const Invocation& invocation,
                                const std::string& table) {
  STEPWELL_RETURN_IF_ERROR(WriteStdout(table));
  std::vector<std::string> words = {"ls-wide", "--last", std::to_string(arguments.last)};
  if (invocation.untrusted) words.emplace_back("--untrusted");
  words.insert(words.end(), {"--", StoreWithin(arguments.store)});
  return RunPython(std::move(words));
}

// Returns true if steps were pushed to this directory, or to directories in it.
bool HasPushed(const std::string& path) {
  namespace fs = std::filesystem;
  const auto is_pushed = [](const fs::path& folder) {
    std::error_code unreadable;
    return fs::exists(folder / "stepwell.json", unreadable) ||
           fs::exists(folder / "stepwell-run.json", unreadable);
  };
  std::error_code error;
  if (is_pushed(path)) return true;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (is_pushed(entry->path())) return true;
  }
  return false;
}

Result<CommandResult> RunLs(const LsArguments& arguments, Invocation* invocation) {
  if (arguments.store.find("://") != std::string::npos) {
    return ListPushed(arguments, invocation->json);
  }
  auto opened = OpenStore(arguments.store, /*read_only=*/true, invocation);
  if (!opened.ok() && HasPushed(arguments.store)) return ListPushed(arguments, invocation->json);
  STEPWELL_RETURN_IF_ERROR(opened.status());
  Store store = *std::move(opened);
  STEPWELL_ASSIGN_OR_RETURN(std::vector<StepInfo> steps,
                            store.StepsWithTexts(arguments.last > 0 ? arguments.last : SIZE_MAX));
  std::vector<Line> lines;
  lines.reserve(steps.size());
  for (StepInfo& step : steps) lines.push_back(MakeLine(&store, std::move(step)));
  CommandResult outcome;
  if (invocation->json) {
    Json list = Json::array();
    for (const Line& line : lines) list.push_back(StepJson(line));
    outcome.text =
        JsonText({{"schema", kJsonSchema}, {"store", arguments.store}, {"steps", std::move(list)}});
    return outcome;
  }
  for (const Line& line : lines) {
    if (!line.problem.empty()) Warn(Printable(line.problem));
  }
  if (lines.empty()) {
    Warn(arguments.store + " has no steps yet");
    return outcome;
  }
  outcome.text = LinesText(lines);
  if (arguments.wide) {
    STEPWELL_RETURN_IF_ERROR(store.Close());
    return PrintWide(arguments, *invocation, outcome.text);
  }
  return outcome;
}

}  // namespace

void AddLs(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<LsArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "ls", "list the steps of a store, or those pushed to a place",
                 [=] { return RunLs(*arguments, invocation); });
  AddStore(command, &arguments->store);
  command
      ->add_option("--option", arguments->options,
                   "for the library that opens a URL, such as region=eu-west-1")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("-n,--last", arguments->last, "only the N highest steps")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command->add_flag("--wide", arguments->wide,
                    "below the table sizes, intervals and each metric over the steps, as bars");
}

}  // namespace stepwell::cli
