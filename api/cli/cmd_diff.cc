// SPDX-License-Identifier: Apache-2.0
// `stepwell diff STORE A B [PATH]`: what differs between two steps, of one store or of two.
#include <algorithm>

#include "api/cli/command.h"
#include "api/cli/diff.h"
#include "api/cli/output.h"
#include "api/cli/text.h"
#include "api/cli/tree.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

struct DiffArguments : StoreArguments {
  std::string step_b;
  std::string other;  // the store of B; empty: the same
  bool exit_code = false;
};

Json SideJson(const Entry& entry) {
  const LeafInfo& info = entry.info;
  Json json = {{"description", Description(info)}};
  if (info.type == LeafType::kArray) {
    json["dtype"] = DTypeName(info.dtype);
    json["shape"] = info.shape;
  }
  if (info.type != LeafType::kNode) json["type"] = info.kind;
  AddValue(info, &json);
  return json;
}

Json ListJson(const std::vector<const Entry*>& entries) {
  Json list = Json::array();
  for (const Entry* entry : entries) {
    Json json = SideJson(*entry);
    json["path"] = entry->text;
    list.push_back(std::move(json));
  }
  return list;
}

Json PairJson(const DiffPair& pair) {
  Json json = {{"path", pair.a->text},
               {"changes", pair.changes},
               {"a", SideJson(*pair.a)},
               {"b", SideJson(*pair.b)}};
  if (!pair.data) return json;
  const ArrayComparison& data = *pair.data;
  json["bytes"] = pair.a->info.logical_bytes;
  json["changed_bytes"] = data.changed_bytes();
  json["changed_elements"] = data.changed_elements();
  json["nan_mismatches"] = data.nan_mismatches();
  json["max_absolute"] = NumberJson(data.max_absolute());
  json["max_relative"] = NumberJson(data.max_relative());
  json["l2_a"] = NumberJson(data.norm_a());
  json["l2_b"] = NumberJson(data.norm_b());
  json["l2_difference"] = NumberJson(data.norm_difference());
  return json;
}

using Rows = std::vector<std::vector<std::string>>;

std::vector<std::string> PairRow(const DiffPair& pair) {
  constexpr int kDigits = 5;
  std::string what = Description(pair.a->info);
  if (const std::string b = Description(pair.b->info); b != what) what += " -> " + b;
  std::string changes;
  for (const std::string& change : pair.changes) changes += (changes.empty() ? "" : ",") + change;
  std::vector<std::string> row = {"~", Printable(pair.a->text), what, changes};
  if (!pair.data) return row;
  const ArrayComparison& data = *pair.data;
  const auto bytes = static_cast<double>(std::max<uint64_t>(pair.a->info.logical_bytes, 1));
  const double percent = 100.0 * static_cast<double>(data.changed_bytes()) / bytes;
  row.push_back(StrCat(HumanBytes(data.changed_bytes()), " (", NumberText(percent, 3), "%)"));
  for (const double number : {data.max_absolute(), data.max_relative(), data.norm_a(),
                              data.norm_b(), data.norm_difference()}) {
    row.push_back(NumberText(number, kDigits));
  }
  return row;
}

std::string DiffText(const Diff& diff, uint64_t same_count) {
  Rows rows = {
      {"", "PATH", "WHAT", "CHANGES", "CHANGED", "MAX ABS", "MAX REL", "|A|", "|B|", "|A-B|"}};
  uint64_t nan_mismatches = 0;
  for (const Entry* entry : diff.removed) {
    rows.push_back({"-", Printable(entry->text), Description(entry->info), "removed"});
  }
  for (const Entry* entry : diff.added) {
    rows.push_back({"+", Printable(entry->text), Description(entry->info), "added"});
  }
  for (const DiffPair& pair : diff.pairs) {
    if (!pair.changes.empty()) rows.push_back(PairRow(pair));
    if (pair.data) nan_mismatches += pair.data->nan_mismatches();
  }
  const uint64_t changed = rows.size() - 1 - diff.removed.size() - diff.added.size();
  std::string text;
  if (rows.size() > 1) {
    text = Table(rows, {false, false, false, false, true, true, true, true, true, true});
  }
  if (nan_mismatches > 0) {
    text += StrCat(Plural(nan_mismatches, "element is", "elements are"), " NaN in one step only\n");
  }
  return text + StrCat(HumanCount(changed), " changed, ", HumanCount(diff.added.size()), " added, ",
                       HumanCount(diff.removed.size()), " removed, ", HumanCount(same_count),
                       " the same\n");
}

// What one side has at the path; nothing when it has no such path. Where the other step has the
// item `state` alone, the path may leave its name out, and means that item here, too.
Result<DiffSide> MakeSide(const Step& step, const Step& other, const std::string& path,
                          bool only_state, Status* missing) {
  Result<Selection> selection = Select(step, path, only_state);
  if (selection.status().code() == StatusCode::kNotFound && other.info().only_state() &&
      !step.info().only_state()) {
    selection = Select(step, Path::In("state", path), only_state);
  }
  if (selection.ok()) return DiffSide{step, std::move(selection->entries)};
  if (selection.status().code() != StatusCode::kNotFound) return selection.status();
  *missing = selection.status();
  return DiffSide{step, {}};
}

Result<Outcome> RunDiff(const DiffArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(Store store_a,
                            OpenStore(arguments.store, /*read_only=*/true, invocation));
  std::optional<Store> store_other;
  if (!arguments.other.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(store_other,
                              OpenStore(arguments.other, /*read_only=*/true, invocation));
  }
  Store* const store_b = store_other ? &*store_other : &store_a;
  STEPWELL_ASSIGN_OR_RETURN(const Step step_a, ReadStep(&store_a, arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(const Step step_b, ReadStep(store_b, arguments.step_b));
  const bool only_state = step_a.info().only_state() && step_b.info().only_state();
  Status missing_a;
  Status missing_b;
  STEPWELL_ASSIGN_OR_RETURN(const DiffSide a,
                            MakeSide(step_a, step_b, arguments.path, only_state, &missing_a));
  STEPWELL_ASSIGN_OR_RETURN(const DiffSide b,
                            MakeSide(step_b, step_a, arguments.path, only_state, &missing_b));
  if (!missing_a.ok() && !missing_b.ok()) return missing_a;

  Diff diff = CompareStructure(a, b);
  const bool itself = !store_other && step_a.info().commit == step_b.info().commit;
  if (!itself) {
    Progress progress("comparing");
    STEPWELL_RETURN_IF_ERROR(CompareData(
        a, b, [&](uint64_t done, uint64_t all) { progress.Update(done, all); }, &diff));
  }
  uint64_t same_count = 0;
  for (const DiffPair& pair : diff.pairs) {
    const bool leaf = pair.a->info.type != LeafType::kNode;
    same_count += leaf && pair.changes.empty() ? 1 : 0;
  }
  Outcome outcome;
  if (arguments.exit_code && !diff.Same()) outcome.exit = ExitCode::kDifferent;
  if (!invocation->json) {
    outcome.text = DiffText(diff, same_count);
    return outcome;
  }
  Json changed = Json::array();
  for (const DiffPair& pair : diff.pairs) {
    if (!pair.changes.empty()) changed.push_back(PairJson(pair));
  }
  outcome.text = JsonText({{"schema", kJsonSchema},
                           {"a", {{"store", arguments.store}, {"step", step_a.info().step}}},
                           {"b", {{"store", store_b->path()}, {"step", step_b.info().step}}},
                           {"path", arguments.path},
                           {"same", diff.Same()},
                           {"unchanged", same_count},
                           {"added", ListJson(diff.added)},
                           {"removed", ListJson(diff.removed)},
                           {"changed", std::move(changed)}});
  return outcome;
}

}  // namespace

void AddDiff(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<DiffArguments>();
  CLI::App* command = AddCommand(program, invocation, "diff", "compare two steps",
                                 [=] { return RunDiff(*arguments, invocation); });
  AddStore(command, &arguments->store);
  command->add_option("A", arguments->step, "a step: a number, or latest")->required();
  command->add_option("B", arguments->step_b, "the step that is compared with A")->required();
  AddPath(command, &arguments->path);
  command->add_option("--other", arguments->other, "B is a step of this store")->type_name("STORE");
  command->add_flag("--exit-code", arguments->exit_code, "exit with status 7 when they differ");
}

}  // namespace stepwell::cli
