// SPDX-License-Identifier: Apache-2.0
// _sharding: an object from leaves' names, in base64, to JSON in strings.
#include <algorithm>
#include <map>

#include "format/orbax/base64.h"
#include "format/orbax/json.h"
#include "format/orbax/orbax_files.h"

namespace stepwell::format::orbax {
namespace {

// A mesh: nested lists, and a list of (list of ...) names.
constexpr uint64_t kDevicesMax = uint64_t{1} << 20;

void AppendTexts(const std::vector<std::string>& texts, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) out->append(", ");
    AppendJsonString(texts[i], out);
  }
  out->push_back(']');
}

// The devices below one index of each of the first `axis` axes, from `*next` on.
void AppendMesh(const NamedSharding& sharding, size_t axis, size_t* next, std::string* out) {
  if (axis == sharding.mesh_shape.size()) {
    out->append(StrCat(R"({"id": )", (*sharding.device_ids)[(*next)++], "}"));
    return;
  }
  out->push_back('[');
  for (uint64_t i = 0; i < sharding.mesh_shape[axis]; ++i) {
    if (i > 0) out->append(", ");
    AppendMesh(sharding, axis + 1, next, out);
  }
  out->push_back(']');
}

Status CheckTexts(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (!IsUtf8(text))
      return InvalidArgumentError(StrCat("\"", Printable(text), "\" is not UTF-8"));
  }
  return OkStatus();
}

Status CheckNamed(const NamedSharding& sharding) {
  if (sharding.axis_names.size() != sharding.mesh_shape.size()) {
    return InvalidArgumentError("a mesh has one name for each axis");
  }
  STEPWELL_RETURN_IF_ERROR(CheckTexts(sharding.axis_names));
  STEPWELL_RETURN_IF_ERROR(CheckTexts(sharding.axis_types));
  for (const NamedSharding::AxisSpec& spec : sharding.partition_spec) {
    STEPWELL_RETURN_IF_ERROR(CheckTexts(spec.mesh_axes));
  }
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t devices, ElementCount(sharding.mesh_shape, 1));
  if (devices == 0 || devices > kDevicesMax) {
    return InvalidArgumentError(StrCat("a mesh of ", devices, " devices"));
  }
  if (sharding.device_ids && sharding.device_ids->size() != devices) {
    return InvalidArgumentError(
        StrCat("a mesh of ", devices, " devices has ", sharding.device_ids->size(), " device ids"));
  }
  return OkStatus();
}

Result<std::string> ShardingJson(const SingleDeviceSharding& sharding) {
  STEPWELL_RETURN_IF_ERROR(CheckTexts({sharding.device}));
  std::string out = R"({"sharding_type": "SingleDeviceSharding", "device_str": )";
  AppendJsonString(sharding.device, &out);
  return out.append("}");
}

Result<std::string> ShardingJson(const NamedSharding& sharding) {
  STEPWELL_RETURN_IF_ERROR(CheckNamed(sharding));
  std::string out = R"({"sharding_type": "NamedSharding", "shape": )";
  AppendJsonExtents(sharding.mesh_shape, &out);
  out.append(R"(, "axis_names": )");
  AppendTexts(sharding.axis_names, &out);
  if (!sharding.axis_types.empty()) {
    out.append(R"(, "axis_types": )");
    AppendTexts(sharding.axis_types, &out);
  }
  out.append(R"(, "partition_spec": [)");
  std::string_view separator = "";
  for (const NamedSharding::AxisSpec& spec : sharding.partition_spec) {
    out.append(separator);
    if (spec.is_list || spec.mesh_axes.size() > 1) {
      AppendTexts(spec.mesh_axes, &out);
    } else if (spec.mesh_axes.empty()) {
      out.append("null");
    } else {
      AppendJsonString(spec.mesh_axes[0], &out);
    }
    separator = ", ";
  }
  out.append("]");
  if (sharding.device_ids) {
    out.append(R"(, "device_mesh": {"mesh": )");
    size_t next = 0;
    AppendMesh(sharding, 0, &next, &out);
    out.append("}");
  }
  return out.append("}");
}

constexpr std::string_view kReplicatedJson =
    R"({"sharding_type": "NamedSharding", "shape": [-1], "axis_names": ["devices"], )"
    R"("partition_spec": []})";

Result<std::string> ShardingJson(const ReplicatedSharding&) { return std::string(kReplicatedJson); }

Result<std::string> ShardingJson(const UnknownSharding& sharding) {
  return CheckedUserJson("sharding", sharding.json);
}

Result<std::vector<std::string>> DecodeTexts(const JsonNode& list) {
  STEPWELL_RETURN_IF_ERROR(list.CheckArray(kRankMax));
  std::vector<std::string> texts;
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode element = list.At(i);
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, element.Text());
    texts.emplace_back(text);
  }
  return texts;
}

Result<std::vector<NamedSharding::AxisSpec>> DecodePartitionSpec(const JsonNode& list) {
  STEPWELL_RETURN_IF_ERROR(list.CheckArray(kRankMax));
  std::vector<NamedSharding::AxisSpec> specs;
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode element = list.At(i);
    NamedSharding::AxisSpec spec;
    if (element.value().is_array()) {
      STEPWELL_ASSIGN_OR_RETURN(spec.mesh_axes, DecodeTexts(element));
      spec.is_list = spec.mesh_axes.size() < 2;
    } else if (!element.value().is_null()) {
      STEPWELL_ASSIGN_OR_RETURN(const std::string_view axis, element.Text());
      spec.mesh_axes.emplace_back(axis);
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

// Nested lists of {"id": n}, as deep as they are: Orbax reshapes them.
Status DecodeMesh(const JsonNode& node, std::vector<int64_t>* ids) {
  if (node.value().is_object()) {
    STEPWELL_ASSIGN_OR_RETURN(const JsonNode id, node.Member("id"));
    STEPWELL_ASSIGN_OR_RETURN(const int64_t number, id.Signed());
    ids->push_back(number);
    return OkStatus();
  }
  STEPWELL_RETURN_IF_ERROR(node.CheckArray(kDevicesMax));
  for (size_t i = 0; i < node.value().size(); ++i) {
    const JsonNode element = node.At(i);
    STEPWELL_RETURN_IF_ERROR(DecodeMesh(element, ids));
  }
  return OkStatus();
}

Result<Sharding> DecodeNamed(const JsonNode& root) {
  NamedSharding sharding;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode shape, root.Member("shape"));
  STEPWELL_ASSIGN_OR_RETURN(sharding.mesh_shape, shape.Extents(1));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode names, root.Member("axis_names"));
  STEPWELL_ASSIGN_OR_RETURN(sharding.axis_names, DecodeTexts(names));
  if (const auto types = root.Find("axis_types"); types && !types->value().is_null()) {
    STEPWELL_ASSIGN_OR_RETURN(sharding.axis_types, DecodeTexts(*types));
  }
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode spec, root.Member("partition_spec"));
  STEPWELL_ASSIGN_OR_RETURN(sharding.partition_spec, DecodePartitionSpec(spec));
  if (const auto devices = root.Find("device_mesh"); devices && !devices->value().is_null()) {
    STEPWELL_ASSIGN_OR_RETURN(const JsonNode mesh, devices->Member("mesh"));
    STEPWELL_RETURN_IF_ERROR(DecodeMesh(mesh, &sharding.device_ids.emplace()));
  }
  if (const Status status = CheckNamed(sharding); !status.ok()) return root.Error(status.message());
  return Sharding(std::move(sharding));
}

Result<Sharding> DecodeSharding(std::string_view place, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(place, text, JsonDialect::kPython));
  const JsonNode root(place, json);
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode type, root.Member("sharding_type"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view name, type.Text());
  if (text == kReplicatedJson) return Sharding(ReplicatedSharding());
  if (name == "NamedSharding") return DecodeNamed(root);
  if (name == "SingleDeviceSharding") {
    STEPWELL_ASSIGN_OR_RETURN(const JsonNode device, root.Member("device_str"));
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view device_name, device.Text());
    return Sharding(SingleDeviceSharding{std::string(device_name)});
  }
  UnknownSharding unknown;
  AppendPythonJson(json, &unknown.json);
  return Sharding(std::move(unknown));
}

}  // namespace

Result<std::string> EncodeSharding(const Sharding& sharding) {
  return std::visit([](const auto& kind) { return ShardingJson(kind); }, sharding);
}

Result<std::string> EncodeShardings(const std::vector<LeafSharding>& leaves) {
  std::map<std::string, std::string> members;
  for (const LeafSharding& leaf : leaves) {
    const Result<std::string> json = EncodeSharding(leaf.sharding);
    const std::string name =
        StrCat("the sharding of the leaf \"", Printable(leaf.param_name), "\"");
    if (!json.ok()) return json.status().WithContext(name);
    if (!IsUtf8(leaf.param_name)) return InvalidArgumentError(StrCat(name, ": not UTF-8"));
    if (!members.emplace(EncodeBase64(leaf.param_name), *json).second) {
      return InvalidArgumentError(StrCat(name, " is there twice"));
    }
  }
  std::string out = "{";
  for (const auto& [key, json] : members) {
    if (out.size() > 1) out.push_back(',');
    out.append(StrCat("\"", key, "\":"));
    AppendJsonStringUtf8(json, &out);
  }
  return out.append("}");
}

Result<std::vector<LeafSharding>> DecodeShardings(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(file, text, JsonDialect::kStrict));
  const JsonNode root(file, json);
  STEPWELL_RETURN_IF_ERROR(root.CheckObject());
  std::vector<LeafSharding> leaves;
  leaves.reserve(json.size());
  for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) {
    const JsonNode node = root.Child(key, value);
    const std::optional<std::string> name = DecodeBase64(key);
    if (!name || !IsUtf8(*name)) return node.Error("the key is not a leaf's name in base64");
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view inner, node.Text());
    const std::string place = StrCat(file, ": the leaf \"", Printable(*name), "\"");
    STEPWELL_ASSIGN_OR_RETURN(Sharding sharding, DecodeSharding(place, inner));
    leaves.push_back({*name, std::move(sharding)});
  }
  return leaves;
}

}  // namespace stepwell::format::orbax
