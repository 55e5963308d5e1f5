// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "db/export/orbax/leaves.h"
#include "db/export/orbax/records.h"
#include "db/export/orbax/verdicts.h"
#include "db/read/restore_plan.h"
#include "format/key.h"
#include "format/orbax/json.h"
#include "format/orbax/ocdbt.h"
#include "format/orbax/orbax_files.h"
#include "format/orbax/python_text.h"

namespace stepwell::db {
namespace {

namespace orbax = format::orbax;
using format::LeafRecord;

// Bounds a leaf's name. In an OCDBT key the chunk's indices follow it.
constexpr size_t kLeafNameBytesMax = orbax::kOcdbtKeyBytesMax - size_t{64} * 21;
constexpr size_t kFolderBytesMax = 200;
constexpr size_t kFileNameBytesMax = 4096;  // of a path below an item's directory
constexpr std::array<std::string_view, 3> kReservedNames = {
    orbax::kCheckpointMetadataName, orbax::kIndicatorName, orbax::kCommitSuccessName};

// Why an item's name cannot be that of a directory in a checkpoint; empty: it can.
std::string BadFolder(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > kFolderBytesMax ||
      name.find('/') != std::string_view::npos || name.find('\0') != std::string_view::npos ||
      !orbax::IsUtf8(name)) {
    return "the item's name cannot be that of a directory";
  }
  if (name.find(orbax::kTemporaryMark) != std::string_view::npos) {
    return "the item's name is one of Orbax's temporary directories";
  }
  const auto it = std::find(kReservedNames.begin(), kReservedNames.end(), name);
  return it == kReservedNames.end() ? "" : "the item's name is that of a file of Orbax's";
}

class ItemPlanner {
 public:
  ItemPlanner(const ExportOptions& options, size_t path_prefix, ExportItem* item, ExportPlan* plan,
              ExportVerdicts* verdicts)
      : options_(options),
        path_prefix_(path_prefix),
        item_(item),
        plan_(plan),
        verdicts_(verdicts) {}

  Status Add(const LeafRecord& record, const format::KeyPath& path) {
    RecordVariables(record, path.size());
    auto translated = TranslateLeaf(record, options_);
    if (!translated.ok()) return translated.status().WithContext(LeafName(record));
    const bool is_unsupported = !translated->unsupported.empty();
    if (path.size() < path_prefix_ && !is_unsupported) {
      return translated->type ? DataLossError("a leaf above its subtree") : OkStatus();
    }
    const auto prefix = static_cast<ptrdiff_t>(std::min(path_prefix_, path.size()));
    const format::KeyPath below(path.begin() + prefix, path.end());
    if (is_unsupported) {
      Refuse(&record, below, translated->unsupported);
      return OkStatus();
    }
    if (!translated->type) {
      selected_.push_back({&record, below});
      return OkStatus();
    }
    if (below.empty() && variables_.empty() && orbax::IsEmptyNode(*translated->type)) {
      verdicts_->Unsupported(LeafName(record), "is a tree without leaves");
      return OkStatus();
    }
    auto keys = orbax::TreeKeys(WithValues(below));
    if (!keys.ok()) {
      Refuse(&record, below, std::string(keys.status().message()));
      return OkStatus();
    }
    Candidate candidate;
    candidate.path = LeafName(record);
    candidate.record = &record;
    candidate.below = below;
    candidate.leaf = std::move(*translated);
    candidate.keys = std::move(*keys);
    for (const format::PathComponent& component : below) {
      if (component.type == format::PathComponent::Type::kLiteral)
        candidate.literal = component.name;
    }
    candidates_.push_back(std::move(candidate));
    return OkStatus();
  }

  Status Finish() {
    DropBadNames();
    for (Candidate& candidate : candidates_) {
      if (!candidate.kept) continue;
      selected_.push_back({candidate.record, candidate.below});
      Take(&candidate);
    }
    STEPWELL_ASSIGN_OR_RETURN(item_->records, RecordsOfExport(item_->name, selected_));
    item_->tree.use_ocdbt = true;
    item_->tree.use_zarr3 = options_.zarr_format == 3;
    item_->tree.store_array_data_equal_to_fill_value = true;
    return OkStatus();
  }

 private:
  struct Candidate {
    std::string path;
    const LeafRecord* record = nullptr;
    format::KeyPath below;
    LeafTranslation leaf;
    std::vector<orbax::TreeKey> keys;
    std::string literal;  // the last of its keys that is one
    bool kept = true;
  };

  // Variables of Flax's NNX around a node or leaf: Orbax has a level "value" for each, between what
  // leads to it and what is in it.
  struct Variables {
    std::string_view key;  // of the record, an encoded path: a prefix of those below
    size_t depth = 0;      // components below the export's top
    size_t count = 0;
  };

  // Records come in key order: what is above one of them is on the stack.
  void RecordVariables(const LeafRecord& record, size_t path_size) {
    while (!variables_.empty() && !record.key.starts_with(variables_.back().key)) {
      variables_.pop_back();
    }
    if (record.variable_types.empty() || path_size < path_prefix_) return;
    const std::string& types = record.variable_types;
    const auto spaces = static_cast<size_t>(std::count(types.begin(), types.end(), ' '));
    variables_.push_back({record.key, path_size - path_prefix_, spaces + 1});
  }

  format::KeyPath WithValues(const format::KeyPath& below) const {
    format::KeyPath path;
    auto next = below.begin();
    for (const Variables& variables : variables_) {
      const auto end = below.begin() + static_cast<ptrdiff_t>(variables.depth);
      path.insert(path.end(), next, end);
      path.insert(path.end(), variables.count, format::PathComponent::Key("value"));
      next = end;
    }
    path.insert(path.end(), next, below.end());
    return path;
  }

  void Drop(Candidate* candidate, std::string reason) {
    if (!candidate->kept) return;
    candidate->kept = false;
    Refuse(candidate->record, candidate->below, std::move(reason));
  }

  // Orbax cannot hold it. What is a value and not an array our own import gets, nevertheless.
  void Refuse(const LeafRecord* record, const format::KeyPath& below, std::string reason) {
    verdicts_->Unsupported(LeafName(*record), std::move(reason));
    const bool is_known = record->value_type == format::ValueType::kBytes ||
                          record->value_type == format::ValueType::kComplex ||
                          record->value_type == format::ValueType::kInt ||
                          record->value_type == format::ValueType::kStr;
    if (record->kind == format::LeafKind::kValue && is_known) {
      selected_.push_back({record, below, /*in_orbax=*/false});
    }
  }

  // Drops leaves whose names Orbax cannot hold. Of leaves with the same name the first stays, if
  // any may.
  void DropBadNames() {
    std::vector<std::string> names;
    names.reserve(candidates_.size());
    for (const Candidate& candidate : candidates_) {
      names.push_back(orbax::ParamName(candidate.keys));
    }
    std::map<std::string, size_t> strings;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].size() > kLeafNameBytesMax) {
        Drop(&candidates_[i], "its name is longer than OCDBT's keys may be");
      } else if (candidates_[i].leaf.type == orbax::OrbaxType::kString) {
        const Status status = orbax::CheckStringName(names[i]);
        if (!status.ok()) Drop(&candidates_[i], status.message());
        strings.emplace(names[i], i);
      }
    }
    for (const orbax::NameCollision& collision : orbax::FindNameCollisions(names)) {
      for (size_t k = 1; k < collision.leaves.size(); ++k) {
        Drop(&candidates_[collision.leaves[k]],
             StrCat("Orbax names it \"", orbax::Printable(collision.name), "\", like ",
                    orbax::Printable(candidates_[collision.leaves[0]].path)));
      }
    }
    // In _strings.json a "/" is a level: "a" cannot be a text and have "a/b" below it.
    for (const auto& [name, i] : strings) {
      for (size_t slash = name.find('/'); slash != std::string::npos;
           slash = name.find('/', slash + 1)) {
        const auto above = strings.find(name.substr(0, slash));
        if (above == strings.end()) continue;
        Drop(&candidates_[i], StrCat("Orbax cannot keep it beside the str ",
                                     orbax::Printable(candidates_[above->second].path)));
      }
    }
  }

  void Take(Candidate* candidate) {
    const LeafRecord& record = *candidate->record;
    LeafTranslation& leaf = candidate->leaf;
    orbax::TreeEntry entry;
    entry.type = *leaf.type;
    entry.skip_deserialize = orbax::IsEmptyNode(entry.type);
    const std::string name = orbax::ParamName(candidate->keys);
    if (entry.type == orbax::OrbaxType::kJaxArray) {
      std::optional<orbax::Sharding> sharding;
      if (options_.leaves == ExportLeaves::kJax) sharding = shardings_.Get(record.sharding_json);
      // A PRNG key is one in a jax.Array only, and such a one needs a sharding.
      const bool is_key = record.value_type == format::ValueType::kPrngKey;
      if (!sharding && is_key) sharding = orbax::ReplicatedSharding();
      if (sharding) {
        const format::Shape& chunk_shape = leaf.array->zarr.chunk_shape;
        entry.write_shape = chunk_shape;
        item_->shardings.push_back({name, *std::move(sharding)});
        orbax::LeafArrayMetadata metadata{name, chunk_shape, chunk_shape, {}};
        if (!record.prng_impl.empty()) metadata.random_key_impl = record.prng_impl;
        item_->array_metadatas.push_back(std::move(metadata));
      } else {
        entry.type = orbax::OrbaxType::kNumpyArray;
        plan_->as_numpy.push_back({candidate->path, "Orbax has no word for its sharding"});
      }
    }
    if (entry.type == orbax::OrbaxType::kString) {
      item_->strings.push_back({name, std::move(leaf.text)});
    } else if (leaf.array) {
      leaf.array->name = name;
      if (leaf.array->leaf != nullptr) {
        plan_->chunks += format::ChunkCount(leaf.array->zarr.shape, leaf.array->zarr.chunk_shape);
        for (const auto& chunk : record.chunks) plan_->stored_bytes += chunk.all_stored_bytes();
      }
      item_->arrays.push_back(std::move(*leaf.array));
    }
    if (!candidate->literal.empty()) {
      plan_->as_text.push_back(
          {candidate->path, StrCat("Orbax has the key ", candidate->literal, " as text")});
    }
    if (!leaf.widened.empty()) plan_->widened.push_back({candidate->path, leaf.widened});
    if (!entry.skip_deserialize) ++plan_->leaves;
    entry.keys = std::move(candidate->keys);
    item_->tree.entries.push_back(std::move(entry));
  }

  const ExportOptions& options_;
  const size_t path_prefix_;
  ExportItem* const item_;
  ExportPlan* const plan_;
  ExportVerdicts* const verdicts_;
  std::vector<Variables> variables_;  // of the record at hand, outermost first
  std::vector<SelectedRecord> selected_;
  std::vector<Candidate> candidates_;
  ShardingCache shardings_;
};

Status PlanJson(std::span<const LeafRecord> leaves, size_t path_prefix, ExportItem* item,
                ExportPlan* plan, ExportVerdicts* verdicts) {
  Result<std::string> text = EncodeJsonItem(leaves, path_prefix);
  if (text.status().code() == StatusCode::kInvalidArgument) {
    verdicts->Unsupported(item->name, text.status().message());
    return OkStatus();
  }
  if (!text.ok()) return text.status().WithContext(item->name);
  item->json_file = orbax::FindHandler(orbax::kJsonHandler)->json_file;
  item->json = *std::move(text);
  for (const LeafRecord& leaf : leaves)
    plan->leaves += leaf.kind == format::LeafKind::kNode ? 0 : 1;
  return OkStatus();
}

// Why `name` cannot be the path of a file below a directory; "" when it can.
std::string BadFileName(std::string_view name) {
  if (name.empty() || name.size() > kFileNameBytesMax) return "no path of a file";
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kFolderBytesMax ||
        part.find('\0') != std::string_view::npos) {
      return "no path of a file";
    }
    if (part.find(orbax::kTemporaryMark) != std::string_view::npos) {
      return "the path of a temporary file of Orbax's";
    }
    begin = end + 1;
  }
  return "";
}

// Files as another library wrote them. Names come from the disk: no file lies elsewhere, and none
// takes the place of another, or of the mark that a layout adds.
Status PlanFiles(std::span<const LeafRecord> leaves, size_t path_prefix, ExportItem* item,
                 ExportPlan* plan, ExportVerdicts* verdicts) {
  std::set<std::string> files;
  std::set<std::string> directories;
  for (const LeafRecord& leaf : leaves) {
    STEPWELL_ASSIGN_OR_RETURN(const format::LeafKey key, format::DecodeLeafKey(leaf.key));
    if (leaf.kind == format::LeafKind::kNode) continue;
    const std::string path = format::PathToText(key.path);
    if (path_prefix != 0 || key.path.size() != 1) {
      verdicts->Unsupported(StrCat(item->name, "/", path), "a part of an item of files");
      continue;
    }
    std::string name = key.path[0].name;
    const bool is_directory = leaf.value_type == format::ValueType::kNone && name.ends_with('/');
    if (is_directory) name.pop_back();
    std::string reason = BadFileName(name);
    if (reason.empty() && !is_directory && leaf.value_type != format::ValueType::kBytes) {
      reason = "not the bytes of a file";
    }
    if (!reason.empty() || name == orbax::kCommitSuccessName) {
      verdicts->Unsupported(StrCat(item->name, "/", path),
                            reason.empty() ? "a file that the export makes itself" : reason);
      continue;
    }
    for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
      directories.insert(name.substr(0, at));
    }
    if (is_directory) {
      directories.insert(name);
    } else {
      files.insert(name);
      item->files.push_back({name, &leaf});
    }
    ++plan->leaves;
  }
  for (const std::string& name : directories) {
    if (files.contains(name)) {
      verdicts->Unsupported(StrCat(item->name, "/", name), "both a file and a directory");
      return OkStatus();
    }
  }
  item->directories.assign(directories.begin(), directories.end());  // sorted: parents first
  return OkStatus();
}

// The step's texts: metadata, and metrics, which Orbax keeps in an item, too.
void PlanTexts(const format::StepRecord& step, ExportPlan* plan, ExportVerdicts* verdicts) {
  const auto take = [&](const char* what, const std::string& json, std::string* out) {
    if (json.empty()) return false;
    auto normal = orbax::NormalJsonObject(what, json);
    if (!normal.ok()) {
      verdicts->Unsupported(StrCat("the step's ", what), normal.status().message());
      return false;
    }
    *out = std::move(*normal);
    return true;
  };
  take("metadata", step.metadata_json, &plan->custom_metadata);
  if (!take("metrics", step.metrics_json, &plan->metrics)) return;
  for (const ExportItem& item : plan->items) {
    if (item.folder != orbax::kMetricsItem) continue;
    verdicts->Unsupported("the step's metrics", "there is an item \"metrics\", too");
    return;
  }
  ExportItem metrics;
  metrics.folder = metrics.name = orbax::kMetricsItem;
  metrics.json_file = orbax::kMetricsItem;
  metrics.json = plan->metrics;
  plan->items.push_back(std::move(metrics));
}

std::string PythonText(const orbax::Json& value) {
  std::string text;
  orbax::AppendPythonJson(value, &text);
  return text;
}

bool IsImported(const orbax::Json& value) {
  if (!value.is_object() || value.empty()) return false;
  for (const auto& [key, part] : value.items()) {
    if (key != kImportedRootKey && key != kImportedItemsKey) return false;
    if (!part.is_object()) return false;
  }
  return true;
}

void PlaceItems(orbax::Json* items, ExportPlan* plan) {
  for (ExportItem& item : plan->items) {
    const bool is_tree = item.is_tree() && item.json_file.empty();  // metrics are JSON, too
    if (!is_tree || !items->contains(item.name)) continue;
    item.tree.custom_metadata = PythonText((*items)[item.name]);
    items->erase(item.name);
  }
}

}  // namespace

Result<ExportPlan> PlanExport(const format::StepRecord& step, std::span<const LeafRecord> leaves,
                              const ExportOptions& options) {
  ExportPlan plan;
  plan.step = step.step;
  ExportVerdicts verdicts("Orbax", options.on_unsupported);
  size_t path_prefix = 0;
  if (!options.subtree_key.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(const auto key, format::DecodeLeafKey(options.subtree_key));
    path_prefix = key.path.size();
  }
  for (size_t begin = 0, end = 0; begin < leaves.size(); begin = end) {
    STEPWELL_ASSIGN_OR_RETURN(format::LeafKey key, format::DecodeLeafKey(leaves[begin].key));
    ExportItem item;
    item.name = item.folder = key.item;
    const std::string prefix = format::EncodeItem(key.item);
    while (end < leaves.size() && leaves[end].key.starts_with(prefix)) ++end;
    const auto records = leaves.subspan(begin, end - begin);
    if (std::string reason = BadFolder(item.folder); !reason.empty()) {
      verdicts.Unsupported(item.name, std::move(reason));
      continue;
    }
    const auto known = std::find_if(step.items.begin(), step.items.end(),
                                    [&](const auto& other) { return other.name == item.name; });
    if (known != step.items.end()) item.kind = known->kind;
    if (item.kind == format::ItemKind::kJson) {
      STEPWELL_RETURN_IF_ERROR(PlanJson(records, path_prefix, &item, &plan, &verdicts));
    } else if (item.kind == format::ItemKind::kFiles) {
      STEPWELL_RETURN_IF_ERROR(PlanFiles(records, path_prefix, &item, &plan, &verdicts));
    } else {
      ItemPlanner planner(options, path_prefix, &item, &plan, &verdicts);
      for (const LeafRecord& record : records) {
        STEPWELL_ASSIGN_OR_RETURN(key, format::DecodeLeafKey(record.key));
        STEPWELL_RETURN_IF_ERROR(planner.Add(record, key.path));
      }
      STEPWELL_RETURN_IF_ERROR(planner.Finish());
      Result<std::string> json = EncodeJsonItem(records, path_prefix);
      if (json.ok()) item.json = *std::move(json);
    }
    const bool has_files = !item.files.empty() || !item.directories.empty();
    if (!item.json_file.empty() || !item.tree.entries.empty() || has_files) {
      plan.items.push_back(std::move(item));
    } else if (!item.records.values.empty()) {
      plan.left_out.push_back(item.name);
    }
  }
  if (options.layout == ExportLayout::kV0 && options.unnamed_default && plan.items.size() == 1) {
    plan.items.front().folder = "default";
  }
  const bool nothing = plan.items.empty();
  PlanTexts(step, &plan, &verdicts);
  STEPWELL_RETURN_IF_ERROR(verdicts.Finish(&plan.skipped));
  if (nothing) return InvalidArgumentError("there is no leaf to export");
  return plan;
}

void PlaceImportedMetadata(bool makes_root, ExportPlan* plan) {
  auto parsed = orbax::ParseJson("metadata", plan->custom_metadata, orbax::JsonDialect::kPython);
  if (!parsed.ok() || !parsed->is_object()) return;
  // An import's is the last of these keys.
  std::string key(kImportedMetadataKey);
  while (parsed->contains(key) && parsed->contains(key + "_")) key.push_back('_');
  if (!parsed->contains(key) || !IsImported((*parsed)[key])) return;
  orbax::Json& imported = (*parsed)[key];
  if (imported.contains(kImportedItemsKey)) {
    orbax::Json& items = imported[kImportedItemsKey];
    PlaceItems(&items, plan);
    if (items.empty()) imported.erase(kImportedItemsKey);
  }
  if (makes_root && imported.contains(kImportedRootKey)) {
    plan->root_metadata = PythonText(imported[kImportedRootKey]);
    imported.erase(kImportedRootKey);
  }
  if (imported.empty()) parsed->erase(key);
  plan->custom_metadata = PythonText(*parsed);
}

Result<std::string> ExportStepName(uint64_t step, const ExportOptions& options) {
  std::string digits = std::to_string(step);
  const auto width = static_cast<size_t>(std::clamp(options.step_digits, 0, 20));
  if (digits.size() < width) digits.insert(0, width - digits.size(), '0');
  if (options.step_prefix.empty()) return digits;
  if (!BadFolder(options.step_prefix).empty()) {
    return InvalidArgumentError("the prefix of steps must be part of a directory's name");
  }
  return StrCat(options.step_prefix, options.step_prefix_verbatim ? "" : "_", digits);
}

}  // namespace stepwell::db
