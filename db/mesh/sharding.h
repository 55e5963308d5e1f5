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

namespace stepwell::db {

struct SavedSharding {
  Mesh mesh;
  PartitionSpec spec;
  std::vector<int64_t> devices;  // their ids, in the mesh's C order
  std::string memory_kind;       // "": the default
};

// Of LeafRecord::sharding_json, which is as Orbax spells it. None for what is no sharding over a
// mesh, or none that can be.
std::optional<SavedSharding> ParseSharding(std::string_view json);

// A line in words; for an array over a mesh followed by a drawing: the slices of the axes that are
// split, and in each the ids of the devices that hold it. Of many slices the first ones and the
// last. Ends with a newline.
std::string ShardingText(std::span<const uint64_t> shape, std::string_view json);

}  // namespace stepwell::db
