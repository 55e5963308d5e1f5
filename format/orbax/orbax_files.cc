// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/orbax_files.h"

#include <algorithm>
#include <array>

#include "format/orbax/json.h"
#include "format/orbax/tree_metadata.h"

namespace stepwell::format::orbax {
namespace {

constexpr std::array<HandlerInfo, 7> kHandlers = {{
    {kStandardHandler, HandlerKind::kPyTree, ""},
    {"orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler",
     HandlerKind::kPyTree, ""},
    {"orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler",
     HandlerKind::kPyTree, ""},
    {"orbax.checkpoint._src.handlers.array_checkpoint_handler.ArrayCheckpointHandler",
     HandlerKind::kArray, ""},
    {kJsonHandler, HandlerKind::kJson, "metadata"},
    {kV1JsonHandler, HandlerKind::kJson, "data.json"},
    {"orbax.checkpoint.experimental.v1._src.handlers.json_handler.MetricsHandler",
     HandlerKind::kJson, "metrics"},
}};

constexpr std::string_view kCommitText = "Checkpoint commit was successful to ";

Status CheckUtf8(std::string_view what, std::string_view text) {
  if (IsUtf8(text)) return OkStatus();
  return InvalidArgumentError(StrCat(what, " \"", Printable(text), "\" is not UTF-8"));
}

// Checks that the caller's text is a JSON object and spells it as json.dumps does.
Result<std::string> CheckedObject(std::string_view what, std::string_view text) {
  Result<std::string> normal = NormalJsonObject(what, text);
  if (!normal.ok()) return InvalidArgumentError(normal.status().message());
  return normal;
}

// An object that may be absent or null: then {}.
Result<std::string> OptionalObject(const JsonNode& parent, std::string_view key) {
  const std::optional<JsonNode> node = parent.FindValue(key);
  if (!node) return std::string("{}");
  STEPWELL_RETURN_IF_ERROR(node->CheckObject());
  return PythonJson(node->value());
}

Result<std::optional<int64_t>> OptionalTime(const JsonNode& parent, std::string_view key) {
  const std::optional<JsonNode> node = parent.FindValue(key);
  if (!node) return std::optional<int64_t>();
  STEPWELL_ASSIGN_OR_RETURN(const int64_t time_ns, node->Signed());
  return std::optional<int64_t>(time_ns);
}

Result<LeafArrayMetadata> DecodeArrayMetadata(const JsonNode& element) {
  LeafArrayMetadata leaf;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, element.Member("array_metadata"));
  STEPWELL_ASSIGN_OR_RETURN(leaf.param_name, node.Text("param_name"));
  STEPWELL_ASSIGN_OR_RETURN(leaf.write_shape, node.Extents("write_shape", 0));
  STEPWELL_ASSIGN_OR_RETURN(leaf.chunk_shape, node.Extents("chunk_shape", 0));
  const std::optional<JsonNode> ext = node.FindValue("ext_metadata");
  if (!ext) return leaf;
  STEPWELL_RETURN_IF_ERROR(ext->CheckObject());
  if (ext->Find("random_key_impl")) {
    STEPWELL_ASSIGN_OR_RETURN(leaf.random_key_impl, ext->Text("random_key_impl"));
  }
  return leaf;
}

// Adds a leaf to the nested objects of _strings.json, one level for each "/".
Status AddString(const LeafString& leaf, nlohmann::json* root) {
  STEPWELL_RETURN_IF_ERROR(CheckUtf8("the name of the leaf", leaf.param_name));
  STEPWELL_RETURN_IF_ERROR(CheckStringName(leaf.param_name));
  if (!IsUtf8(leaf.text)) {
    return InvalidArgumentError(StrCat("the text of the leaf \"", Printable(leaf.param_name),
                                       "\" is not UTF-8: Orbax cannot save it"));
  }
  nlohmann::json* level = root;
  std::string_view left = leaf.param_name;
  for (size_t slash = left.find('/'); slash != std::string_view::npos; slash = left.find('/')) {
    nlohmann::json& next = (*level)[std::string(left.substr(0, slash))];
    if (next.is_null()) next = nlohmann::json::object();
    level = &next;
    left.remove_prefix(slash + 1);
    if (!level->is_object()) break;
  }
  if (level->is_object()) {
    nlohmann::json& place = (*level)[std::string(left)];
    if (place.is_null()) {
      place = leaf.text;
      return OkStatus();
    }
  }
  return InvalidArgumentError(StrCat("the string leaf \"", Printable(leaf.param_name),
                                     "\" and another are named alike up to a \"/\", so that "
                                     "Orbax cannot save both; rename one"));
}

Status CollectStrings(const JsonNode& node, const std::string& prefix,
                      std::vector<LeafString>* leaves) {
  STEPWELL_RETURN_IF_ERROR(node.CheckObject());
  for (const auto& [key, value] : node.value().get_ref<const Json::object_t&>()) {
    const JsonNode child = node.Child(key, value);
    if (key.find('/') != std::string::npos) {
      return child.Error("a key with \"/\": names with it are nested");
    }
    if (value.is_object()) {
      STEPWELL_RETURN_IF_ERROR(CollectStrings(child, prefix + key + "/", leaves));
    } else {
      STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, child.Text());
      leaves->push_back({prefix + key, std::string(text)});
    }
  }
  return OkStatus();
}

Result<Json> HandlersJson(const CheckpointMetadata& metadata) {
  if (const auto* type = std::get_if<std::string>(&metadata.handlers)) {
    STEPWELL_RETURN_IF_ERROR(CheckUtf8("the handler", *type));
    return Json(*type);
  }
  const auto* items = std::get_if<std::vector<ItemHandler>>(&metadata.handlers);
  if (items == nullptr) return Json();
  Json out = Json::object();
  for (const ItemHandler& item : *items) {
    STEPWELL_RETURN_IF_ERROR(CheckUtf8("the item", item.item));
    if (item.type) STEPWELL_RETURN_IF_ERROR(CheckUtf8("the handler", *item.type));
    if (out.contains(item.item)) {
      return InvalidArgumentError(StrCat("the item \"", Printable(item.item), "\" twice"));
    }
    out[item.item] = item.type ? Json(*item.type) : Json();
  }
  return out;
}

Status DecodeHandlers(const JsonNode& node, CheckpointMetadata* metadata) {
  if (node.value().is_null()) return OkStatus();
  if (node.value().is_string()) {
    metadata->handlers = node.value().get_ref<const std::string&>();
    return OkStatus();
  }
  STEPWELL_RETURN_IF_ERROR(node.CheckObject());
  std::vector<ItemHandler> items;
  for (const auto& [key, value] : node.value().get_ref<const Json::object_t&>()) {
    const JsonNode child = node.Child(key, value);
    ItemHandler item{key, std::nullopt};
    if (!value.is_null()) {
      STEPWELL_ASSIGN_OR_RETURN(const std::string_view type, child.Text());
      item.type = type;
    }
    items.push_back(std::move(item));
  }
  metadata->handlers = std::move(items);
  return OkStatus();
}

std::string TimeJson(std::optional<int64_t> time_ns) {
  return time_ns ? std::to_string(*time_ns) : "null";
}

}  // namespace

Result<std::string> EncodeArrayMetadatas(const std::vector<LeafArrayMetadata>& leaves) {
  std::string out = R"({"array_metadatas": [)";
  std::string_view separator = "";
  for (const LeafArrayMetadata& leaf : leaves) {
    STEPWELL_RETURN_IF_ERROR(CheckUtf8("the name of the leaf", leaf.param_name));
    out.append(separator).append(R"({"array_metadata": {"param_name": )");
    AppendJsonString(leaf.param_name, &out);
    out.append(R"(, "write_shape": )");
    AppendJsonExtents(leaf.write_shape, &out);
    out.append(R"(, "chunk_shape": )");
    AppendJsonExtents(leaf.chunk_shape, &out);
    out.append(R"(, "ext_metadata": )");
    if (leaf.random_key_impl) {
      STEPWELL_RETURN_IF_ERROR(CheckUtf8("the random key's type", *leaf.random_key_impl));
      out.append(R"({"random_key_impl": )");
      AppendJsonString(*leaf.random_key_impl, &out);
      out.append("}}}");
    } else {
      out.append("null}}");
    }
    separator = ", ";
  }
  return out.append("]}");
}

Result<std::vector<LeafArrayMetadata>> DecodeArrayMetadatas(std::string_view file,
                                                            std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kPython));
  const JsonNode root(file, json);
  STEPWELL_RETURN_IF_ERROR(root.CheckObject());
  std::vector<LeafArrayMetadata> leaves;
  const std::optional<JsonNode> list = root.Find("array_metadatas");
  if (!list) return leaves;
  STEPWELL_RETURN_IF_ERROR(list->CheckArray(SIZE_MAX));
  leaves.reserve(list->value().size());
  for (size_t i = 0; i < list->value().size(); ++i) {
    const JsonNode element = list->At(i);
    STEPWELL_ASSIGN_OR_RETURN(LeafArrayMetadata leaf, DecodeArrayMetadata(element));
    leaves.push_back(std::move(leaf));
  }
  return leaves;
}

Result<std::string> EncodeStrings(const std::vector<LeafString>& leaves) {
  nlohmann::json root = nlohmann::json::object();  // sorted, as TensorStore has it
  for (const LeafString& leaf : leaves) STEPWELL_RETURN_IF_ERROR(AddString(leaf, &root));
  return root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<std::vector<LeafString>> DecodeStrings(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kStrict));
  const JsonNode root(file, json);
  std::vector<LeafString> leaves;
  STEPWELL_RETURN_IF_ERROR(CollectStrings(root, "", &leaves));
  return leaves;
}

const HandlerInfo* FindHandler(std::string_view type) {
  const auto found = std::find_if(kHandlers.begin(), kHandlers.end(),
                                  [type](const HandlerInfo& info) { return info.type == type; });
  return found == kHandlers.end() ? nullptr : &*found;
}

Result<std::string> EncodeCheckpointMetadata(const CheckpointMetadata& metadata) {
  STEPWELL_ASSIGN_OR_RETURN(const Json handlers, HandlersJson(metadata));
  STEPWELL_ASSIGN_OR_RETURN(const std::string metrics, CheckedObject("metrics", metadata.metrics));
  STEPWELL_ASSIGN_OR_RETURN(const std::string performance,
                            CheckedObject("performance_metrics", metadata.performance_metrics));
  STEPWELL_ASSIGN_OR_RETURN(const std::string custom,
                            CheckedObject("custom_metadata", metadata.custom_metadata));
  return StrCat(R"({"item_handlers": )", PythonJson(handlers), R"(, "metrics": )", metrics,
                R"(, "performance_metrics": )", performance, R"(, "init_timestamp_nsecs": )",
                TimeJson(metadata.init_time_ns), R"(, "commit_timestamp_nsecs": )",
                TimeJson(metadata.commit_time_ns), R"(, "custom_metadata": )", custom, "}");
}

Result<CheckpointMetadata> DecodeCheckpointMetadata(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kPython));
  const JsonNode root(file, json);
  STEPWELL_RETURN_IF_ERROR(root.CheckObject());
  CheckpointMetadata metadata;
  if (const std::optional<JsonNode> handlers = root.Find("item_handlers")) {
    STEPWELL_RETURN_IF_ERROR(DecodeHandlers(*handlers, &metadata));
  }
  STEPWELL_ASSIGN_OR_RETURN(metadata.metrics, OptionalObject(root, "metrics"));
  STEPWELL_ASSIGN_OR_RETURN(metadata.performance_metrics,
                            OptionalObject(root, "performance_metrics"));
  STEPWELL_ASSIGN_OR_RETURN(metadata.init_time_ns, OptionalTime(root, "init_timestamp_nsecs"));
  STEPWELL_ASSIGN_OR_RETURN(metadata.commit_time_ns, OptionalTime(root, "commit_timestamp_nsecs"));
  STEPWELL_ASSIGN_OR_RETURN(metadata.custom_metadata, OptionalObject(root, "custom_metadata"));
  return metadata;
}

Result<std::string> EncodeRootMetadata(const RootMetadata& metadata) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string internal,
                            CheckedObject("internal_metadata", metadata.internal_metadata));
  STEPWELL_ASSIGN_OR_RETURN(const std::string custom,
                            CheckedObject("custom_metadata", metadata.custom_metadata));
  return StrCat(R"({"internal_metadata": )", internal, R"(, "custom_metadata": )", custom, "}");
}

Result<RootMetadata> DecodeRootMetadata(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kPython));
  const JsonNode root(file, json);
  STEPWELL_RETURN_IF_ERROR(root.CheckObject());
  RootMetadata metadata;
  STEPWELL_ASSIGN_OR_RETURN(metadata.internal_metadata, OptionalObject(root, "internal_metadata"));
  STEPWELL_ASSIGN_OR_RETURN(metadata.custom_metadata, OptionalObject(root, "custom_metadata"));
  return metadata;
}

std::string EncodeCommitSuccess(std::string_view path) { return StrCat(kCommitText, path); }

}  // namespace stepwell::format::orbax
