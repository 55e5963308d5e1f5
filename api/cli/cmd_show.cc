// SPDX-License-Identifier: Apache-2.0
// `stepwell show STORE [STEP] [PATH]`: the tree of a step, without reading any array.
#include <algorithm>
#include <optional>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"
#include "api/cli/tree.h"
#include "api/cli/values.h"

namespace stepwell::cli {
namespace {

// Null: not known, or of no element.
Json StatisticsJson(const LeafStatistics& statistics) {
  const bool has_range = statistics.has_range();
  const bool knows_changed = statistics.changed_count != ChangedCount::kUnknown;
  return {{"elements", statistics.elements},
          {"nonfinite", statistics.nonfinite},
          {"min", has_range ? Json(statistics.min) : Json()},
          {"mean", has_range ? NumberJson(statistics.mean()) : Json()},
          {"max", has_range ? Json(statistics.max) : Json()},
          {"norm", NumberJson(statistics.norm())},
          {"changed", knows_changed ? Json(statistics.changed) : Json()},
          {"changed_exactly", statistics.changed_count == ChangedCount::kExact}};
}

Json EntryJson(const Entry& entry) {
  const LeafInfo& info = entry.info;
  Json json = {{"path", entry.text}, {"item", entry.item}};
  if (!info.variable_types.empty()) json["variable_types"] = info.variable_types;
  if (info.type == LeafType::kNode) {
    json["kind"] = "node";
    json["container"] = info.kind;
    json["type_name"] = info.type_name;
    json["children"] = info.children;
    return json;
  }
  if (info.type == LeafType::kArray) {
    json["kind"] = "array";
    json["dtype"] = DTypeName(info.dtype);
    json["shape"] = info.shape;
    json["chunk_shape"] = info.chunk_shape;
    json["shard_shape"] = info.shard_shape;
    json["sharding"] = ParsedJson(info.sharding_json);
    if (!info.prng_impl.empty()) json["prng_impl"] = info.prng_impl;
  } else {
    json["kind"] = "value";
    AddValue(info, &json);
  }
  if (info.statistics) json["statistics"] = StatisticsJson(*info.statistics);
  json["type"] = info.kind;
  json["chunks"] = info.chunks;
  json["codec"] = info.codec;
  json["logical_bytes"] = info.logical_bytes;
  json["stored_bytes"] = info.stored_bytes;
  return json;
}

// ---- the tree for people ------------------------------------------------------------------

struct Node {
  PathComponent component;
  const Entry* entry = nullptr;  // null: an inner node without a record of its own
  std::vector<Node> children;
  // These count everything below the node, and the node itself.
  uint64_t leaves = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
};

// Entries are in key order, so what belongs together is together: only the last child can be meant.
void Insert(Node* node, const Entry& entry, size_t depth) {
  const bool leaf = entry.info.type != LeafType::kNode;
  if (leaf) {
    node->leaves += 1;
    node->logical_bytes += entry.info.logical_bytes;
    node->stored_bytes += entry.info.stored_bytes;
  }
  if (depth == entry.shown.size()) {
    node->entry = &entry;
    return;
  }
  const PathComponent& next = entry.shown[depth];
  if (node->children.empty() || node->children.back().component != next) {
    node->children.emplace_back().component = next;
  }
  Insert(&node->children.back(), entry, depth + 1);
}

using Rows = std::vector<std::vector<std::string>>;

// Columns behind those that every tree has.
const std::vector<std::string> kStatisticsHeader = {"MIN", "MEAN",      "NORM",
                                                    "MAX", "NONFINITE", "CHANGED"};

std::vector<std::string> StatisticsCells(const LeafInfo& info) {
  if (!info.statistics) return std::vector<std::string>(kStatisticsHeader.size());
  const LeafStatistics& statistics = *info.statistics;
  const auto number = [&](double value) {
    return statistics.has_range() ? NumberText(value, 4) : std::string();
  };
  std::string changed;
  if (statistics.changed_count != ChangedCount::kUnknown && statistics.elements > 0) {
    const double share =
        static_cast<double>(statistics.changed) / static_cast<double>(statistics.elements);
    const bool is_bound =
        statistics.changed_count == ChangedCount::kAtMost && statistics.changed > 0;
    changed = StrCat(is_bound ? "<=" : "", NumberText(100 * share, 3), "%");
  }
  return {number(statistics.min),
          number(statistics.mean()),
          NumberText(statistics.norm(), 4),
          number(statistics.max),
          statistics.nonfinite == 0 ? "" : HumanCount(statistics.nonfinite),
          changed};
}

void AddRows(const Node& node, size_t indent, bool statistics, Rows* rows) {
  const Entry* entry = node.entry;
  const bool leaf = entry != nullptr && entry->info.type != LeafType::kNode;
  std::string name = Printable(Spelling(node.component));
  if (name.empty()) name = leaf && entry->shown.empty() ? Printable(entry->item) : "\"\"";
  std::string last = Plural(node.leaves, "leaf", "leaves");
  if (leaf) last = entry->info.chunks == 0 ? "inline" : entry->info.codec;
  rows->push_back({std::string(2 * indent, ' ') + name + (leaf ? "" : "/"),
                   entry == nullptr ? "" : Description(entry->info), HumanBytes(node.logical_bytes),
                   HumanBytes(node.stored_bytes), Ratio(node.logical_bytes, node.stored_bytes),
                   last});
  if (statistics) {
    const auto cells = StatisticsCells(leaf ? entry->info : LeafInfo());
    rows->back().insert(rows->back().end(), cells.begin(), cells.end());
  }
  for (const Node& child : node.children) AddRows(child, indent + 1, statistics, rows);
}

// The nodes `depth` below `node`: the ones that the selected path names.
void AddRowsAtDepth(const Node& node, size_t depth, bool statistics, Rows* rows) {
  if (depth == 0) return AddRows(node, 0, statistics, rows);
  for (const Node& child : node.children) AddRowsAtDepth(child, depth - 1, statistics, rows);
}

std::string TreeText(const Selection& selection) {
  Node root;
  for (const Entry& entry : selection.entries) Insert(&root, entry, 0);
  const bool bare_leaf = root.entry != nullptr && root.entry->info.type != LeafType::kNode;
  const bool statistics =
      std::any_of(selection.entries.begin(), selection.entries.end(),
                  [](const Entry& entry) { return entry.info.statistics.has_value(); });
  Rows rows;
  std::vector<bool> right = {false, false, true, true, true, false};
  if (statistics) {
    rows.emplace_back(right.size());
    rows.back().insert(rows.back().end(), kStatisticsHeader.begin(), kStatisticsHeader.end());
    right.resize(right.size() + kStatisticsHeader.size(), true);
  }
  AddRowsAtDepth(root, selection.depth == 0 && !bare_leaf ? 1 : selection.depth, statistics, &rows);
  return Table(rows, right);
}

// Deleting the step frees `frees_bytes`; none: it is not known.
std::string StepText(const StepInfo& step, std::optional<uint64_t> frees_bytes) {
  std::string text = StrCat(
      Emphasize(StrCat("step ", step.step), "1"), ", committed ", LocalTime(step.time), ": ",
      Plural(step.leaves, "leaf", "leaves"), ", ", HumanBytes(step.logical_bytes), ", stored in ",
      HumanBytes(step.stored_bytes),
      step.referenced_bytes == 0 ? "" : StrCat(", ", HumanBytes(step.owned_bytes()), " its own"),
      frees_bytes ? StrCat("; deleting it frees ", HumanBytes(*frees_bytes))
                  : "; what deleting it frees is not known",
      "\n");
  if (!step.taint.empty()) text += StrCat("tainted: ", Printable(step.taint), "\n");
  if (step.verified) text += "verified\n";
  if (!step.metadata_json.empty()) text += StrCat("metadata ", Printable(step.metadata_json), "\n");
  if (!step.metrics_json.empty()) text += StrCat("metrics ", Printable(step.metrics_json), "\n");
  return text;
}

Json StepJson(const StepInfo& step, std::optional<uint64_t> frees_bytes) {
  Json items = Json::array();
  for (const ItemInfo& item : step.items) {
    items.push_back({{"name", item.name},
                     {"leaves", item.leaves},
                     {"logical_bytes", item.logical_bytes},
                     {"stored_bytes", item.stored_bytes},
                     {"nonfinite", item.nonfinite}});
  }
  return {{"step", step.step},
          {"time", UtcTime(step.time)},
          {"commit", step.commit},
          {"taint", step.taint.empty() ? Json() : Json(step.taint)},
          {"verified", step.verified},
          {"metadata", ParsedJson(step.metadata_json)},
          {"metrics", ParsedJson(step.metrics_json)},
          {"items", items},
          {"leaves", step.leaves},
          {"logical_bytes", step.logical_bytes},
          {"stored_bytes", step.stored_bytes},
          {"owned_bytes", step.owned_bytes()},
          {"frees_bytes", frees_bytes ? Json(*frees_bytes) : Json()}};
}

// Which device holds which slice of each array.
std::string ShardingsText(const Selection& selection) {
  std::string text;
  for (const Entry& entry : selection.entries) {
    if (entry.info.type != LeafType::kArray) continue;
    const std::string name = entry.text.empty() ? entry.item : entry.text;
    text += StrCat(Emphasize(Printable(name), "1"), "  ", Description(entry.info), "\n  ",
                   ShardingText(entry.info.shape, entry.info.sharding_json));
  }
  return text;
}

struct ShowArguments : StoreArguments {
  bool sharding = false;
  bool paths = false;
};

// Spells the paths as other commands take them.
std::string PathsText(const Selection& selection) {
  std::string text;
  for (const Entry& entry : selection.entries) {
    const bool leaf = entry.info.type != LeafType::kNode && !entry.text.empty();
    if (leaf) text += Printable(entry.text) + "\n";
  }
  return text;
}

Result<CommandResult> RunShow(const ShowArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const Step step, ReadStep(&store, arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(const Selection selection, Select(step, arguments.path));
  std::optional<uint64_t> frees_bytes;
  if (selection.text.empty() || invocation->json) {
    // Deleted meanwhile, it frees nothing that could be named.
    const auto frees = store.FreesBytes({step.info().step});
    if (frees.ok()) frees_bytes = frees->at(step.info().step);
  }
  CommandResult outcome;
  if (invocation->json) {
    Json entries = Json::array();
    for (const Entry& entry : selection.entries) entries.push_back(EntryJson(entry));
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"step", StepJson(step.info(), frees_bytes)},
                             {"path", selection.text},
                             {"entries", std::move(entries)}});
    return outcome;
  }
  if (arguments.paths) {
    outcome.text = PathsText(selection);
    return outcome;
  }
  if (selection.text.empty()) outcome.text = StepText(step.info(), frees_bytes);
  outcome.text += arguments.sharding ? ShardingsText(selection) : TreeText(selection);
  return outcome;
}

}  // namespace

void AddShow(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* command = AddCommand(program, invocation, "show", "print the tree of a step",
                                 [=] { return RunShow(*arguments, invocation); });
  AddStore(command, &arguments->store);
  AddStep(command, &arguments->step);
  AddPath(command, &arguments->path);
  command->add_flag("--sharding", arguments->sharding,
                    "draw which device held which slice of each array (--json has it always)");
  command->add_flag("--paths", arguments->paths, "print nothing but the paths of the leaves");
}

}  // namespace stepwell::cli
