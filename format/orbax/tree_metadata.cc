// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/tree_metadata.h"

#include <algorithm>
#include <array>

#include "format/orbax/json.h"

namespace stepwell::format::orbax {
namespace {

struct ValueTypeInfo {
  ValueType type;
  std::string_view name;
  bool empty_node;
};
constexpr std::array<ValueTypeInfo, 9> kValueTypes = {{
    {ValueType::kJaxArray, "jax.Array", false},
    {ValueType::kNumpyArray, "np.ndarray", false},
    {ValueType::kScalar, "scalar", false},
    {ValueType::kString, "string", false},
    {ValueType::kNone, "None", true},
    {ValueType::kDict, "Dict", true},
    {ValueType::kList, "List", true},
    {ValueType::kTuple, "Tuple", true},
    {ValueType::kNamedTuple, "NamedTuple", true},
}};

const ValueTypeInfo& Info(ValueType type) { return kValueTypes[static_cast<size_t>(type)]; }

// repr() of the tuple of keys; readers take it for nothing but a unique key.
std::string TupleRepr(const std::vector<TreeKey>& keys) {
  std::string out = "(";
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0) out.append(", ");
    AppendPythonRepr(keys[i].text, &out);
  }
  return out.append(keys.size() == 1 ? ",)" : ")");
}

std::string_view BoolText(bool value) { return value ? "true" : "false"; }

void AppendEntry(const TreeEntry& entry, const std::string& repr, std::string* out) {
  AppendJsonString(repr, out);
  out->append(R"(: {"key_metadata": [)");
  std::string_view separator = "";
  for (const TreeKey& key : entry.keys) {
    out->append(separator).append(R"({"key": )");
    AppendJsonString(key.text, out);
    out->append(R"(, "key_type": )").append(std::to_string(static_cast<int>(key.type))).append("}");
    separator = ", ";
  }
  out->append(R"(], "value_metadata": {"value_type": )");
  AppendJsonString(ValueTypeName(entry.type), out);
  out->append(R"(, "skip_deserialize": )").append(BoolText(entry.skip_deserialize));
  if (entry.write_shape) {
    out->append(R"(, "write_shape": )");
    AppendJsonExtents(*entry.write_shape, out);
  }
  out->append("}}");
}

// The reprs of all entries' keys, which must differ.
Result<std::vector<std::string>> KeyReprs(const std::vector<TreeEntry>& entries) {
  std::vector<std::string> reprs;
  reprs.reserve(entries.size());
  for (const TreeEntry& entry : entries) {
    for (const TreeKey& key : entry.keys) {
      if (!IsUtf8(key.text)) {
        return InvalidArgumentError(StrCat("the key \"", Printable(key.text),
                                           "\" is not UTF-8: Orbax cannot name its leaf"));
      }
    }
    reprs.push_back(TupleRepr(entry.keys));
  }
  std::vector<std::string_view> sorted(reprs.begin(), reprs.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    return InvalidArgumentError(StrCat("two leaves have the path ", Printable(*twice)));
  }
  return reprs;
}

Result<std::vector<TreeKey>> DecodeKeys(const JsonNode& list) {
  STEPWELL_RETURN_IF_ERROR(list.CheckArray(kPathComponentsMax));
  std::vector<TreeKey> keys;
  keys.reserve(list.value().size());
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode element = list.At(i);
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, element.Text("key"));
    STEPWELL_ASSIGN_OR_RETURN(const JsonNode key_type, element.Member("key_type"));
    STEPWELL_ASSIGN_OR_RETURN(const uint64_t number, key_type.Unsigned(UINT64_MAX));
    if (number != 1 && number != 2) {
      return key_type.Unknown(StrCat("the type of key ", number, " is not known; 1 and 2 are"));
    }
    keys.push_back({std::string(text), static_cast<KeyType>(number)});
  }
  return keys;
}

Result<TreeEntry> DecodeEntry(const JsonNode& node) {
  TreeEntry entry;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode keys, node.Member("key_metadata"));
  STEPWELL_ASSIGN_OR_RETURN(entry.keys, DecodeKeys(keys));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode value, node.Member("value_metadata"));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode type, value.Member("value_type"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view name, type.Text());
  const auto info = std::find_if(kValueTypes.begin(), kValueTypes.end(),
                                 [name](const ValueTypeInfo& known) { return known.name == name; });
  if (info == kValueTypes.end()) {
    return type.Unknown(StrCat("values of type \"", Printable(name), "\" are not known"));
  }
  entry.type = info->type;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode skip, value.Member("skip_deserialize"));
  STEPWELL_ASSIGN_OR_RETURN(entry.skip_deserialize, skip.Bool());
  if (const std::optional<JsonNode> shape = value.FindValue("write_shape")) {
    STEPWELL_ASSIGN_OR_RETURN(entry.write_shape, shape->Extents(0));
  }
  return entry;
}

// Two entries of one path: Orbax makes one leaf of them, we cannot know which is meant.
Status CheckDistinct(const JsonNode& list, const std::vector<TreeEntry>& entries) {
  std::vector<const TreeEntry*> sorted;
  sorted.reserve(entries.size());
  for (const TreeEntry& entry : entries) sorted.push_back(&entry);
  const auto before = [](const TreeKey& a, const TreeKey& b) { return a.text < b.text; };
  std::sort(sorted.begin(), sorted.end(), [before](const TreeEntry* a, const TreeEntry* b) {
    return std::lexicographical_compare(a->keys.begin(), a->keys.end(), b->keys.begin(),
                                        b->keys.end(), before);
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const auto same = [](const TreeKey& a, const TreeKey& b) { return a.text == b.text; };
    if (std::equal(sorted[i]->keys.begin(), sorted[i]->keys.end(), sorted[i - 1]->keys.begin(),
                   sorted[i - 1]->keys.end(), same)) {
      return list.Error(
          StrCat("two entries for the leaf \"", Printable(ParamName(sorted[i]->keys)), "\""));
    }
  }
  return OkStatus();
}

Result<std::optional<bool>> OptionalBool(const JsonNode& parent, std::string_view key) {
  const std::optional<JsonNode> node = parent.FindValue(key);
  if (!node) return std::optional<bool>();
  STEPWELL_ASSIGN_OR_RETURN(const bool value, node->Bool());
  return std::optional<bool>(value);
}

}  // namespace

std::string_view ValueTypeName(ValueType type) { return Info(type).name; }
bool IsEmptyNode(ValueType type) { return Info(type).empty_node; }

Result<std::string> EncodeTreeMetadata(const TreeMetadata& tree) {
  if (tree.entries.empty()) {
    return InvalidArgumentError("Orbax saves no tree without leaves and empty nodes");
  }
  STEPWELL_ASSIGN_OR_RETURN(const std::vector<std::string> reprs, KeyReprs(tree.entries));
  STEPWELL_ASSIGN_OR_RETURN(const std::string custom,
                            CheckedUserJson("custom_metadata", tree.custom_metadata));
  std::string out = R"({"tree_metadata": {)";
  for (size_t i = 0; i < reprs.size(); ++i) {
    if (i > 0) out.append(", ");
    AppendEntry(tree.entries[i], reprs[i], &out);
  }
  out.append("}");
  const auto append_optional = [&out](std::string_view key, std::optional<bool> value) {
    out.append(StrCat(", \"", key, "\": ", value ? BoolText(*value) : "null"));
  };
  append_optional("use_ocdbt", tree.use_ocdbt);
  append_optional("use_zarr3", tree.use_zarr3);
  append_optional("store_array_data_equal_to_fill_value",
                  tree.store_array_data_equal_to_fill_value);
  out.append(R"(, "custom_metadata": )").append(custom);
  if (tree.value_metadata_tree) {
    if (!IsUtf8(*tree.value_metadata_tree)) {
      return InvalidArgumentError("value_metadata_tree is not UTF-8");
    }
    out.append(R"(, "value_metadata_tree": )");
    AppendJsonString(*tree.value_metadata_tree, &out);
  }
  return out.append("}");
}

Result<TreeMetadata> DecodeTreeMetadata(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kPython));
  const JsonNode root(file, json);
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode entries, root.Member("tree_metadata"));
  STEPWELL_RETURN_IF_ERROR(entries.CheckObject());
  TreeMetadata tree;
  tree.entries.reserve(entries.value().size());
  for (const auto& [key, value] : entries.value().get_ref<const Json::object_t&>()) {
    const JsonNode node = entries.Child(key, value);
    STEPWELL_ASSIGN_OR_RETURN(TreeEntry entry, DecodeEntry(node));
    tree.entries.push_back(std::move(entry));
  }
  STEPWELL_RETURN_IF_ERROR(CheckDistinct(entries, tree.entries));
  STEPWELL_ASSIGN_OR_RETURN(tree.use_ocdbt, OptionalBool(root, "use_ocdbt"));
  STEPWELL_ASSIGN_OR_RETURN(const std::optional<bool> zarr3, OptionalBool(root, "use_zarr3"));
  tree.use_zarr3 = zarr3.value_or(false);
  STEPWELL_ASSIGN_OR_RETURN(tree.store_array_data_equal_to_fill_value,
                            OptionalBool(root, "store_array_data_equal_to_fill_value"));
  if (const std::optional<JsonNode> custom = root.Find("custom_metadata")) {
    tree.custom_metadata = PythonJson(custom->value());
  }
  if (root.FindValue("value_metadata_tree")) {
    STEPWELL_ASSIGN_OR_RETURN(tree.value_metadata_tree, root.Text("value_metadata_tree"));
  }
  return tree;
}

}  // namespace stepwell::format::orbax
