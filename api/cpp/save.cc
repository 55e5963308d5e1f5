// SPDX-License-Identifier: Apache-2.0
// A public request into the engine's: keys, records, and the containers that the paths imply.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "api/cpp/core.h"
#include "format/key.h"
#include "io/bytes.h"

namespace stepwell {
namespace {

using format::ContainerKind;
using format::LeafKind;

// A container, as far as the paths below it tell.
struct Container {
  uint64_t children = 0;
  bool only_indices = true;
  bool only_keys = true;
  int64_t index_max = -1;

  void Add(const PathComponent& child) {
    ++children;
    only_indices = only_indices && child.type == PathComponent::Type::kIndex;
    only_keys = only_keys && child.type != PathComponent::Type::kIndex &&
                child.type != PathComponent::Type::kAttribute;
    if (only_indices) index_max = std::max(index_max, child.number);
  }
  ContainerKind Kind() const {
    if (only_indices && static_cast<uint64_t>(index_max) + 1 == children) {
      return ContainerKind::kList;
    }
    return only_keys || only_indices ? ContainerKind::kDict : ContainerKind::kObject;
  }
};

// One item under construction.
class ItemBuilder {
 public:
  explicit ItemBuilder(std::string name) { item_.name = std::move(name); }

  Status Add(KeyPath path, db::LeafInput leaf) {
    STEPWELL_ASSIGN_OR_RETURN(leaf.record.key, format::EncodeLeafKey(item_.name, path));
    item_.leaves.push_back(std::move(leaf));
    while (!path.empty()) {
      const PathComponent child = std::move(path.back());
      path.pop_back();
      STEPWELL_ASSIGN_OR_RETURN(std::string key, format::EncodeLeafKey(item_.name, path));
      const auto [container, is_new] = containers_.try_emplace(std::move(key));
      // A second leaf at one place counts twice here; the engine refuses it.
      container->second.Add(child);
      if (!is_new) break;
    }
    return OkStatus();
  }

  Result<db::ItemInput> Finish() {
    for (const db::LeafInput& leaf : item_.leaves) {
      if (containers_.contains(leaf.record.key)) {
        return InvalidArgumentError("a leaf is here, and there are leaves below it")
            .WithContext(NameOf(leaf.record.key));
      }
    }
    for (const auto& [key, container] : containers_) {
      db::LeafInput& node = item_.leaves.emplace_back();
      node.record.key = key;
      node.record.kind = LeafKind::kNode;
      node.record.container = container.Kind();
      node.record.child_count = container.children;
    }
    return std::move(item_);
  }

 private:
  std::string NameOf(const std::string& key) const {
    const auto decoded = format::DecodeLeafKey(key);
    return StrCat("item '", item_.name, "', path \"", decoded.ok() ? PathToText(decoded->path) : "",
                  "\"");
  }

  db::ItemInput item_;
  std::unordered_map<std::string, Container> containers_;
};

Result<db::LeafInput> LeafFrom(std::variant<ArrayView, Value> data) {
  db::LeafInput leaf;
  if (auto* array = std::get_if<ArrayView>(&data)) {
    leaf.record.kind = LeafKind::kArray;
    leaf.record.value_type = format::ValueType::kNumpyArray;
    leaf.record.dtype = array->dtype;
    leaf.record.shape = std::move(array->shape);
    leaf.data = static_cast<const std::byte*>(array->data);
    leaf.strides_bytes = std::move(array->strides_bytes);
    leaf.shard_shape = std::move(array->shard_shape);
    leaf.hold = std::move(array->hold);
    for (ArrayShard& shard : array->shards) {
      leaf.shards.push_back({std::move(shard.origin), std::move(shard.shape),
                             static_cast<const std::byte*>(shard.data),
                             std::move(shard.strides_bytes)});
    }
    leaf.chunk_bytes_max = array->chunk_bytes_max;
    leaf.chunk_axes = std::move(array->chunk_axes);
    if (FindDType(array->dtype) == nullptr) {
      return InvalidArgumentError(
          StrCat("dtype number ", static_cast<int>(array->dtype), " is not known"));
    }
    if (!leaf.strides_bytes.empty() && leaf.strides_bytes.size() != leaf.record.shape.size()) {
      return InvalidArgumentError(StrCat(Counted(leaf.strides_bytes.size(), "stride", "strides"),
                                         " for ",
                                         Counted(leaf.record.shape.size(), "axis", "axes")));
    }
    if (!leaf.shard_shape.empty() && leaf.shard_shape.size() != leaf.record.shape.size()) {
      return InvalidArgumentError(StrCat(Counted(leaf.shard_shape.size(), "axis", "axes"),
                                         " of a shard for ", leaf.record.shape.size(),
                                         " of the array"));
    }
    STEPWELL_ASSIGN_OR_RETURN(
        const uint64_t count,
        format::ElementCount(leaf.record.shape, FindDType(array->dtype)->item_bytes));
    if (count > 0 && leaf.data == nullptr && leaf.shards.empty()) {
      return InvalidArgumentError(StrCat("data is null for ", count, " elements"));
    }
    return leaf;
  }
  STEPWELL_ASSIGN_OR_RETURN(EncodedValue value, EncodeValue(std::move(std::get<Value>(data))));
  leaf.record.kind = LeafKind::kValue;
  leaf.record.value_type = value.type;
  leaf.record.logical_bytes = value.bytes.size();
  leaf.value = std::move(value.bytes);
  return leaf;
}

Status CheckJson(const std::string& text, const char* name, bool object) {
  if (text.empty()) return OkStatus();
  const auto parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return InvalidArgumentError(StrCat(name, " is not JSON"));
  if (object && !parsed.is_object()) return InvalidArgumentError(StrCat(name, " is not an object"));
  return OkStatus();
}

}  // namespace

Result<db::SaveRequest> Store::Core::ToEngine(SaveRequest request) {
  db::SaveRequest out;
  out.step = request.step;
  out.if_exists = request.if_exists;
  STEPWELL_RETURN_IF_ERROR(CheckJson(request.metadata_json, "metadata_json", /*object=*/false));
  STEPWELL_RETURN_IF_ERROR(CheckJson(request.metrics_json, "metrics_json", /*object=*/true));
  out.metadata_json = std::move(request.metadata_json);
  out.metrics_json = std::move(request.metrics_json);
  if (request.leaves_.empty()) return InvalidArgumentError("a step needs at least one leaf");
  std::map<std::string, ItemBuilder> items;
  for (SaveRequest::Leaf& leaf : request.leaves_) {
    const std::string name = leaf.path.item().value_or("state");
    if (name.empty()) return InvalidArgumentError("an item's name is empty");
    STEPWELL_ASSIGN_OR_RETURN(KeyPath path, leaf.path.ToComponents());
    Result<db::LeafInput> input = LeafFrom(std::move(leaf.data));
    if (!input.ok()) {
      return input.status().WithContext(
          StrCat("item '", name, "', path \"", PathToText(path), "\""));
    }
    ItemBuilder& item = items.try_emplace(name, name).first->second;
    STEPWELL_RETURN_IF_ERROR(item.Add(std::move(path), std::move(input).value()));
  }
  for (auto& [name, item] : items) {
    STEPWELL_ASSIGN_OR_RETURN(db::ItemInput input, item.Finish());
    out.items.push_back(std::move(input));
  }
  return out;
}

}  // namespace stepwell
