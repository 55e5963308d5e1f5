// SPDX-License-Identifier: Apache-2.0
#include "tests/format/support/orbax_examples.h"

#include "format/orbax/orbax_files.h"
#include "format/orbax/tree_metadata.h"
#include "format/orbax/zarr_metadata.h"

namespace stepwell::format::orbax {
namespace {

template <typename T>
Result<std::string> Reencode(std::string_view file, std::string_view text,
                             Result<T> (*decode)(std::string_view, std::string_view),
                             Result<std::string> (*encode)(const T&)) {
  STEPWELL_ASSIGN_OR_RETURN(const T first, decode(file, text));
  const Result<std::string> encoded = encode(first);
  if (!encoded.ok()) return encoded.status().WithContext("cannot be encoded again");
  const Result<T> second = decode(file, *encoded);
  if (!second.ok()) return InternalError("re-encoding: " + second.status().ToString());
  const Result<std::string> again = encode(*second);
  if (!again.ok() || *again != *encoded) return InternalError("two encodings");
  return encoded;
}

// The metadata of a step: one long line, as json.dumps writes it.
constexpr std::string_view kTree =
    R"({"tree_metadata": {)"
    R"x("('layers', '1', 'k')": {"key_metadata": [{"key": "layers", "key_type": 2}, )x"
    R"x({"key": "1", "key_type": 1}, {"key": "k", "key_type": 2}], "value_metadata": )x"
    R"x({"value_type": "jax.Array", "skip_deserialize": false, "write_shape": [2, 3]}}, )x"
    R"x("('nl\\n\\x7f\\u200b\ud83d\ude00\u00e9\\ue000',)": {"key_metadata": )x"
    R"x([{"key": "nl\n\u007f\u200b\ud83d\ude00\u00e9\ue000", "key_type": 2}], "value_metadata": )x"
    R"x({"value_type": "np.ndarray", "skip_deserialize": false}}, )x"
    R"x("(\"q'\",)": {"key_metadata": [{"key": "q'", "key_type": 2}], "value_metadata": )x"
    R"x({"value_type": "string", "skip_deserialize": false}}, )x"
    R"x("('q\\'\"',)": {"key_metadata": [{"key": "q'\"", "key_type": 2}], "value_metadata": )x"
    R"x({"value_type": "scalar", "skip_deserialize": false}}, )x"
    R"x("('none',)": {"key_metadata": [{"key": "none", "key_type": 2}], "value_metadata": )x"
    R"x({"value_type": "None", "skip_deserialize": true}}}, "use_ocdbt": true, "use_zarr3": )x"
    R"x(true, "store_array_data_equal_to_fill_value": true, "custom_metadata": )x"
    R"x({"loss": NaN, "a": [1]}})x";
constexpr std::string_view kBareLeaf =
    R"x({"tree_metadata": {"()": {"key_metadata": [], "value_metadata": {"value_type": )x"
    R"x("jax.Array", )x"
    R"x("skip_deserialize": false, "write_shape": []}}}, "use_ocdbt": null, "use_zarr3": false, )x"
    R"x("store_array_data_equal_to_fill_value": true, "custom_metadata": null})x";
constexpr std::string_view kShardings =
    R"({"YQ==":"{\"sharding_type\": \"NamedSharding\", \"shape\": [4, 2], \"axis_names\": )"
    R"([\"x\", \"y\"], \"axis_types\": [\"AxisType.Auto\", \"AxisType.Auto\"], )"
    R"(\"partition_spec\": [null, [\"x\", \"y\"]], \"device_mesh\": {\"mesh\": )"
    R"([[{\"id\": 0}, {\"id\": 1}], [{\"id\": 2}, {\"id\": 3}], [{\"id\": 4}, {\"id\": 5}], )"
    R"([{\"id\": 6}, {\"id\": 7}]]}}",)"
    R"("bGF5ZXJzLjA=":"{\"sharding_type\": \"SingleDeviceSharding\", \"device_str\": \"cpu:0\"}"})";
constexpr std::string_view kArrays =
    R"({"array_metadatas": [{"array_metadata": {"param_name": "a", "write_shape": [2, 4], )"
    R"("chunk_shape": [2, 4], "ext_metadata": null}}, {"array_metadata": {"param_name": "k", )"
    R"("write_shape": [2], "chunk_shape": [2], "ext_metadata": )"
    R"({"random_key_impl": "threefry2x32"}}}]})";
constexpr std::string_view kCheckpoint =
    R"({"item_handlers": {"state": "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.)"
    R"(PyTreeHandler"}, "metrics": {"loss": -Infinity}, "performance_metrics": {}, )"
    R"("init_timestamp_nsecs": 1795244762273875968, "commit_timestamp_nsecs": )"
    R"(1795244762307169488, )"
    R"("custom_metadata": {"\u00e9": [1, 2.5, NaN, 1e+16, 1e-05, 123456789012345678, null]}})";
constexpr std::string_view kFlat =
    R"({"item_handlers": "orbax.checkpoint._src.handlers.standard_checkpoint_handler.)"
    R"(StandardCheckpointHandler", "metrics": {}, "performance_metrics": {}, )"
    R"("init_timestamp_nsecs": null, "commit_timestamp_nsecs": null, "custom_metadata": {}})";
constexpr std::string_view kSharded =
    R"({"chunk_grid":{"configuration":{"chunk_shape":[2,4]},"name":"regular"},)"
    R"("chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"chunk_shape":[2,4],)"
    R"("codecs":[{"configuration":{"endian":"little"},"name":"bytes"},)"
    R"({"configuration":{"checksum":false,"level":3},"name":"zstd"}],"index_codecs":)"
    R"([{"configuration":{"endian":"little"},"name":"bytes"},{"name":"crc32c"}]},)"
    R"("name":"sharding_indexed"}],"data_type":"float32","fill_value":0.0,"node_type":"array",)"
    R"("shape":[8,8],"zarr_format":3})";
constexpr std::string_view kBlosc =
    R"({"chunk_grid":{"configuration":{"chunk_shape":[4]},"name":"regular"},"chunk_key_encoding":)"
    R"({"configuration":{"separator":"."},"name":"default"},"codecs":[{"configuration":)"
    R"({"endian":"little"},"name":"bytes"},{"configuration":{"blocksize":0,"clevel":5,)"
    R"("cname":"lz4","shuffle":"bitshuffle","typesize":8},"name":"blosc"},{"name":"crc32c"}],)"
    R"("data_type":"complex64","fill_value":["NaN",1.5],"node_type":"array","shape":[9],)"
    R"("zarr_format":3})";
constexpr std::string_view kZarray =
    R"({"chunks":[2,4],"compressor":{"id":"zstd","level":1},"dimension_separator":".",)"
    R"("dtype":"<f4","fill_value":null,"filters":null,"order":"C","shape":[8,8],"zarr_format":2})";
constexpr std::string_view kZarrayBlosc =
    R"({"chunks":[],"compressor":{"blocksize":0,"clevel":5,"cname":"lz4","id":"blosc",)"
    R"("shuffle":-1},"dimension_separator":"/","dtype":"bfloat16","fill_value":0.5,)"
    R"("filters":null,"order":"C","shape":[],"zarr_format":2})";

std::string Text(std::string_view text) { return std::string(text); }

std::vector<FileKind> MakeKinds() {
  using std::string_view;
  return {
      {"tree",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeTreeMetadata, EncodeTreeMetadata);
       },
       {Text(kTree), Text(kBareLeaf)}},
      {"sharding",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeShardings, EncodeShardings);
       },
       {Text(kShardings), "{}"}},
      {"arrays",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeArrayMetadatas, EncodeArrayMetadatas);
       },
       {Text(kArrays)}},
      {"strings",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeStrings, EncodeStrings);
       },
       {R"({"":"x","a":{"b":"s1","c":{"":"\u0001\"\\"}},"s":"hi é"})"}},
      {"checkpoint",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeCheckpointMetadata, EncodeCheckpointMetadata);
       },
       {Text(kCheckpoint), Text(kFlat)}},
      {"root",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeRootMetadata, EncodeRootMetadata);
       },
       {R"({"internal_metadata": {}, "custom_metadata": {"m": 1}})"}},
      {"json",
       NormalJson,
       {R"({"loss": NaN, "b": [1, -2, 2.5e-07, true, null, "\u20ac"], "a": {}})"}},
      {"zarr3",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeZarrJson, EncodeZarrMetadata);
       },
       {Text(kSharded), Text(kBlosc)}},
      {"zarr2",
       [](string_view file, string_view text) {
         return Reencode(file, text, DecodeZarray, EncodeZarrMetadata);
       },
       {Text(kZarray), Text(kZarrayBlosc)}},
  };
}

}  // namespace

const std::vector<FileKind>& FileKinds() {
  static const auto* kinds = new std::vector<FileKind>(MakeKinds());
  return *kinds;
}

}  // namespace stepwell::format::orbax
