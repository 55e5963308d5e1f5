// SPDX-License-Identifier: Apache-2.0
// zarr.json and .zarray: codec chains that are read, those that are not, keys of chunks, fill
// values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/orbax/zarr_metadata.h"

namespace stepwell::format::orbax {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kBytes = R"({"name":"bytes","configuration":{"endian":"little"}})";

std::string V3(const std::string& codecs, const std::string& dtype = "float32",
               const std::string& fill = "0.0") {
  return R"({"zarr_format":3,"node_type":"array","shape":[8,6],"data_type":")" + dtype +
         R"(","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4,6]}},)" +
         R"("chunk_key_encoding":{"name":"default"},"fill_value":)" + fill + R"(,"codecs":[)" +
         codecs + "]}";
}

std::string Sharded(const std::string& codecs, const std::string& more = "",
                    const std::string& inner = "[2,3]") {
  return R"({"name":"sharding_indexed","configuration":{"chunk_shape":)" + inner +
         R"(,"codecs":[)" + codecs + R"(],"index_codecs":[)" + std::string(kBytes) + "]" + more +
         "}}";
}

std::string V2(const std::string& dtype, const std::string& more) {
  return R"({"zarr_format":2,"shape":[8,6],"chunks":[4,6],"dtype":)" + dtype + "," + more + "}";
}
constexpr char kPlain[] = R"("compressor":null,"fill_value":null,"filters":null,"order":"C")";

void ExpectZarrError(const Status& status, StatusCode code, const std::string& what) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(what));
}

TEST(OrbaxZarr, EveryTypeInBothVersions) {
  for (const DTypeInfo& info : AllDTypes()) {
    for (const int format : {2, 3}) {
      for (const CodecId codec : {CodecId::kRaw, CodecId::kBloscLz4}) {
        const ZarrArray array = StepwellZarrArray(format, info.dtype, {7, 5}, {4, 5}, codec);
        const Result<std::string> text = EncodeZarrMetadata(array);
        EXPECT_EQ(text.ok(), OrbaxHolds(info.dtype)) << info.name;
        if (!text.ok()) {
          ExpectZarrError(text.status(), StatusCode::kInvalidArgument, std::string(info.name));
          continue;
        }
        const auto decoded = format == 2 ? DecodeZarray("F", *text) : DecodeZarrJson("F", *text);
        ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
        EXPECT_EQ(*decoded, array) << *text;
        EXPECT_EQ(ZarrFillElement("F", *decoded).value(), std::string(info.item_bytes, '\0'));
      }
    }
  }
  EXPECT_FALSE(OrbaxHolds(DType::kInvalid));
  EXPECT_FALSE(OrbaxHolds(DType::kUInt4));
  EXPECT_TRUE(OrbaxHolds(DType::kInt4));
}

TEST(OrbaxZarr, WhatAVersionCannotSayIsRefused) {
  ZarrArray array = StepwellZarrArray(2, DType::kInt8, {4}, {4}, CodecId::kRaw);
  array.codecs.crc32c = true;
  ExpectZarrError(EncodeZarrMetadata(array).status(), StatusCode::kInvalidArgument,
                  "format 2 cannot");
  array = StepwellZarrArray(3, DType::kInt8, {4}, {4}, CodecId::kRaw);
  array.codecs.compressor = ZarrCompressor::kZlib;
  ExpectZarrError(EncodeZarrMetadata(array).status(), StatusCode::kInvalidArgument,
                  "format 3 cannot");
  array.chunk_shape = {4, 4};
  ExpectZarrError(EncodeZarrMetadata(array).status(), StatusCode::kInvalidArgument, "axes");
}

TEST(OrbaxZarr, ChunkKeys) {
  ZarrArray array = StepwellZarrArray(3, DType::kInt8, {4, 4}, {1, 1}, CodecId::kRaw);
  const uint64_t indices[] = {3, 0};
  EXPECT_EQ(ZarrChunkKey(array, indices), "c/3/0");
  array.key_separator = '.';
  EXPECT_EQ(ZarrChunkKey(array, indices), "c.3.0");
  array.key_prefix = false;
  EXPECT_EQ(ZarrChunkKey(array, indices), "3.0");
  array.key_separator = '/';
  EXPECT_EQ(ZarrChunkKey(array, indices), "3/0");
  EXPECT_EQ(ZarrChunkKey(StepwellZarrArray(3, DType::kInt8, {}, {}, CodecId::kRaw), {}), "c");
  EXPECT_EQ(ZarrChunkKey(StepwellZarrArray(2, DType::kInt8, {}, {}, CodecId::kRaw), {}), "0");
}

TEST(OrbaxZarr, ChainsThatAreRead) {
  const std::string bytes(kBytes);
  const auto decode = [](const std::string& codecs) {
    const Result<ZarrArray> array = DecodeZarrJson("F", V3(codecs));
    EXPECT_TRUE(array.ok()) << array.status().ToString();
    return array.ok() ? *array : ZarrArray();
  };
  EXPECT_EQ(decode(bytes).codecs, ZarrCodecs());
  EXPECT_TRUE(decode(bytes + R"(,"crc32c")").codecs.crc32c);
  EXPECT_EQ(decode(bytes + R"(,{"name":"gzip","configuration":{"level":6}})").codecs.level, 6);
  EXPECT_EQ(decode(R"({"name":"transpose","configuration":{"order":[0,1]}},)" + bytes).codecs,
            ZarrCodecs());
  EXPECT_EQ(decode(R"({"name":"transpose","configuration":{"order":"C"}},)" + bytes).codecs,
            ZarrCodecs());
  const ZarrArray several = decode(Sharded(
      bytes + R"(,{"name":"zstd","configuration":{"level":-3}})", R"(,"index_location":"start")"));
  ASSERT_TRUE(several.sharding.has_value());
  EXPECT_EQ(several.sharding->inner_shape, (Shape{2, 3}));
  EXPECT_TRUE(several.sharding->index_at_start);
  EXPECT_FALSE(several.sharding->index_crc32c);
  EXPECT_EQ(several.codecs.compressor, ZarrCompressor::kZstd);
  EXPECT_EQ(several.codecs.level, -3);
  EXPECT_EQ(EncodeZarrMetadata(several).value().find("\"level\":-3") == std::string::npos, false);
}

TEST(OrbaxZarr, ChainsThatAreNotRead) {
  const std::string bytes(kBytes);
  const std::string crc = R"({"name":"crc32c"})";
  const std::string zstd = R"({"name":"zstd","configuration":{"level":1}})";
  const std::pair<std::string, std::string> cases[] = {
      {R"({"name":"transpose","configuration":{"order":[1,0]}},)" + bytes, "C order"},
      {R"({"name":"transpose","configuration":{"order":"F"}},)" + bytes, "C order"},
      {R"({"name":"bytes","configuration":{"endian":"big"}})", "little-endian"},
      {bytes + "," + crc + "," + zstd, "\"zstd\" is not known at this place"},
      {bytes + "," + zstd + "," + zstd, "at this place"},
      {bytes + "," + crc + "," + crc, "at this place"},
      {bytes + R"(,{"name":"new","configuration":{}})", "codecs[1]: the codec \"new\""},
      {bytes + R"(,{"name":"zstd","configuration":{"level":1,"new":2}})", "\"new\" is not known"},
      {Sharded(bytes) + "," + crc, "behind shards"},
      {Sharded(Sharded(bytes)), "\"sharding_indexed\""},
      {Sharded(bytes, R"(,"index_location":"middle")"), "is not an index location"},
      {crc, "at this place"},
  };
  for (const auto& [codecs, what] : cases) {
    ExpectZarrError(DecodeZarrJson("F", V3(codecs)).status(), StatusCode::kUnimplemented, what);
  }
  ExpectZarrError(DecodeZarrJson("F", V3("")).status(), StatusCode::kDataLoss,
                  "no codec \"bytes\"");
  ExpectZarrError(DecodeZarrJson("F", V3(R"({"name":"bytes"})")).status(), StatusCode::kDataLoss,
                  "F: codecs[0]: the order of bytes");
  ExpectZarrError(DecodeZarrJson("F", V3(bytes + R"(,"zstd")")).status(), StatusCode::kDataLoss,
                  "without its configuration");
  ExpectZarrError(DecodeZarrJson("F", V3(Sharded(bytes, "", "[3,3]"))).status(),
                  StatusCode::kDataLoss, "do not fill a shard");
  EXPECT_TRUE(DecodeZarrJson("F", V3(R"({"name":"bytes"})", "int8", "0")).ok());
}

TEST(OrbaxZarr, TopLevelOfV3) {
  const std::string text = V3(std::string(kBytes));
  const auto with = [&text](const std::string& member) {
    return DecodeZarrJson("F", "{" + member + "," + text.substr(1)).status();
  };
  EXPECT_TRUE(with(R"("attributes":{"a":[1]},"dimension_names":["x",null])").ok());
  EXPECT_TRUE(with(R"("new":{"must_understand":false},"storage_transformers":[])").ok());
  ExpectZarrError(with(R"("new":{})"), StatusCode::kUnimplemented, "F: \"new\" is not known here");
  ExpectZarrError(with(R"("storage_transformers":[1])"), StatusCode::kUnimplemented,
                  "transformers");
  ExpectZarrError(with(R"("shape":[1])"), StatusCode::kDataLoss, "twice");
  const auto other = [&text](const std::string& from, const std::string& to) {
    std::string changed = text;
    return DecodeZarrJson("F", changed.replace(changed.find(from), from.size(), to)).status();
  };
  ExpectZarrError(other("\"array\"", "\"group\""), StatusCode::kUnimplemented, "node_type");
  ExpectZarrError(other("[4,6]", "[4,0]"), StatusCode::kDataLoss,
                  "chunk_shape[1]: 0 is less than 1");
  ExpectZarrError(other("[4,6]", "[4]"), StatusCode::kDataLoss, "2 axes with chunks of 1");
  ExpectZarrError(other("[8,6]", "[4611686018427387904,2]"), StatusCode::kDataLoss, "F: ");
  ExpectZarrError(other("float32", "uint4"), StatusCode::kUnimplemented, "\"uint4\"");
  ExpectZarrError(other("0.0", "null"), StatusCode::kDataLoss,
                  "fill_value: no value of the type float32");
  ExpectZarrError(other("0.0", "NaN"), StatusCode::kDataLoss, "not JSON");
  ExpectZarrError(other("\"default\"", "\"hash\""), StatusCode::kUnimplemented, "names of chunks");
  EXPECT_TRUE(other("[8,6]", "[0,6]").ok());
}

TEST(OrbaxZarr, V2) {
  const ZarrArray plain = DecodeZarray("F", V2("\"<f4\"", kPlain)).value();
  EXPECT_EQ(plain.key_separator, '.');
  EXPECT_FALSE(plain.key_prefix);
  EXPECT_EQ(DecodeZarray("F", V2("\">i1\"", kPlain))->dtype, DType::kInt8);
  EXPECT_EQ(DecodeZarray("F", V2("\"float8_e5m2\"", kPlain))->dtype, DType::kFloat8E5M2);
  for (const char* const dtype : {"\">f4\"", "\">c16\"", "\"=f4\"", "\"|f1\"", "\"<M8[ns]\"",
                                  "\"|S3\"", "[[\"a\",\"<f4\"]]", "\"uint4\"", "\"\"", "\"<\""}) {
    ExpectZarrError(DecodeZarray("F", V2(dtype, kPlain)).status(), StatusCode::kUnimplemented,
                    "F: dtype");
  }
  const auto rest = [](const std::string& more) { return DecodeZarray("F", V2("\"<f4\"", more)); };
  const std::string tail = R"(,"fill_value":null,"filters":null,"order":"C")";
  EXPECT_EQ(rest(R"("compressor":{"id":"blosc"})" + tail)->codecs.blosc_shuffle, -1);
  EXPECT_EQ(rest(R"("compressor":{"id":"zstd"})" + tail)->codecs.level, 1);
  EXPECT_EQ(rest(R"("compressor":{"id":"zlib","level":9})" + tail)->codecs.compressor,
            ZarrCompressor::kZlib);
  ExpectZarrError(rest(R"("compressor":{"id":"bz2"})" + tail).status(), StatusCode::kUnimplemented,
                  "\"bz2\"");
  ExpectZarrError(
      rest(R"("compressor":null,"fill_value":null,"filters":[{}],"order":"C")").status(),
      StatusCode::kUnimplemented, "filters");
  ExpectZarrError(
      rest(R"("compressor":null,"fill_value":null,"filters":null,"order":"F")").status(),
      StatusCode::kUnimplemented, "C order");
  ExpectZarrError(rest(R"("compressor":null,"fill_value":null,"order":"C")").status(),
                  StatusCode::kDataLoss, "no \"filters\"");
}

TEST(OrbaxZarr, FillValues) {
  const auto fill = [](const std::string& dtype, const std::string& value) -> Result<std::string> {
    STEPWELL_ASSIGN_OR_RETURN(const ZarrArray array,
                              DecodeZarrJson("F", V3(std::string(kBytes), dtype, value)));
    return ZarrFillElement("F", array);
  };
  EXPECT_EQ(fill("int16", "-2").value(), "\xfe\xff");
  EXPECT_EQ(fill("int4", "-3").value(), "\x0d");
  EXPECT_EQ(fill("uint64", "18446744073709551615").value(), std::string(8, '\xff'));
  EXPECT_EQ(fill("bool", "true").value(), "\x01");
  EXPECT_EQ(fill("float32", "1.5").value(), std::string("\0\0\xc0\x3f", 4));
  EXPECT_EQ(fill("float32", "\"0x7fc00001\"").value(), std::string("\x01\0\xc0\x7f", 4));
  EXPECT_EQ(fill("bfloat16", "\"0x7fc1\"").value(), "\xc1\x7f");
  EXPECT_EQ(fill("float64", "\"-Infinity\"").value(), std::string("\0\0\0\0\0\0\xf0\xff", 8));
  EXPECT_EQ(fill("complex64", "[0, -1.0]").value(), std::string("\0\0\0\0\0\0\x80\xbf", 8));
  ExpectZarrError(fill("int8", "128").status(), StatusCode::kDataLoss,
                  "F: fill_value: 128 is not of type int8");
  ExpectZarrError(fill("int2", "-3").status(), StatusCode::kDataLoss, "is not of type int2");
  ExpectZarrError(fill("uint8", "-1").status(), StatusCode::kDataLoss, "not negative");
  ExpectZarrError(fill("float32", "\"x\"").status(), StatusCode::kDataLoss, "is not a number");
  ExpectZarrError(fill("float32", "1e300").status(), StatusCode::kUnimplemented, "range");
  ExpectZarrError(fill("float16", "1.5").status(), StatusCode::kUnimplemented, "other than 0");
  ExpectZarrError(fill("float16", "-0.0").status(), StatusCode::kUnimplemented, "other than 0");
}

}  // namespace
}  // namespace stepwell::format::orbax
