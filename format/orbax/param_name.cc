// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/param_name.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "format/orbax/json.h"

namespace stepwell::format::orbax {
namespace {

Result<TreeKey> ToTreeKey(const PathComponent& component) {
  switch (component.type) {
    case PathComponent::Type::kIndex:
      return TreeKey{std::to_string(component.number), KeyType::kSequence};
    case PathComponent::Type::kIntKey:
      return TreeKey{std::to_string(component.number), KeyType::kDict};
    case PathComponent::Type::kKey:
    case PathComponent::Type::kAttribute:
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

}  // namespace stepwell::format::orbax
