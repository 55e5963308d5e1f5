// SPDX-License-Identifier: Apache-2.0
// Orbax's JSON files: what the fields are, and what is refused with which words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "format/orbax/orbax_files.h"
#include "format/orbax/python_text.h"
#include "format/orbax/tree_metadata.h"

namespace stepwell::format::orbax {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void ExpectError(const Status& status, StatusCode code, const std::string& what) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(what));
}

std::string Repr(std::string_view text) {
  std::string out;
  AppendPythonRepr(text, &out);
  return out;
}

std::string Float(double value) {
  std::string out;
  AppendJsonFloat(value, &out);
  return out;
}

// Expected values: Python 3.11.
TEST(OrbaxText, ReprIsPythons) {
  EXPECT_EQ(Repr("a"), "'a'");
  EXPECT_EQ(Repr("it's"), "\"it's\"");
  EXPECT_EQ(Repr("'\""), "'\\'\"'");
  EXPECT_EQ(Repr("\\\n\r\t"), "'\\\\\\n\\r\\t'");
  EXPECT_EQ(Repr(std::string_view("\0\x1f\x7f", 3)), "'\\x00\\x1f\\x7f'");
  EXPECT_EQ(Repr("\xc2\xa0\xc2\xad\xc3\xa9"), "'\\xa0\\xad\xc3\xa9'");
  EXPECT_EQ(Repr("\xe2\x80\x8b\xee\x80\x80\xe2\x82\xac"), "'\\u200b\\ue000\xe2\x82\xac'");
  EXPECT_EQ(Repr("\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf"), "'\xf0\x9f\x98\x80\\U0010ffff'");
}

TEST(OrbaxText, FloatsAreSpelledAsPythonDoes) {
  EXPECT_EQ(Float(0), "0.0");
  EXPECT_EQ(Float(-0.0), "-0.0");
  EXPECT_EQ(Float(1e15), "1000000000000000.0");
  EXPECT_EQ(Float(1e16), "1e+16");
  EXPECT_EQ(Float(1.5e300), "1.5e+300");
  EXPECT_EQ(Float(0.0001), "0.0001");
  EXPECT_EQ(Float(0.00001), "1e-05");
  EXPECT_EQ(Float(5e-324), "5e-324");
  EXPECT_EQ(Float(0.1), "0.1");
  EXPECT_EQ(Float(123456789.125), "123456789.125");
  EXPECT_EQ(Float(-INFINITY), "-Infinity");
}

TEST(OrbaxText, Utf8) {
  for (const std::string_view good :
       {"", "a\xc3\xa9", "\xed\x9f\xbf", "\xee\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good));
  }
  for (const std::string_view bad :
       {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xed\xbf\xbf",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff", "a\xe2\x82"}) {
    EXPECT_FALSE(IsUtf8(bad)) << Printable(bad);
  }
}

TEST(OrbaxJson, NonFiniteNumbersPassWhereJsonHasNumbers) {
  const std::string text =
      R"({"NaN": "Infinity \" NaN", "a": [NaN, -Infinity, 0, Infinity, -1, 2e3], "b": 0})";
  EXPECT_EQ(
      NormalJson("F", text).value(),
      R"({"NaN": "Infinity \" NaN", "a": [NaN, -Infinity, 0, Infinity, -1, 2000.0], "b": 0})");
  EXPECT_EQ(NormalJson("F", "NaN").value(), "NaN");
  EXPECT_EQ(NormalJson("F", " -Infinity").value(), "-Infinity");
  for (const char* const bad : {"-NaN", "1NaN", "NaN1", "NaN NaN", "[NaN", "nan", "+Infinity",
                                "InfinityInfinity", "1 Infinity", "-", "--Infinity", "Infinity0"}) {
    ExpectError(NormalJson("F", bad).status(), StatusCode::kDataLoss, "F: not JSON");
  }
}

TEST(OrbaxJson, IntegersOfAnySizeStayAsTheyAre) {
  const std::string long_one = "-" + std::string(4299, '3');
  for (const std::string& text :
       {std::string("18446744073709551616"), std::string("-9223372036854775809"), long_one}) {
    EXPECT_EQ(NormalJson("F", text).value(), text);
    const std::string in_list = "[NaN, " + text + ", 1, {\"" + text + "\": " + text + "}, 0]";
    EXPECT_EQ(NormalJson("F", in_list).value(), in_list);
  }
  for (const char* const bad :
       {"018446744073709551616", "18446744073709551616a", "--18446744073709551616",
        "18446744073709551616-", "1 18446744073709551616", "18446744073709551616NaN"}) {
    EXPECT_FALSE(NormalJson("F", bad).ok()) << bad;
  }
  EXPECT_EQ(NormalJson("F", "18446744073709551616.5").value(), "1.8446744073709552e+19");
}

TEST(OrbaxJson, WhatCannotBeKeptIsRefused) {
  ExpectError(NormalJson("F", R"({"a": 1, "b": {"c": 1, "c": 2}})").status(), StatusCode::kDataLoss,
              "F: the key \"c\" is in one object twice");
  ExpectError(NormalJson("F", "[" + std::string(4301, '7') + "]").status(),
              StatusCode::kUnimplemented, "F: an integer of more than 4300 digits");
  EXPECT_EQ(NormalJson("F", "[18446744073709551615, -9223372036854775808]").value(),
            "[18446744073709551615, -9223372036854775808]");
  ExpectError(NormalJson("F", "[1e999]").status(), StatusCode::kDataLoss, "F: not JSON");
  ExpectError(NormalJson("F", R"("\ud800")").status(), StatusCode::kDataLoss, "surrogate");
  ExpectError(NormalJson("F", "\"\xed\xa0\x80\"").status(), StatusCode::kDataLoss, "UTF-8");
  ExpectError(NormalJson("F", std::string_view("{}\0x", 4)).status(), StatusCode::kDataLoss, "NUL");
  ExpectError(NormalJsonObject("F", "[]").status(), StatusCode::kDataLoss, "an object is expected");
  EXPECT_TRUE(NormalJson("F", std::string(100, '[') + std::string(100, ']')).ok());
  ExpectError(NormalJson("F", std::string(101, '[') + std::string(101, ']')).status(),
              StatusCode::kDataLoss, "deeper than 100");
}

TEST(OrbaxNames, KeysOfEveryType) {
  const KeyPath path = {PathComponent::Key("a b/"), PathComponent::Index(3),
                        PathComponent::Attribute("mu"), PathComponent::IntKey(-5)};
  const std::vector<TreeKey> keys = TreeKeys(path).value();
  EXPECT_THAT(keys, ElementsAre(TreeKey{"a b/", KeyType::kDict}, TreeKey{"3", KeyType::kSequence},
                                TreeKey{"mu", KeyType::kDict}, TreeKey{"-5", KeyType::kDict}));
  EXPECT_EQ(ParamName(keys), "a b/.3.mu.-5");
  EXPECT_EQ(PathOfTreeKeys(keys).value(),
            (KeyPath{PathComponent::Key("a b/"), PathComponent::Index(3), PathComponent::Key("mu"),
                     PathComponent::Key("-5")}));
  EXPECT_EQ(ParamName({}), "");
  EXPECT_EQ(StoreKey("a.b", "c/0"), "a.b/c/0");
  EXPECT_EQ(StoreKey("", "zarr.json"), "zarr.json");
  EXPECT_EQ(StoreKey("/", "zarr.json"), "zarr.json");
  EXPECT_EQ(StoreKey("a/", "zarr.json"), "a/zarr.json");
  EXPECT_EQ(StoreKey("//", ".zarray"), "//.zarray");
  ExpectError(TreeKeys({PathComponent::Key("\xed\xa0\x80")}).status(), StatusCode::kInvalidArgument,
              "\\xed\\xa0\\x80\" is not UTF-8");
  for (const char* const bad : {"", "-1", "x", "1x", " 1", "99999999999999999999"}) {
    const std::vector<TreeKey> index = {{bad, KeyType::kSequence}};
    ExpectError(PathOfTreeKeys(index).status(), StatusCode::kDataLoss, "is not a list index");
  }
}

TEST(OrbaxNames, AllLeavesOfOneNameAreFound) {
  const std::vector<std::string> names = {"b", "a.b", "c", "a.b", "", "a.b", "c"};
  const std::vector<NameCollision> found = FindNameCollisions(names);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "a.b");
  EXPECT_THAT(found[0].leaves, ElementsAre(1, 3, 5));
  EXPECT_EQ(found[1].name, "c");
  EXPECT_THAT(found[1].leaves, ElementsAre(2, 6));
  EXPECT_TRUE(FindNameCollisions({}).empty());
  const std::vector<std::string> slashes = {"a/", "b//", "", "a", "b/", "/"};
  const std::vector<NameCollision> alike = FindNameCollisions(slashes);
  ASSERT_EQ(alike.size(), 2U);
  EXPECT_THAT(alike[0].leaves, ElementsAre(2, 5));
  EXPECT_THAT(alike[1].leaves, ElementsAre(0, 3));
}

TEST(OrbaxTree, FieldsAndRefusals) {
  TreeMetadata tree;
  tree.use_ocdbt = true;
  tree.use_zarr3 = true;
  tree.store_array_data_equal_to_fill_value = true;
  tree.entries.push_back({{{"a", KeyType::kDict}, {"0", KeyType::kSequence}},
                          OrbaxType::kJaxArray,
                          false,
                          Shape{2, 3}});
  tree.entries.push_back({{{"n", KeyType::kDict}}, OrbaxType::kNone, true, std::nullopt});
  const std::string text = EncodeTreeMetadata(tree).value();
  EXPECT_EQ(DecodeTreeMetadata("F", text).value(), tree);
  EXPECT_THAT(text, HasSubstr(R"x("('a', '0')": {)x"));

  // These fields may be absent.
  const TreeMetadata bare =
      DecodeTreeMetadata("F", R"({"tree_metadata": {"k": {"key_metadata": [], "value_metadata":
        {"value_type": "scalar", "skip_deserialize": false, "new": 1}}}, "new": []})")
          .value();
  EXPECT_EQ(bare.use_ocdbt, std::nullopt);
  EXPECT_FALSE(bare.use_zarr3);
  EXPECT_EQ(bare.custom_metadata, "null");
  EXPECT_EQ(bare.entries[0].type, OrbaxType::kScalar);

  const auto replaced = [&text](const std::string& from, const std::string& to) {
    std::string other = text;
    return DecodeTreeMetadata("F", other.replace(other.find(from), from.size(), to)).status();
  };
  ExpectError(replaced("jax.Array", "jax.New"), StatusCode::kUnimplemented,
              "F: tree_metadata.('a', '0').value_metadata.value_type: values of type \"jax.New\"");
  ExpectError(replaced("\"key_type\": 1", "\"key_type\": 3"), StatusCode::kUnimplemented,
              "key_metadata[1].key_type: the type of key 3");
  ExpectError(replaced("skip_deserialize", "skip"), StatusCode::kDataLoss,
              "no \"skip_deserialize\"");
  ExpectError(replaced("[2, 3]", "[2, -3]"), StatusCode::kDataLoss, "write_shape[1]");
  ExpectError(DecodeTreeMetadata("F", R"({"tree_metadata": {"x": {"key_metadata": [],
      "value_metadata": {"value_type": "None", "skip_deserialize": true}}, "y": {"key_metadata": [],
      "value_metadata": {"value_type": "None", "skip_deserialize": true}}}})")
                  .status(),
              StatusCode::kDataLoss, "two entries for the leaf");

  tree.entries.push_back(tree.entries[0]);
  ExpectError(EncodeTreeMetadata(tree).status(), StatusCode::kInvalidArgument,
              "two leaves have the path ('a', '0')");
  tree.entries.resize(1);
  tree.custom_metadata = "{";
  ExpectError(EncodeTreeMetadata(tree).status(), StatusCode::kInvalidArgument, "custom_metadata");
  tree.entries.clear();
  ExpectError(EncodeTreeMetadata(tree).status(), StatusCode::kInvalidArgument, "without leaves");
}

TEST(OrbaxSharding, FieldsAndRefusals) {
  NamedSharding named;
  named.mesh_shape = {2, 1};
  named.axis_names = {"x", "y"};
  named.partition_spec = {{}, {{"x"}, false}, {{"x", "y"}, false}, {{"y"}, true}};
  named.device_ids = {{7, 3}};
  const std::vector<LeafSharding> leaves = {
      {"", SingleDeviceSharding{"cpu:0"}}, {"all", ReplicatedSharding()}, {"~\xc3\xbf", named}};
  const std::string text = EncodeShardings(leaves).value();
  EXPECT_EQ(DecodeShardings("F", text).value(), leaves);
  EXPECT_THAT(text, HasSubstr(R"(\"shape\": [-1])"));
  EXPECT_THAT(text, HasSubstr(R"(\"mesh\": [[{\"id\": 7}], [{\"id\": 3}]])"));
  EXPECT_THAT(text, HasSubstr(R"([null, \"x\", [\"x\", \"y\"], [\"y\"]])"));
  EXPECT_THAT(text, HasSubstr("\"fsO_\":"));  // URL-safe

  const auto decode = [](const std::string& key, const std::string& inner) {
    std::string quoted;
    AppendJsonStringUtf8(inner, &quoted);
    return DecodeShardings("F", "{\"" + key + "\":" + quoted + "}");
  };
  const auto unknown = decode("YQ==", R"({"sharding_type": "GSPMD", "x": 1})").value();
  EXPECT_EQ(std::get<UnknownSharding>(unknown[0].sharding).json,
            R"({"sharding_type": "GSPMD", "x": 1})");
  ExpectError(decode("YQ=", "{}").status(), StatusCode::kDataLoss, "base64");
  ExpectError(decode("YR==", "{}").status(), StatusCode::kDataLoss, "base64");
  ExpectError(decode("YQ==", "{").status(), StatusCode::kDataLoss, "F: the leaf \"a\": not JSON");
  ExpectError(
      decode("YQ==", R"({"sharding_type": "NamedSharding", "shape": [2], "axis_names": ["x"],
      "partition_spec": [], "device_mesh": {"mesh": [{"id": 1}]}})")
          .status(),
      StatusCode::kDataLoss, "a mesh of 2 devices has 1 device id");
  ExpectError(decode("YQ==", R"({"sharding_type": "NamedSharding", "shape": [4294967296],
      "axis_names": ["x"], "partition_spec": []})")
                  .status(),
              StatusCode::kDataLoss, "devices");
  ExpectError(EncodeShardings({leaves[0], leaves[0]}).status(), StatusCode::kInvalidArgument,
              "there twice");
}

TEST(OrbaxStrings, NestedBySlashes) {
  const std::vector<LeafString> leaves = {
      {"a/b", "1"}, {"a/c/", "2"}, {"", "3"}, {"z", "\x01\xc3\xa9"}};
  const std::string text = EncodeStrings(leaves).value();
  EXPECT_EQ(text, "{\"\":\"3\",\"a\":{\"b\":\"1\",\"c\":{\"\":\"2\"}},\"z\":\"\\u0001\xc3\xa9\"}");
  EXPECT_THAT(DecodeStrings("F", text).value(),
              ElementsAre(leaves[2], leaves[0], leaves[1], leaves[3]));
  for (const auto& both : {std::pair("a", "a/b"), std::pair("a/b", "a"), std::pair("a", "a"),
                           std::pair("a/b", "a/b/c/d")}) {
    ExpectError(EncodeStrings({{both.first, "x"}, {both.second, "y"}}).status(),
                StatusCode::kInvalidArgument, "cannot save both");
  }
  ExpectError(EncodeStrings({{"a~b", "x"}}).status(), StatusCode::kInvalidArgument, "\"a~b\"");
  ExpectError(EncodeStrings({{"a", "\xff"}}).status(), StatusCode::kInvalidArgument, "not UTF-8");
  ExpectError(EncodeStrings({{std::string(100, '/'), "x"}}).status(), StatusCode::kInvalidArgument,
              "more than 99");
  EXPECT_TRUE(DecodeStrings("F", EncodeStrings({{std::string(99, '/'), "x"}}).value()).ok());
  ExpectError(DecodeStrings("F", R"({"a/b":"x"})").status(), StatusCode::kDataLoss, "nested");
  ExpectError(DecodeStrings("F", R"({"a":{"b":3}})").status(), StatusCode::kDataLoss,
              "F: a.b: text is expected, not number");
}

TEST(OrbaxCheckpoint, HandlersAndAbsentMembers) {
  CheckpointMetadata metadata;
  metadata.handlers =
      std::vector<ItemHandler>{{"state", std::string(kStandardHandler)}, {"meta", std::nullopt}};
  metadata.metrics = R"({"loss": NaN})";
  metadata.init_time_ns = 1795244762273875968;
  const std::string text = EncodeCheckpointMetadata(metadata).value();
  EXPECT_EQ(DecodeCheckpointMetadata("F", text).value(), metadata);
  EXPECT_EQ(DecodeCheckpointMetadata("F", "{}").value(), CheckpointMetadata());
  EXPECT_EQ(DecodeCheckpointMetadata("F", R"({"item_handlers": null, "metrics": null})").value(),
            CheckpointMetadata());
  ExpectError(DecodeCheckpointMetadata("F", R"({"item_handlers": {"a": 1}})").status(),
              StatusCode::kDataLoss, "F: item_handlers.a: text is expected");
  ExpectError(DecodeCheckpointMetadata("F", R"({"init_timestamp_nsecs": 1.5})").status(),
              StatusCode::kDataLoss, "an integer is expected");
  CheckpointMetadata twice = metadata;
  std::get<1>(twice.handlers).push_back({"state", std::nullopt});
  ExpectError(EncodeCheckpointMetadata(twice).status(), StatusCode::kInvalidArgument, "\"state\"");
  metadata.custom_metadata = "[]";
  ExpectError(EncodeCheckpointMetadata(metadata).status(), StatusCode::kInvalidArgument,
              "custom_metadata: an object is expected");
  EXPECT_EQ(FindHandler(kStandardHandler)->kind, HandlerKind::kPyTree);
  EXPECT_EQ(FindHandler(kV1JsonHandler)->json_file, "data.json");
  EXPECT_EQ(FindHandler("x"), nullptr);
}

TEST(OrbaxCommit, OneLine) {
  EXPECT_EQ(EncodeCommitSuccess("/a/7"), "Checkpoint commit was successful to /a/7");
}

}  // namespace
}  // namespace stepwell::format::orbax
