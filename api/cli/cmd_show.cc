// SPDX-License-Identifier: Apache-2.0
// `stepwell show STORE [STEP] [PATH]`: the tree of a step, without reading any array.
#include "api/cli/command.h"
#include "api/cli/names.h"
#include "api/cli/output.h"
#include "api/cli/select.h"
#include "api/cli/text.h"
#include "api/cli/values.h"
#include "db/mesh/sharding.h"

namespace stepwell::cli {
namespace {

using format::LeafKind;
using format::LeafRecord;

Json EntryJson(const Entry& entry) {
  const LeafRecord& record = entry.record;
  Json json = {{"path", entry.text}, {"item", entry.item}};
  if (!record.variable_types.empty()) json["variable_types"] = record.variable_types;
  switch (record.kind) {
    case LeafKind::kNode:
      json["kind"] = "node";
      json["container"] = ContainerName(record.container);
      json["type_name"] = record.type_name;
      json["children"] = record.child_count;
      return json;
    case LeafKind::kValue:
      json["kind"] = "value";
      if (record.chunks.empty()) {
        Result<Json> value = ValueJson(record.value_type, AsBytes(record.inline_value));
        if (value.ok()) json["value"] = std::move(value).value();
      }
      break;
    case LeafKind::kArray:
      json["kind"] = "array";
      json["dtype"] = DTypeName(record.dtype);
      json["shape"] = record.shape;
      json["chunk_shape"] = record.chunk_shape;
      json["shard_shape"] = record.shard_shape.empty() ? record.shape : record.shard_shape;
      json["sharding"] = ParsedJson(record.sharding_json);
      if (!record.prng_impl.empty()) json["prng_impl"] = record.prng_impl;
      break;
  }
  json["type"] = ValueTypeName(record.value_type);
  json["chunks"] = record.chunks.size();
  json["codec"] = CodecName(record.codec);
  json["logical_bytes"] = LogicalBytes(record);
  json["stored_bytes"] = StoredBytes(record);
  return json;
}

// ---- the tree for people ------------------------------------------------------------------

struct Node {
  format::PathComponent component;
  const Entry* entry = nullptr;  // null: an inner node without a record of its own
  std::vector<Node> children;
  // Of everything below, itself included.
  uint64_t leaves = 0;
  uint64_t logical_bytes = 0;
  uint64_t stored_bytes = 0;
};

// Entries are in key order, so what belongs together is together: only the last child can be meant.
void Insert(Node* node, const Entry& entry, size_t depth) {
  const bool leaf = entry.record.kind != LeafKind::kNode;
  if (leaf) {
    node->leaves += 1;
    node->logical_bytes += LogicalBytes(entry.record);
    node->stored_bytes += StoredBytes(entry.record);
  }
  if (depth == entry.shown.size()) {
    node->entry = &entry;
    return;
  }
  const format::PathComponent& next = entry.shown[depth];
  if (node->children.empty() || node->children.back().component != next) {
    node->children.emplace_back().component = next;
  }
  Insert(&node->children.back(), entry, depth + 1);
}

using Rows = std::vector<std::vector<std::string>>;

void AddRows(const Node& node, size_t indent, Rows* rows) {
  const Entry* entry = node.entry;
  const bool leaf = entry != nullptr && entry->record.kind != LeafKind::kNode;
  std::string name = Printable(Spelling(node.component));
  if (name.empty()) name = leaf && entry->shown.empty() ? Printable(entry->item) : "\"\"";
  std::string last = Plural(node.leaves, "leaf", "leaves");
  if (leaf) last = entry->record.chunks.empty() ? "inline" : CodecName(entry->record.codec);
  rows->push_back({std::string(2 * indent, ' ') + name + (leaf ? "" : "/"),
                   entry == nullptr ? "" : Description(entry->record),
                   HumanBytes(node.logical_bytes), HumanBytes(node.stored_bytes),
                   Ratio(node.logical_bytes, node.stored_bytes), last});
  for (const Node& child : node.children) AddRows(child, indent + 1, rows);
}

// The nodes `depth` below `node`: the ones that the selected path names.
void AddRowsAtDepth(const Node& node, size_t depth, Rows* rows) {
  if (depth == 0) return AddRows(node, 0, rows);
  for (const Node& child : node.children) AddRowsAtDepth(child, depth - 1, rows);
}

std::string TreeText(const Selection& selection) {
  Node root;
  for (const Entry& entry : selection.entries) Insert(&root, entry, 0);
  const bool bare_leaf = root.entry != nullptr && root.entry->record.kind != LeafKind::kNode;
  Rows rows;
  AddRowsAtDepth(root, selection.depth == 0 && !bare_leaf ? 1 : selection.depth, &rows);
  return Table(rows, {false, false, true, true, true, false});
}

std::string StepText(const format::StepRecord& step) {
  std::string text =
      StrCat(Emphasize(StrCat("step ", step.step), "1"), ", committed ", LocalTime(step.time_ns),
             ": ", Plural(step.leaf_count, "leaf", "leaves"), ", ", HumanBytes(step.logical_bytes),
             ", stored in ", HumanBytes(step.stored_bytes), "\n");
  if (!step.metadata_json.empty()) text += StrCat("metadata ", Printable(step.metadata_json), "\n");
  if (!step.metrics_json.empty()) text += StrCat("metrics ", Printable(step.metrics_json), "\n");
  return text;
}

Json StepJson(const format::StepRecord& step) {
  Json items = Json::array();
  for (const format::ItemRecord& item : step.items) {
    items.push_back({{"name", item.name},
                     {"leaves", item.leaf_count},
                     {"logical_bytes", item.logical_bytes},
                     {"stored_bytes", item.stored_bytes}});
  }
  return {{"step", step.step},
          {"time", UtcTime(step.time_ns)},
          {"commit", step.commit},
          {"metadata", ParsedJson(step.metadata_json)},
          {"metrics", ParsedJson(step.metrics_json)},
          {"items", items},
          {"leaves", step.leaf_count},
          {"logical_bytes", step.logical_bytes},
          {"stored_bytes", step.stored_bytes}};
}

// Which device holds which slice of each array.
std::string ShardingsText(const Selection& selection) {
  std::string text;
  for (const Entry& entry : selection.entries) {
    if (entry.record.kind != LeafKind::kArray) continue;
    const std::string name = entry.text.empty() ? entry.item : entry.text;
    text += StrCat(Emphasize(Printable(name), "1"), "  ", Description(entry.record), "\n  ",
                   db::ShardingText(entry.record.shape, entry.record.sharding_json));
  }
  return text;
}

struct ShowArguments : StoreArguments {
  bool sharding = false;
};

Result<Outcome> RunShow(const ShowArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenStore(arguments.store, /*read_only=*/true, invocation));
  STEPWELL_ASSIGN_OR_RETURN(std::shared_ptr<db::StepReader> reader,
                            ReadStep(store.get(), arguments.step));
  STEPWELL_ASSIGN_OR_RETURN(Selection selection, Select(reader.get(), arguments.path));
  Outcome outcome;
  if (invocation->json) {
    Json entries = Json::array();
    for (const Entry& entry : selection.entries) entries.push_back(EntryJson(entry));
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"step", StepJson(reader->step())},
                             {"path", selection.text},
                             {"entries", std::move(entries)}});
    return outcome;
  }
  if (selection.text.empty()) outcome.text = StepText(reader->step());
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
}

}  // namespace stepwell::cli
