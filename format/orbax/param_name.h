// SPDX-License-Identifier: Apache-2.0
// Orbax's names of leaves: the keys of a path as text, joined with ".", and nothing escaped. So two
// leaves may have one name ({"a": {"b": x}, "a.b": y}); Orbax loses one of them, we refuse.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/key.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// On disk.
enum class KeyType : uint8_t {
  kSequence = 1,  // list, tuple, nameless children of custom nodes
  kDict = 2,      // dict, attribute, field
};

// One key of a path, as _METADATA has it. Of kSequence a decimal number.
struct TreeKey {
  std::string text;
  KeyType type = KeyType::kDict;

  bool operator==(const TreeKey&) const = default;
};

// kInvalidArgument: a name that is no UTF-8 (TensorStore keeps names as JSON).
Result<std::vector<TreeKey>> TreeKeys(const KeyPath& path);
// What Orbax's keys say of a path: kSequence is an index, kDict a string key. Integer keys and
// attributes are strings there. kDataLoss: an index that is not a number.
Result<KeyPath> PathOfTreeKeys(std::span<const TreeKey> keys);

std::string ParamName(std::span<const TreeKey> keys);

// The key in OCDBT, or the file below the item's folder, of a leaf's `zarr_key` ("zarr.json",
// "c/0/1"): "name/c/0/1". TensorStore adds no "/" to a name that ends in one, and takes "/" for the
// empty name, whose keys are the zarr keys themselves.
std::string StoreKey(std::string_view param_name, std::string_view zarr_key);

// Leaves whose arrays have one place: names that are alike, but for a "/" at the end.
struct NameCollision {
  std::string name;
  std::vector<size_t> leaves;  // indices into the names, ascending; at least two
};
// Ascending by place.
std::vector<NameCollision> FindNameCollisions(std::span<const std::string> names);

// Whether _strings.json can hold a leaf of this name: kInvalidArgument when it has a "~", which
// Orbax's JSON pointers cannot say, or more levels of "/" than are read back.
Status CheckStringName(std::string_view name);

}  // namespace stepwell::format::orbax
