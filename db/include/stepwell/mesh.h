// SPDX-License-Identifier: Apache-2.0
// Meshes of devices and partition specs, as JAX has them: which device holds which slice of an
// array, and what it takes to load a step so.
//
//   auto mesh = stepwell::Mesh::Parse("data=2,model=4");
//   auto spec = stepwell::PartitionSpec::Parse("(model, data)");
//   auto slices = stepwell::Shards({64, 24}, *mesh, *spec);  // one a device
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stepwell/dtype.h>
#include <stepwell/export.h>
#include <stepwell/key_path.h>
#include <stepwell/result.h>

namespace stepwell {

// The elements start <= i < stop of each axis. Empty: the whole array.
struct Slice {
  std::vector<uint64_t> start;
  std::vector<uint64_t> stop;
  bool operator==(const Slice&) const = default;
};

struct MeshAxis {
  std::string name;
  uint64_t size = 1;
};

// Devices in a grid, numbered from 0 in its C order: the last axis runs fastest. That is
// jax.make_mesh and Mesh(np.array(jax.devices()).reshape(sizes), names) with JAX's device i as
// number i.
struct STEPWELL_API Mesh {
  static constexpr uint64_t kDevicesMax = 65536;

  std::vector<MeshAxis> axes;  // none: one device

  // "data=2,model=4". kInvalidArgument as Check.
  static Result<Mesh> Parse(std::string_view text);
  std::string ToText() const;
  // kInvalidArgument: an axis without name or devices, two of one name, over kDevicesMax devices.
  Status Check() const;
  uint64_t device_count() const;
  // Returns the coordinate of `device` on each axis.
  std::vector<uint64_t> Coordinates(uint64_t device) const;
};

// For each axis of an array, from the first, the mesh axes that it is split over, major to minor;
// none, and axes after the last: not split. Over mesh axes that it does not name, an array is
// replicated.
struct STEPWELL_API PartitionSpec {
  std::vector<std::vector<std::string>> axes;

  // "(model, None)", "((data, model), None)", "()"; also "model" for "(model)". kInvalidArgument.
  static Result<PartitionSpec> Parse(std::string_view text);
  std::string ToText() const;
  bool operator==(const PartitionSpec&) const = default;
};

// Each device's slice of an array, by device. kInvalidArgument, with names and numbers: a bad mesh,
// an axis that the mesh lacks or that is named twice, a spec of more axes than the array has, an
// extent that is not divisible by the number of its parts.
STEPWELL_API Result<std::vector<Slice>> Shards(std::span<const uint64_t> shape, const Mesh& mesh,
                                               const PartitionSpec& spec);
// CheckShards says whether Shards would succeed. ShardOf then gives one device's slice.
STEPWELL_API Status CheckShards(std::span<const uint64_t> shape, const Mesh& mesh,
                                const PartitionSpec& spec);
STEPWELL_API Slice ShardOf(std::span<const uint64_t> shape, const Mesh& mesh,
                           const PartitionSpec& spec, uint64_t device);

// The sharding that an array was saved with (LeafInfo::sharding_json): a line in words; for an
// array over a mesh followed by a drawing: the slices of the axes that are split, and in each the
// ids of the devices that hold it. Of many slices the first ones and the last. Ends with a newline.
STEPWELL_API std::string ShardingText(std::span<const uint64_t> shape, std::string_view json);

// The arrays that a path or glob takes, and how they are split. A path of components takes all at
// and below it; in a component * and ? stand for characters, ** for any number of components.
struct SpecRule {
  std::string path;
  PartitionSpec spec;
};

// Describes a load of a step onto a mesh. It is made without reading any chunk.
struct STEPWELL_API LoadPlan {
  struct Cost {
    uint64_t chunks = 0;        // each counted once
    uint64_t reads = 0;         // after neighbours are merged
    uint64_t bytes_read = 0;    // by these reads, with the gaps that they read over
    uint64_t bytes_needed = 0;  // stored bytes of the chunks
    uint64_t bytes_out = 0;     // of arrays and values, each different slice counted once
  };
  struct Leaf {
    std::string item;
    KeyPath path;
    DType dtype = DType::kInvalid;
    std::vector<uint64_t> shape;
    PartitionSpec spec;
    uint64_t slices = 0;  // different ones
    uint64_t chunks = 0;

    std::string ToText() const;  // the path for people, without the item's name if it is "state"
  };

  Mesh mesh;
  std::vector<Leaf> leaves;  // the arrays, in key order
  // The cost for one process with all devices: each chunk is read once, for however many devices.
  // It includes values that are not arrays.
  Cost total;
  std::vector<Cost> devices;  // the costs of each device alone

  // For people: tables of the arrays and of the devices (the first ones of many).
  std::string ToText() const;
};

}  // namespace stepwell
