// SPDX-License-Identifier: Apache-2.0
// Orbax's names of leaves, and _METADATA: which leaves and empty nodes an item of an Orbax
// checkpoint has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/grid.h"
#include "format/key.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// ---- names ----
// Orbax's names of leaves: the keys of a path as text, joined with ".", and nothing escaped. So two
// leaves may have one name ({"a": {"b": x}, "a.b": y}); Orbax loses one of them, we refuse.

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
// Decodes the path from Orbax's keys: kSequence is an index, kDict a string key. Integer keys and
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

// Checks that _strings.json can hold a leaf of this name. kInvalidArgument if it has a "~", which
// Orbax's JSON pointers cannot express, or more levels of "/" than are read back.
Status CheckStringName(std::string_view name);

// ---- _METADATA ----
inline constexpr std::string_view kTreeMetadataName = "_METADATA";

enum class OrbaxType : uint8_t {
  kJaxArray,
  kNumpyArray,
  kScalar,  // int, float, bool, NumPy number: an array of rank 0
  kString,  // in _strings.json
  // Nodes without children: no data.
  kNone,  // also namedtuples without fields
  kDict,
  kList,
  kTuple,
  kNamedTuple,  // only with Orbax's option support_rich_types
};
// "jax.Array", "np.ndarray", ...
std::string_view OrbaxTypeName(OrbaxType type);
bool IsEmptyNode(OrbaxType type);

struct TreeEntry {
  std::vector<TreeKey> keys;  // none: the leaf is the whole tree
  OrbaxType type = OrbaxType::kNumpyArray;
  bool skip_deserialize = false;     // of empty nodes
  std::optional<Shape> write_shape;  // of one stored value, for jax.Array

  bool operator==(const TreeEntry&) const = default;
};

struct TreeMetadata {
  std::vector<TreeEntry> entries;  // in the order of the file
  std::optional<bool> use_ocdbt;   // absent: whether there is a manifest.ocdbt
  bool use_zarr3 = false;
  std::optional<bool> store_array_data_equal_to_fill_value;
  std::string custom_metadata = "null";  // JSON, as json.dumps writes it
  // JSON in a string, which support_rich_types adds.
  std::optional<std::string> value_metadata_tree;

  bool operator==(const TreeMetadata&) const = default;
};

// The text as Orbax writes it, byte for byte. kInvalidArgument: no entry, two of one path, keys
// that are no UTF-8, custom metadata that is no JSON.
Result<std::string> EncodeTreeMetadata(const TreeMetadata& tree);

// `file` is for messages, which name the leaf. kDataLoss: not a _METADATA; kUnimplemented: a type
// of value that Orbax 0.12 does not have. Entries of two leaves may have one name: see
// FindNameCollisions. Orbax drops an empty node that has entries below it (its partial saves leave
// them); so do callers that make a tree.
Result<TreeMetadata> DecodeTreeMetadata(std::string_view file, std::string_view text);

}  // namespace stepwell::format::orbax
