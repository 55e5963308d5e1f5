// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "format/orbax/json.h"
#include "format/orbax/zarr_metadata.h"

namespace stepwell::format::orbax {
namespace {

using internal::DTypeClass;

constexpr size_t kMetadataBytesMax = size_t{1} << 20;
constexpr uint64_t kLevelMax = 100;  // of any compressor

Result<Json> ParseMetadata(std::string_view file, std::string_view text) {
  if (text.size() > kMetadataBytesMax) {
    return UnimplementedError(StrCat(file, ": ", text.size(), " bytes of metadata for one array"));
  }
  return ParseJson(file, text, JsonDialect::kStrict);
}

Status CheckNumber(const JsonNode& root, std::string_view key, uint64_t expected) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, root.Member(key));
  STEPWELL_ASSIGN_OR_RETURN(const uint64_t number, node.Unsigned(UINT64_MAX));
  if (number == expected) return OkStatus();
  return node.Unknown(StrCat(number, " where ", expected, " is known"));
}

Status CheckText(const JsonNode& root, std::string_view key, std::string_view expected) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, root.Member(key));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
  if (text == expected) return OkStatus();
  return node.Unknown(StrCat("\"", Printable(text), "\" where \"", expected, "\" is known"));
}

// The element's value as JSON; whether it can be one of the type is checked, not its range.
Result<std::string> DecodeFill(const JsonNode& node, DType dtype, bool null_allowed) {
  const auto is_float = [](const Json& value) { return value.is_number() || value.is_string(); };
  const Json& value = node.value();
  bool right = null_allowed && value.is_null();
  switch (internal::ClassOf(dtype)) {
    case DTypeClass::kBool:
      right |= value.is_boolean();
      break;
    case DTypeClass::kInteger:
      right |= value.is_number_integer();
      break;
    case DTypeClass::kFloat:
      right |= is_float(value);
      break;
    case DTypeClass::kComplex:
      right |= value.is_array() && value.size() == 2 && is_float(value[0]) && is_float(value[1]);
      break;
  }
  if (!right) {
    return node.Error(StrCat("no value of the type ", FindDType(dtype)->name));
  }
  return CompactJson(value);
}

// Array and stored values have as many axes, and their sizes are numbers.
Status CheckShapes(const JsonNode& root, const ZarrArray& array) {
  if (array.shape.size() != array.chunk_shape.size()) {
    return root.Error(StrCat("an array of ", array.shape.size(), " axes with chunks of ",
                             array.chunk_shape.size()));
  }
  const uint64_t item_bytes = FindDType(array.dtype)->item_bytes;
  for (const Shape* shape : {&array.shape, &array.chunk_shape}) {
    const Result<uint64_t> count = ElementCount(*shape, item_bytes);
    if (!count.ok()) return root.Error(count.status().message());
  }
  return OkStatus();
}

// ---- v3 ----

// "zstd", or {"name": "zstd", "configuration": {...}}.
struct Extension {
  std::string_view name;
  std::optional<JsonNode> configuration;
};
Result<Extension> DecodeExtension(const JsonNode& node) {
  if (node.value().is_string()) {
    return Extension{node.value().get_ref<const std::string&>(), std::nullopt};
  }
  STEPWELL_RETURN_IF_ERROR(node.CheckMembers({"name", "configuration"}));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view name, node.Text("name"));
  return Extension{name, node.Find("configuration")};
}

Result<int64_t> DecodeLevel(const JsonNode& parent, std::string_view key) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode node, parent.Member(key));
  STEPWELL_ASSIGN_OR_RETURN(const int64_t level, node.Signed());
  if (level < -static_cast<int64_t>(kJsonBytesMax) || level > static_cast<int64_t>(kLevelMax)) {
    return node.Error(StrCat("no level of compression: ", level));
  }
  return level;
}

Status CheckConfiguration(const JsonNode& node, const Extension& codec,
                          std::initializer_list<std::string_view> members) {
  if (codec.configuration) return codec.configuration->CheckMembers(members);
  if (members.size() == 0) return OkStatus();
  return node.Error(StrCat("the codec \"", codec.name, "\" without its configuration"));
}

// Which of `words` the text is; `what` names one of them.
Result<size_t> DecodeWord(const JsonNode& node, std::initializer_list<std::string_view> words,
                          std::string_view what) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
  const auto* found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<size_t>(found - words.begin());
  return node.Unknown(StrCat("\"", Printable(text), "\" is not ", what));
}

Status DecodeBloscName(const JsonNode& cname, ZarrCodecs* codecs) {
  STEPWELL_RETURN_IF_ERROR(
      DecodeWord(cname, {"blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"}, "a codec of blosc")
          .status());
  codecs->blosc_codec = *cname.Text();
  return OkStatus();
}

Status DecodeBlosc(const JsonNode& configuration, ZarrCodecs* codecs) {
  codecs->compressor = ZarrCompressor::kBlosc;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode cname, configuration.Member("cname"));
  STEPWELL_RETURN_IF_ERROR(DecodeBloscName(cname, codecs));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode shuffle, configuration.Member("shuffle"));
  STEPWELL_ASSIGN_OR_RETURN(
      const size_t number,
      DecodeWord(shuffle, {"noshuffle", "shuffle", "bitshuffle"}, "a shuffle"));
  codecs->blosc_shuffle = static_cast<int>(number);
  STEPWELL_ASSIGN_OR_RETURN(codecs->level, DecodeLevel(configuration, "clevel"));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode block, configuration.Member("blocksize"));
  STEPWELL_ASSIGN_OR_RETURN(codecs->blosc_block_bytes, block.Unsigned(UINT32_MAX));
  if (const auto item = configuration.Find("typesize")) {
    STEPWELL_ASSIGN_OR_RETURN(codecs->blosc_item_bytes, item->Unsigned(UINT32_MAX));
  }
  return OkStatus();
}

// array -> array: identities only.
Status CheckTranspose(const JsonNode& node, const Extension& codec) {
  STEPWELL_RETURN_IF_ERROR(CheckConfiguration(node, codec, {"order"}));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode order, codec.configuration->Member("order"));
  if (order.value() == Json("C")) return OkStatus();
  if (!order.value().is_array()) {
    return order.Unknown("an array with transposed chunks is not read; save it in C order");
  }
  STEPWELL_ASSIGN_OR_RETURN(const Shape axes, order.Extents(0));
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    if (axes[axis] != axis) {
      return order.Unknown("an array with transposed chunks is not read; save it in C order");
    }
  }
  return OkStatus();
}

// array -> bytes. Of single bytes the order need not be said.
Status CheckBytes(const JsonNode& node, const Extension& codec, uint64_t item_bytes) {
  std::optional<JsonNode> endian;
  if (codec.configuration) {
    STEPWELL_RETURN_IF_ERROR(codec.configuration->CheckMembers({"endian"}));
    endian = codec.configuration->Find("endian");
  }
  if (!endian) {
    return item_bytes == 1 ? OkStatus() : node.Error("the order of bytes is not said (\"endian\")");
  }
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view order, endian->Text());
  if (order == "little" || (order == "big" && item_bytes == 1)) return OkStatus();
  return endian->Unknown(StrCat("chunks in the byte order \"", Printable(order),
                                "\" are not read; save the array little-endian"));
}

// bytes -> bytes.
Status DecodeBytesCodec(const JsonNode& node, const Extension& codec, ZarrCodecs* codecs) {
  if (codec.name == "crc32c" && !codecs->crc32c) {
    codecs->crc32c = true;
    return CheckConfiguration(node, codec, {});
  }
  const bool compressor = codec.name == "zstd" || codec.name == "gzip" || codec.name == "blosc";
  if (!compressor || codecs->compressor != ZarrCompressor::kNone || codecs->crc32c) {
    return node.Unknown(StrCat("the codec \"", Printable(codec.name), "\" is not known ",
                               compressor || codec.name == "crc32c" ? "at this place" : "here"));
  }
  if (codec.name == "blosc") {
    STEPWELL_RETURN_IF_ERROR(
        CheckConfiguration(node, codec, {"cname", "clevel", "shuffle", "typesize", "blocksize"}));
    return DecodeBlosc(*codec.configuration, codecs);
  }
  const bool zstd = codec.name == "zstd";
  codecs->compressor = zstd ? ZarrCompressor::kZstd : ZarrCompressor::kGzip;
  STEPWELL_RETURN_IF_ERROR(zstd ? CheckConfiguration(node, codec, {"level", "checksum"})
                                : CheckConfiguration(node, codec, {"level"}));
  STEPWELL_ASSIGN_OR_RETURN(codecs->level, DecodeLevel(*codec.configuration, "level"));
  if (const auto checksum = codec.configuration->Find("checksum")) {
    STEPWELL_ASSIGN_OR_RETURN(codecs->zstd_checksum, checksum->Bool());
  }
  return OkStatus();
}

// A chain without shards: [transpose,] bytes [, compressor] [, crc32c].
Result<ZarrCodecs> DecodeChain(const JsonNode& list, uint64_t item_bytes) {
  ZarrCodecs codecs;
  bool bytes_seen = false;
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode node = list.At(i);
    STEPWELL_ASSIGN_OR_RETURN(const Extension codec, DecodeExtension(node));
    if (bytes_seen) {
      STEPWELL_RETURN_IF_ERROR(DecodeBytesCodec(node, codec, &codecs));
    } else if (codec.name == "transpose") {
      STEPWELL_RETURN_IF_ERROR(CheckTranspose(node, codec));
    } else if (codec.name == "bytes") {
      STEPWELL_RETURN_IF_ERROR(CheckBytes(node, codec, item_bytes));
      bytes_seen = true;
    } else {
      return node.Unknown(
          StrCat("the codec \"", Printable(codec.name), "\" is not known at this place"));
    }
  }
  if (!bytes_seen) return list.Error("no codec \"bytes\"");
  return codecs;
}

Status DecodeSharding(const JsonNode& configuration, ZarrArray* array) {
  ZarrSharding sharding;
  STEPWELL_RETURN_IF_ERROR(
      configuration.CheckMembers({"chunk_shape", "codecs", "index_codecs", "index_location"}));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode shape, configuration.Member("chunk_shape"));
  STEPWELL_ASSIGN_OR_RETURN(sharding.inner_shape, shape.Extents(1));
  bool divides = sharding.inner_shape.size() == array->chunk_shape.size();
  for (size_t axis = 0; divides && axis < array->chunk_shape.size(); ++axis) {
    divides = array->chunk_shape[axis] % sharding.inner_shape[axis] == 0;
  }
  if (!divides) return shape.Error("the chunks do not fill a shard");
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode codecs, configuration.Member("codecs"));
  STEPWELL_RETURN_IF_ERROR(codecs.CheckArray(kRankMax));
  STEPWELL_ASSIGN_OR_RETURN(array->codecs,
                            DecodeChain(codecs, FindDType(array->dtype)->item_bytes));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode index, configuration.Member("index_codecs"));
  STEPWELL_RETURN_IF_ERROR(index.CheckArray(kRankMax));
  STEPWELL_ASSIGN_OR_RETURN(const ZarrCodecs index_codecs, DecodeChain(index, sizeof(uint64_t)));
  if (index_codecs.compressor != ZarrCompressor::kNone) {
    return index.Unknown("a compressed index of shards is not read");
  }
  sharding.index_crc32c = index_codecs.crc32c;
  if (const auto location = configuration.Find("index_location")) {
    STEPWELL_ASSIGN_OR_RETURN(const size_t at_end,
                              DecodeWord(*location, {"start", "end"}, "an index location"));
    sharding.index_at_start = at_end == 0;
  }
  array->sharding = std::move(sharding);
  return OkStatus();
}

// Identity transpositions may stand before the shards, nothing behind them.
Status DecodeCodecs(const JsonNode& list, ZarrArray* array) {
  STEPWELL_RETURN_IF_ERROR(list.CheckArray(kRankMax));
  for (size_t i = 0; i < list.value().size(); ++i) {
    const JsonNode node = list.At(i);
    STEPWELL_ASSIGN_OR_RETURN(const Extension codec, DecodeExtension(node));
    if (codec.name == "transpose") {
      STEPWELL_RETURN_IF_ERROR(CheckTranspose(node, codec));
      continue;
    }
    if (codec.name != "sharding_indexed") break;
    if (i + 1 != list.value().size()) return node.Unknown("codecs behind shards are not known");
    if (!codec.configuration) return node.Error("shards without their configuration");
    return DecodeSharding(*codec.configuration, array);
  }
  STEPWELL_ASSIGN_OR_RETURN(array->codecs, DecodeChain(list, FindDType(array->dtype)->item_bytes));
  return OkStatus();
}

Status DecodeSeparator(const JsonNode& node, ZarrArray* array) {
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
  if (text != "." && text != "/") {
    return node.Unknown(StrCat("\"", Printable(text), "\" does not separate indices"));
  }
  array->key_separator = text[0];
  return OkStatus();
}

Status DecodeKeyEncoding(const JsonNode& node, ZarrArray* array) {
  STEPWELL_ASSIGN_OR_RETURN(const Extension encoding, DecodeExtension(node));
  if (encoding.name != "default" && encoding.name != "v2") {
    return node.Unknown(
        StrCat("names of chunks by \"", Printable(encoding.name), "\" are not known here"));
  }
  array->key_prefix = encoding.name == "default";
  array->key_separator = array->key_prefix ? '/' : '.';
  if (!encoding.configuration) return OkStatus();
  STEPWELL_RETURN_IF_ERROR(encoding.configuration->CheckMembers({"separator"}));
  const auto separator = encoding.configuration->Find("separator");
  return separator ? DecodeSeparator(*separator, array) : OkStatus();
}

Status DecodeGrid(const JsonNode& node, ZarrArray* array) {
  STEPWELL_ASSIGN_OR_RETURN(const Extension grid, DecodeExtension(node));
  if (grid.name != "regular" || !grid.configuration) {
    return node.Unknown(StrCat("the grid \"", Printable(grid.name), "\" is not known here"));
  }
  STEPWELL_RETURN_IF_ERROR(grid.configuration->CheckMembers({"chunk_shape"}));
  STEPWELL_ASSIGN_OR_RETURN(array->chunk_shape, grid.configuration->Extents("chunk_shape", 1));
  return OkStatus();
}

// Unknown fields must declare that readers may ignore them. Storage transformers must be none.
Status CheckTopLevel(const JsonNode& root) {
  constexpr std::array<std::string_view, 10> kKnown = {
      "zarr_format", "node_type",  "shape",      "data_type",       "chunk_grid",
      "codecs",      "fill_value", "attributes", "dimension_names", "chunk_key_encoding"};
  STEPWELL_RETURN_IF_ERROR(root.CheckObject());
  for (const auto& [key, value] : root.value().get_ref<const Json::object_t&>()) {
    if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) continue;
    const JsonNode node = root.Child(key, value);
    if (key == "storage_transformers" && value.is_array() && value.empty()) continue;
    const auto must = node.Find("must_understand");
    if (must && must->value() == Json(false)) continue;
    return root.Unknown(StrCat("\"", Printable(key), "\" is not known here"));
  }
  return OkStatus();
}

// ---- v2 ----

Result<DType> DecodeV2DType(const JsonNode& node) {
  if (node.value().is_array()) return node.Unknown("arrays of structs are not read");
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
  for (const DTypeInfo& info : AllDTypes()) {
    if (!info.tensorstore) continue;
    const std::string name = internal::V2DTypeName(info);
    if (text == name) return info.dtype;
    const bool numpy = name != info.name;
    if (!numpy || text.empty() || text.substr(1) != std::string_view(name).substr(1)) continue;
    if (info.item_bytes == 1 && (text[0] == '<' || text[0] == '>')) return info.dtype;
    if (text[0] == '>') {
      return node.Unknown(StrCat("chunks of big-endian numbers (", text,
                                 ") are not read; save the array little-endian"));
    }
  }
  return node.Unknown(StrCat("\"", Printable(text), "\" is not an element type that is read"));
}

Status DecodeCompressor(const JsonNode& node, ZarrCodecs* codecs) {
  if (node.value().is_null()) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode id_node, node.Member("id"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view id, id_node.Text());
  constexpr std::array<std::pair<std::string_view, ZarrCompressor>, 4> kCompressors = {{
      {"zstd", ZarrCompressor::kZstd},
      {"gzip", ZarrCompressor::kGzip},
      {"zlib", ZarrCompressor::kZlib},
      {"blosc", ZarrCompressor::kBlosc},
  }};
  const auto* found = std::find_if(kCompressors.begin(), kCompressors.end(),
                                   [id](const auto& known) { return known.first == id; });
  if (found == kCompressors.end()) {
    return id_node.Unknown(StrCat("the compressor \"", Printable(id), "\" is not known here"));
  }
  codecs->compressor = found->second;
  const bool blosc = codecs->compressor == ZarrCompressor::kBlosc;
  // TensorStore's default applies to a level that is not given.
  codecs->level = blosc ? 5 : 1;
  const std::string_view level_key = blosc ? "clevel" : "level";
  if (node.Find(level_key)) {
    STEPWELL_ASSIGN_OR_RETURN(codecs->level, DecodeLevel(node, level_key));
  }
  if (!blosc) return OkStatus();
  codecs->blosc_codec = "lz4";
  codecs->blosc_shuffle = -1;
  if (const auto cname = node.Find("cname")) {
    STEPWELL_RETURN_IF_ERROR(DecodeBloscName(*cname, codecs));
  }
  if (const auto shuffle = node.Find("shuffle")) {
    STEPWELL_ASSIGN_OR_RETURN(const int64_t number, shuffle->Signed());
    if (number < -1 || number > 2) return shuffle->Unknown(StrCat(number, " is not a shuffle"));
    codecs->blosc_shuffle = static_cast<int>(number);
  }
  if (const auto block = node.Find("blocksize")) {
    STEPWELL_ASSIGN_OR_RETURN(codecs->blosc_block_bytes, block->Unsigned(UINT32_MAX));
  }
  return OkStatus();
}

Status CheckOrder(const JsonNode& root, size_t rank) {
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode order, root.Member("order"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, order.Text());
  if (text == "C" || (text == "F" && rank < 2)) return OkStatus();
  return order.Unknown(StrCat("chunks in the order \"", Printable(text),
                              "\" are not read; save the array in C order"));
}

}  // namespace

Result<ZarrArray> DecodeZarrJson(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseMetadata(file, text));
  const JsonNode root(file, json);
  STEPWELL_RETURN_IF_ERROR(CheckNumber(root, "zarr_format", 3));
  STEPWELL_RETURN_IF_ERROR(CheckText(root, "node_type", "array"));
  STEPWELL_RETURN_IF_ERROR(CheckTopLevel(root));
  ZarrArray array;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode type, root.Member("data_type"));
  STEPWELL_ASSIGN_OR_RETURN(const std::string_view name, type.Text());
  const DTypeInfo* dtype = FindDType(name);
  if (dtype == nullptr || !dtype->tensorstore) {
    return type.Unknown(StrCat("\"", Printable(name), "\" is not an element type that is read"));
  }
  array.dtype = dtype->dtype;
  STEPWELL_ASSIGN_OR_RETURN(array.shape, root.Extents("shape", 0));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode grid, root.Member("chunk_grid"));
  STEPWELL_RETURN_IF_ERROR(DecodeGrid(grid, &array));
  STEPWELL_RETURN_IF_ERROR(CheckShapes(root, array));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode keys, root.Member("chunk_key_encoding"));
  STEPWELL_RETURN_IF_ERROR(DecodeKeyEncoding(keys, &array));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode codecs, root.Member("codecs"));
  STEPWELL_RETURN_IF_ERROR(DecodeCodecs(codecs, &array));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode fill, root.Member("fill_value"));
  STEPWELL_ASSIGN_OR_RETURN(array.fill_value,
                            DecodeFill(fill, array.dtype, /*null_allowed=*/false));
  return array;
}

Result<ZarrArray> DecodeZarray(std::string_view file, std::string_view text) {
  STEPWELL_ASSIGN_OR_RETURN(const Json json, ParseMetadata(file, text));
  const JsonNode root(file, json);
  STEPWELL_RETURN_IF_ERROR(CheckNumber(root, "zarr_format", 2));
  ZarrArray array;
  array.zarr_format = 2;
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode type, root.Member("dtype"));
  STEPWELL_ASSIGN_OR_RETURN(array.dtype, DecodeV2DType(type));
  STEPWELL_ASSIGN_OR_RETURN(array.shape, root.Extents("shape", 0));
  STEPWELL_ASSIGN_OR_RETURN(array.chunk_shape, root.Extents("chunks", 1));
  STEPWELL_RETURN_IF_ERROR(CheckShapes(root, array));
  array.key_prefix = false;
  array.key_separator = '.';
  if (const auto separator = root.Find("dimension_separator")) {
    STEPWELL_RETURN_IF_ERROR(DecodeSeparator(*separator, &array));
  }
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode compressor, root.Member("compressor"));
  STEPWELL_RETURN_IF_ERROR(DecodeCompressor(compressor, &array.codecs));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode filters, root.Member("filters"));
  if (!filters.value().is_null() && !(filters.value().is_array() && filters.value().empty())) {
    return filters.Unknown("filters are not known here");
  }
  STEPWELL_RETURN_IF_ERROR(CheckOrder(root, array.shape.size()));
  STEPWELL_ASSIGN_OR_RETURN(const JsonNode fill, root.Member("fill_value"));
  STEPWELL_ASSIGN_OR_RETURN(array.fill_value, DecodeFill(fill, array.dtype, /*null_allowed=*/true));
  return array;
}

}  // namespace stepwell::format::orbax
