// SPDX-License-Identifier: Apache-2.0
// _sharding: an object from leaves' names, in base64, to JSON in strings.
#include <kj/encoding.h>

#include <algorithm>
#include <map>

#include "format/orbax/json.h"
#include "format/orbax/orbax_files.h"

namespace stepwell::format::orbax {
namespace {

// A mesh: nested lists, and a list of (list of ...) names.
constexpr uint64_t kDevicesMax = uint64_t{1} << 20;

// URL-safe base64 with padding, which Orbax makes of leaves' names.
std::string EncodeBase64(std::string_view bytes) {
  const kj::String text = kj::encodeBase64Url(
      kj::arrayPtr(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()));
  std::string padded(text.begin(), text.size());
  padded.resize(AlignUp(padded.size(), 4), '=');
  return padded;
}

// Nothing when it is not what EncodeBase64 gives for some bytes.
std::optional<std::string> DecodeBase64(std::string text) {
  const std::string given = text;
  std::replace(text.begin(), text.end(), '-', '+');
  std::replace(text.begin(), text.end(), '_', '/');
  const auto decoded = kj::decodeBase64(kj::arrayPtr(text.data(), text.size()));
  std::string bytes(reinterpret_cast<const char*>(decoded.begin()), decoded.size());
  if (EncodeBase64(bytes) != given) return std::nullopt;
  return bytes;
}

// The devices below one index of each of the first `axis` axes, from `*next` on.
Json MeshJson(const NamedSharding& sharding, size_t axis, size_t* next) {
  if (axis == sharding.mesh_shape.size()) return {{"id", (*sharding.device_ids)[(*next)++]}};
  Json list = Json::array();
  for (uint64_t i = 0; i < sharding.mesh_shape[axis]; ++i) {
    list.push_back(MeshJson(sharding, axis + 1, next));
  }
  return list;
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
    return InvalidArgumentError(StrCat("a mesh of ", Counted(devices, "device", "devices")));
  }
  if (sharding.device_ids && sharding.device_ids->size() != devices) {
    return InvalidArgumentError(
        StrCat("a mesh of ", Counted(devices, "device", "devices"), " has ",
               Counted(sharding.device_ids->size(), "device id", "device ids")));
  }
  return OkStatus();
}

Result<std::string> ShardingJson(const SingleDeviceSharding& sharding) {
  STEPWELL_RETURN_IF_ERROR(CheckTexts({sharding.device}));
  return PythonJson({{"sharding_type", "SingleDeviceSharding"}, {"device_str", sharding.device}});
}

Result<std::string> ShardingJson(const NamedSharding& sharding) {
  STEPWELL_RETURN_IF_ERROR(CheckNamed(sharding));
  Json out = {{"sharding_type", "NamedSharding"},
              {"shape", sharding.mesh_shape},
              {"axis_names", sharding.axis_names}};
  if (!sharding.axis_types.empty()) out["axis_types"] = sharding.axis_types;
  Json& specs = out["partition_spec"] = Json::array();
  for (const NamedSharding::AxisSpec& spec : sharding.partition_spec) {
    if (spec.is_list || spec.mesh_axes.size() > 1) {
      specs.push_back(spec.mesh_axes);
    } else {
      specs.push_back(spec.mesh_axes.empty() ? Json() : Json(spec.mesh_axes[0]));
    }
  }
  if (sharding.device_ids) {
    size_t next = 0;
    out["device_mesh"]["mesh"] = MeshJson(sharding, 0, &next);
  }
  return PythonJson(out);
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
  STEPWELL_ASSIGN_OR_RETURN(sharding.mesh_shape, root.Extents("shape", 1));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode names, root.Member("axis_names"));
  STEPWELL_ASSIGN_OR_RETURN(sharding.axis_names, DecodeTexts(names));
  if (const auto types = root.FindValue("axis_types")) {
    STEPWELL_ASSIGN_OR_RETURN(sharding.axis_types, DecodeTexts(*types));
  }
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode spec, root.Member("partition_spec"));
  STEPWELL_ASSIGN_OR_RETURN(sharding.partition_spec, DecodePartitionSpec(spec));
  if (const auto devices = root.FindValue("device_mesh")) {
    STEPWELL_ASSIGN_OR_RETURN(const JsonNode mesh, devices->Member("mesh"));
    STEPWELL_RETURN_IF_ERROR(DecodeMesh(mesh, &sharding.device_ids.emplace()));
  }
  if (const Status status = CheckNamed(sharding); !status.ok()) return root.Error(status.message());
  return Sharding(std::move(sharding));
}

Result<Sharding> DecodeSharding(std::string_view place, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseJson(place, text, JsonDialect::kPython));
  const JsonNode root(place, json);
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view name, root.Text("sharding_type"));
  if (text == kReplicatedJson) return Sharding(ReplicatedSharding());
  if (name == "NamedSharding") return DecodeNamed(root);
  if (name == "SingleDeviceSharding") {
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view device, root.Text("device_str"));
    return Sharding(SingleDeviceSharding{std::string(device)});
  }
  return Sharding(UnknownSharding{PythonJson(json)});
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
