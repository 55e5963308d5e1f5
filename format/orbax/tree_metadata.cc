// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/tree_metadata.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "format/orbax/json.h"

namespace stepwell::format::orbax {
namespace {

struct ValueTypeInfo {
  OrbaxType type;
  std::string_view name;
  bool empty_node;
};
constexpr std::array<ValueTypeInfo, 9> kValueTypes = {{
    {OrbaxType::kJaxArray, "jax.Array", false},
    {OrbaxType::kNumpyArray, "np.ndarray", false},
    {OrbaxType::kScalar, "scalar", false},
    {OrbaxType::kString, "string", false},
    {OrbaxType::kNone, "None", true},
    {OrbaxType::kDict, "Dict", true},
    {OrbaxType::kList, "List", true},
    {OrbaxType::kTuple, "Tuple", true},
    {OrbaxType::kNamedTuple, "NamedTuple", true},
}};

const ValueTypeInfo& Info(OrbaxType type) { return kValueTypes[static_cast<size_t>(type)]; }

// repr() of the tuple of keys; readers take it for nothing but a unique key.
std::string TupleRepr(const std::vector<TreeKey>& keys) {
  std::string out = "(";
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0) out.append(", ");
    AppendPythonRepr(keys[i].text, &out);
  }
  return out.append(keys.size() == 1 ? ",)" : ")");
}

// Written as text, without a Json of each part: checkpoints have a million of these.
void AppendEntry(const TreeEntry& entry, std::string* out) {
  out->append(R"({"key_metadata": [)");
  std::string_view separator = "";
  for (const TreeKey& key : entry.keys) {
    out->append(separator).append(R"({"key": )");
    AppendJsonString(key.text, out);
    out->append(R"(, "key_type": )").append(std::to_string(static_cast<int>(key.type)));
    out->push_back('}');
    separator = ", ";
  }
  out->append(R"(], "value_metadata": {"value_type": )");
  AppendJsonString(OrbaxTypeName(entry.type), out);
  out->append(R"(, "skip_deserialize": )").append(entry.skip_deserialize ? "true" : "false");
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

Result<TreeKey> ToTreeKey(const PathComponent& component) {
  switch (component.type) {
    case PathComponent::Type::kIndex:
      return TreeKey{std::to_string(component.number), KeyType::kSequence};
    case PathComponent::Type::kIntKey:
      return TreeKey{std::to_string(component.number), KeyType::kDict};
    case PathComponent::Type::kKey:
    case PathComponent::Type::kAttribute:
    case PathComponent::Type::kLiteral:
      if (IsUtf8(component.name)) return TreeKey{component.name, KeyType::kDict};
  }
  return InvalidArgumentError(StrCat("the key \"", Printable(component.name),
                                     "\" is not UTF-8: Orbax cannot name its leaves; rename it"));
}

}  // namespace

Result<std::vector<TreeKey>> TreeKeys(const KeyPath& path) {
  std::vector<TreeKey> keys;
  keys.reserve(path.size());
  for (const PathComponent& component : path) {
    STEPWELL_ASSIGN_OR_RETURN(TreeKey key, ToTreeKey(component));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<KeyPath> PathOfTreeKeys(std::span<const TreeKey> keys) {
  KeyPath path;
  path.reserve(keys.size());
  for (const TreeKey& key : keys) {
    if (key.type == KeyType::kDict) {
      path.push_back(PathComponent::Key(key.text));
      continue;
    }
    int64_t index = 0;
    const char* const end = key.text.data() + key.text.size();
    const auto [stop, error] = std::from_chars(key.text.data(), end, index);
    if (error != std::errc() || stop != end || index < 0) {
      return DataLossError(StrCat("\"", Printable(key.text), "\" is not a list index"));
    }
    path.push_back(PathComponent::Index(index));
  }
  return path;
}

std::string ParamName(std::span<const TreeKey> keys) {
  std::string name;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0) name.push_back('.');
    name.append(keys[i].text);
  }
  return name;
}

std::string StoreKey(std::string_view param_name, std::string_view zarr_key) {
  if (param_name.empty() || param_name == "/") return std::string(zarr_key);
  return StrCat(param_name, param_name.ends_with('/') ? "" : "/", zarr_key);
}

std::vector<NameCollision> FindNameCollisions(std::span<const std::string> names) {
  std::vector<std::string> prefixes;
  prefixes.reserve(names.size());
  for (const std::string& name : names) prefixes.push_back(StoreKey(name, ""));
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&prefixes](size_t a, size_t b) { return prefixes[a] < prefixes[b]; });
  std::vector<NameCollision> found;
  for (size_t start = 0, end = 0; start < order.size(); start = end) {
    const std::string& prefix = prefixes[order[start]];
    while (end < order.size() && prefixes[order[end]] == prefix) ++end;
    if (end - start < 2) continue;
    const auto from = order.begin();
    found.push_back({names[order[start]],
                     {from + static_cast<ptrdiff_t>(start), from + static_cast<ptrdiff_t>(end)}});
  }
  return found;
}

Status CheckStringName(std::string_view name) {
  if (name.find('~') != std::string_view::npos) {
    return InvalidArgumentError(
        StrCat("the string leaf \"", Printable(name),
               "\" has a \"~\" in its name, with which Orbax saves no strings; rename it"));
  }
  // Every "/" is a level of _strings.json.
  const auto slashes = static_cast<size_t>(std::count(name.begin(), name.end(), '/'));
  if (slashes >= kJsonDepthMax) {
    return InvalidArgumentError(StrCat("the string leaf \"", Printable(name), "\" has ", slashes,
                                       " \"/\" in its name, more than ", kJsonDepthMax - 1));
  }
  return OkStatus();
}

std::string_view OrbaxTypeName(OrbaxType type) { return Info(type).name; }
bool IsEmptyNode(OrbaxType type) { return Info(type).empty_node; }

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
    AppendJsonString(reprs[i], &out);
    out.append(": ");
    AppendEntry(tree.entries[i], &out);
  }
  out.append("}");
  const auto append_optional = [&out](std::string_view key, std::optional<bool> value) {
    out.append(StrCat(", \"", key, "\": ", PythonJson(value ? Json(*value) : Json())));
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
