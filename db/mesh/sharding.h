// SPDX-License-Identifier: Apache-2.0
// The sharding that an array was saved with, and which device holds which slice, as text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stepwell/mesh.h>

namespace stepwell {

struct SavedSharding {
  Mesh mesh;
  PartitionSpec spec;
  std::vector<int64_t> devices;  // their ids, in the mesh's C order
  std::string memory_kind;       // "": the default
};

// Parses LeafRecord::sharding_json, which is spelled as Orbax spells it. None for text that is not
// a sharding over a mesh, or not a possible one.
std::optional<SavedSharding> ParseSharding(std::string_view json);

// Into how many parts these axes of a mesh split an axis of an array.
uint64_t PartsOf(const Mesh& mesh, const std::vector<std::string>& names);

}  // namespace stepwell

namespace stepwell::db {

using stepwell::ParseSharding;
using stepwell::SavedSharding;
using stepwell::ShardingText;

}  // namespace stepwell::db
