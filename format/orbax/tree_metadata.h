// SPDX-License-Identifier: Apache-2.0
// _METADATA: which leaves and empty nodes an item of an Orbax checkpoint has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/grid.h"
#include "format/orbax/param_name.h"
#include "io/result.h"

namespace stepwell::format::orbax {

inline constexpr std::string_view kTreeMetadataName = "_METADATA";

enum class ValueType : uint8_t {
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
std::string_view ValueTypeName(ValueType type);
bool IsEmptyNode(ValueType type);

struct TreeEntry {
  std::vector<TreeKey> keys;  // none: the leaf is the whole tree
  ValueType type = ValueType::kNumpyArray;
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
  // What support_rich_types adds: JSON in a string.
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
