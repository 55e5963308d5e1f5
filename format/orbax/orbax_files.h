// SPDX-License-Identifier: Apache-2.0
// The small files of an Orbax checkpoint, except _METADATA (tree_metadata.h) and those of zarr and
// OCDBT. A step's folder has _CHECKPOINT_METADATA and a folder for each item:
//
//   commit_success.txt           one line for people
//   ITEM/_sharding               of jax.Array leaves: on which devices they were
//   ITEM/array_metadatas/process_0   of the same leaves: chunks, and which are PRNG keys
//   ITEM/_strings.json           leaves of type str
//   ITEM/metadata, data.json, metrics   items that are JSON: NormalJson
//
// and the folder above it metadata/_ROOT_METADATA. All encoders write what Orbax writes, byte for
// byte; they fail (kInvalidArgument) on text that is no UTF-8. All decoders take the file's name
// for messages and fail with kDataLoss, or kUnimplemented for what is not known here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/grid.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// ---- _sharding ----
inline constexpr std::string_view kShardingName = "_sharding";

struct SingleDeviceSharding {
  std::string device;  // "cpu:0"

  bool operator==(const SingleDeviceSharding&) const = default;
};

struct NamedSharding {
  // An axis of the array: over no, one or several axes of the mesh.
  struct AxisSpec {
    std::vector<std::string> mesh_axes;
    bool is_list = false;  // with one: ["x"] rather than "x"; with none: [] rather than null

    bool operator==(const AxisSpec&) const = default;
  };
  Shape mesh_shape;
  std::vector<std::string> axis_names;
  std::vector<std::string> axis_types;  // "AxisType.Auto"; none: not said
  std::vector<AxisSpec> partition_spec;
  // jax.Device.id in C order of the mesh; absent: all devices of the process that loads.
  std::optional<std::vector<int64_t>> device_ids;

  bool operator==(const NamedSharding&) const = default;
};

// Whole on every device of the process that loads, however many there are: a mesh of shape [-1],
// which NumPy's reshape completes. Orbax writes none of these, but loads it on any machine.
struct ReplicatedSharding {
  bool operator==(const ReplicatedSharding&) const = default;
};

// A type that Orbax 0.12 does not write; leaves load without it.
struct UnknownSharding {
  std::string json;

  bool operator==(const UnknownSharding&) const = default;
};

using Sharding =
    std::variant<SingleDeviceSharding, NamedSharding, ReplicatedSharding, UnknownSharding>;

struct LeafSharding {
  std::string param_name;
  Sharding sharding;

  bool operator==(const LeafSharding&) const = default;
};
// One sharding as Orbax's JSON: what LeafRecord::sharding_json holds.
Result<std::string> EncodeSharding(const Sharding& sharding);
// In any order; the file is sorted by the names' base64.
Result<std::string> EncodeShardings(const std::vector<LeafSharding>& leaves);
Result<std::vector<LeafSharding>> DecodeShardings(std::string_view file, std::string_view text);

// ---- array_metadatas/process_N ----
inline constexpr std::string_view kArrayMetadatasFolder = "array_metadatas";
inline constexpr std::string_view kArrayMetadatasName = "array_metadatas/process_0";

struct LeafArrayMetadata {
  std::string param_name;
  Shape write_shape;
  Shape chunk_shape;
  // The implementation of a PRNG key, e.g. "threefry2x32". A key is stored as uint32, its words
  // along a last axis.
  std::optional<std::string> random_key_impl;

  bool operator==(const LeafArrayMetadata&) const = default;
};
Result<std::string> EncodeArrayMetadatas(const std::vector<LeafArrayMetadata>& leaves);
Result<std::vector<LeafArrayMetadata>> DecodeArrayMetadatas(std::string_view file,
                                                            std::string_view text);

// ---- _strings.json ----
inline constexpr std::string_view kStringsName = "_strings.json";

struct LeafString {
  std::string param_name;
  std::string text;

  bool operator==(const LeafString&) const = default;
};
// Names with "/" are stored nested: "a" and "a/b" exclude each other. See CheckStringName.
Result<std::string> EncodeStrings(const std::vector<LeafString>& leaves);
// Sorted by name, level by level.
Result<std::vector<LeafString>> DecodeStrings(std::string_view file, std::string_view text);

// ---- _CHECKPOINT_METADATA ----
inline constexpr std::string_view kCheckpointMetadataName = "_CHECKPOINT_METADATA";
inline constexpr std::string_view kIndicatorName = "orbax.checkpoint";  // v1: an empty file
// In the names of directories that are not finished; readers take no notice of them.
inline constexpr std::string_view kTemporaryMark = ".orbax-checkpoint-tmp";
// The item of CheckpointManagers that holds a step's metrics; its file has the same name.
inline constexpr std::string_view kMetricsItem = "metrics";

enum class HandlerKind : uint8_t { kPyTree, kArray, kJson };
struct HandlerInfo {
  std::string_view type;  // the class
  HandlerKind kind;
  std::string_view json_file;  // of kJson; the one of v0 writes the item "metrics" to "metrics"
};
// Every version of Orbax since 0.11.20 loads what this one names.
inline constexpr std::string_view kStandardHandler =
    "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler";
// The same of the item "metrics".
inline constexpr std::string_view kJsonHandler =
    "orbax.checkpoint._src.handlers.json_checkpoint_handler.JsonCheckpointHandler";
inline constexpr std::string_view kV1JsonHandler =
    "orbax.checkpoint.experimental.v1._src.handlers.json_handler.JsonHandler";
// Null for a class that is not known here.
const HandlerInfo* FindHandler(std::string_view type);

struct ItemHandler {
  std::string item;
  std::optional<std::string> type;  // absent: null, of an item without data

  bool operator==(const ItemHandler&) const = default;
};

struct CheckpointMetadata {
  // The handlers of the items; or the handler of the one item whose files lie in the step's folder
  // itself; or nothing, where the metadata names none.
  std::variant<std::monostate, std::vector<ItemHandler>, std::string> handlers;
  // Objects of JSON, as json.dumps writes them.
  std::string metrics = "{}";
  std::string performance_metrics = "{}";
  std::optional<int64_t> init_time_ns;  // since 1970
  std::optional<int64_t> commit_time_ns;
  std::string custom_metadata = "{}";

  bool operator==(const CheckpointMetadata&) const = default;
};
Result<std::string> EncodeCheckpointMetadata(const CheckpointMetadata& metadata);
// Absent members are as in an empty CheckpointMetadata. Orbax itself goes on when this file cannot
// be read.
Result<CheckpointMetadata> DecodeCheckpointMetadata(std::string_view file, std::string_view text);

// ---- values that the user gave as JSON: custom metadata, metrics, items of their own ----
// Here they are text as Python's json.dumps writes it, so NaN, Infinity and -Infinity pass.

// The same value as json.dumps spells it, members in their order: what the files `metadata`,
// `data.json` and `metrics` hold. kDataLoss, kUnimplemented: see ParseJson in json.h; among them a
// key twice in one object and integers of thousands of digits.
Result<std::string> NormalJson(std::string_view file, std::string_view text);
// The same of an object.
Result<std::string> NormalJsonObject(std::string_view file, std::string_view text);

// ---- metadata/_ROOT_METADATA ----
inline constexpr std::string_view kRootMetadataName = "metadata/_ROOT_METADATA";

struct RootMetadata {
  // Objects of JSON.
  std::string internal_metadata = "{}";
  std::string custom_metadata = "{}";

  bool operator==(const RootMetadata&) const = default;
};
Result<std::string> EncodeRootMetadata(const RootMetadata& metadata);
Result<RootMetadata> DecodeRootMetadata(std::string_view file, std::string_view text);

// ---- commit_success.txt ----
inline constexpr std::string_view kCommitSuccessName = "commit_success.txt";

// `path` is the folder's. No reader looks into the file: that it is there says that the folder is
// complete, where Orbax was told to write and look for it.
std::string EncodeCommitSuccess(std::string_view path);

}  // namespace stepwell::format::orbax
