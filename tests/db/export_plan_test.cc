// SPDX-License-Identifier: Apache-2.0
// An export has the planned leaves, under the planned names.
#include "db/export/orbax/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "db/export/orbax/bytes.h"
#include "db/export/orbax/files.h"
#include "format/orbax/ocdbt_read.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::DType;
using format::KeyPath;
using format::LeafRecord;
using format::PathComponent;
using format::orbax::OrbaxType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

KeyPath Path(const std::string& slashed) {
  KeyPath path;
  for (size_t at = 0; at < slashed.size();) {
    const size_t end = std::min(slashed.find('/', at), slashed.size());
    path.push_back(PathComponent::Key(slashed.substr(at, end - at)));
    at = end + 1;
  }
  return path;
}

LeafRecord Leaf(const KeyPath& path, const std::string& item = "state") {
  LeafRecord leaf;
  leaf.key = format::EncodeLeafKey(item, path).value();
  return leaf;
}

LeafRecord Array(const KeyPath& path, DType dtype, const format::Shape& shape,
                 const format::Shape& chunk_shape) {
  LeafRecord leaf = Leaf(path);
  leaf.dtype = dtype;
  leaf.shape = shape;
  leaf.chunk_shape = chunk_shape;
  leaf.chunk_count = format::ChunkCount(shape, chunk_shape);
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    format::ChunkRecord chunk;
    chunk.segment = 3;
    chunk.offset_bytes = 8192 + i * 4096;
    chunk.stored_bytes = 1004;
    leaf.chunks.push_back(chunk);
  }
  return leaf;
}

LeafRecord Value(const KeyPath& path, format::ValueType type, const std::string& bytes) {
  LeafRecord leaf = Leaf(path);
  leaf.kind = format::LeafKind::kValue;
  leaf.value_type = type;
  leaf.inline_value = bytes;
  leaf.logical_bytes = bytes.size();
  return leaf;
}

LeafRecord Node(const KeyPath& path, format::ContainerKind kind, uint64_t children) {
  LeafRecord leaf = Leaf(path);
  leaf.kind = format::LeafKind::kNode;
  leaf.container = kind;
  leaf.child_count = children;
  return leaf;
}

std::vector<LeafRecord> Sorted(std::vector<LeafRecord> leaves) {
  std::sort(leaves.begin(), leaves.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  return leaves;
}

std::map<std::string, OrbaxType> Types(const ExportItem& item) {
  std::map<std::string, OrbaxType> types;
  for (const auto& entry : item.tree.entries) {
    types[format::orbax::ParamName(entry.keys)] = entry.type;
  }
  return types;
}

TEST(ExportPlanTest, EveryKindOfLeafHasItsType) {
  LeafRecord scalar = Array(Path("np"), DType::kFloat32, {}, {});
  scalar.value_type = format::ValueType::kNumpyScalar;
  LeafRecord complex = Array(Path("z"), DType::kComplex64, {}, {});
  complex.value_type = format::ValueType::kNumpyScalar;
  LeafRecord jax = Array(Path("jax"), DType::kBFloat16, {3}, {3});
  jax.value_type = format::ValueType::kJaxArray;
  const auto leaves =
      Sorted({Node({}, format::ContainerKind::kDict, 12), Array(Path("a"), DType::kInt4, {9}, {4}),
              jax, scalar, complex, Value(Path("int"), format::ValueType::kInt, "-5"),
              Value(Path("big"), format::ValueType::kInt, "18446744073709551615"),
              Value(Path("yes"), format::ValueType::kBool, "\1"),
              Value(Path("text"), format::ValueType::kStr, "x"),
              Value(Path("none"), format::ValueType::kNone, ""),
              Node(Path("list"), format::ContainerKind::kList, 0),
              Node(Path("named"), format::ContainerKind::kNamedTuple, 0)});
  const auto plan = PlanExport({}, leaves, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->items.size(), 1U);
  const ExportItem& item = plan->items[0];
  const std::map<std::string, OrbaxType> wanted = {
      {"a", OrbaxType::kNumpyArray}, {"z", OrbaxType::kNumpyArray}, {"jax", OrbaxType::kNumpyArray},
      {"np", OrbaxType::kScalar},    {"int", OrbaxType::kScalar},   {"big", OrbaxType::kScalar},
      {"yes", OrbaxType::kScalar},   {"text", OrbaxType::kString},  {"none", OrbaxType::kNone},
      {"list", OrbaxType::kList},    {"named", OrbaxType::kNone}};
  EXPECT_EQ(Types(item), wanted);
  EXPECT_EQ(plan->leaves, 8U);
  EXPECT_EQ(plan->chunks, 6U);
  for (const ExportArray& array : item.arrays) {
    if (array.name == "int") {
      EXPECT_EQ(array.element.size(), 12U);  // 8 and the CRC
    }
    if (array.name == "big") {
      EXPECT_EQ(array.zarr.dtype, DType::kUInt64);
    }
  }
}

TEST(ExportPlanTest, WhatOrbaxCannotHoldIsToldAtOnce) {
  LeafRecord surrogate = Value(Path("s"), format::ValueType::kStr, "\xed\xa0\x80");
  const auto leaves = Sorted({Array(Path("u4"), DType::kUInt4, {2}, {2}),
                              Array(Path("f8"), DType::kFloat8E4M3, {2}, {2}),
                              Value(Path("bytes"), format::ValueType::kBytes, "x"),
                              Value(Path("huge"), format::ValueType::kInt, "18446744073709551616"),
                              Value(Path("z"), format::ValueType::kComplex, std::string(16, '\0')),
                              surrogate, Value(Path("a~b"), format::ValueType::kStr, "x"),
                              Array({PathComponent::Key("\xff")}, DType::kInt8, {2}, {2}),
                              Array(Path("good"), DType::kInt8, {2}, {2})});
  const Status status = PlanExport({}, leaves, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* text :
       {"8 parts", "state/u4: is uint4", "state/f8: is float8_e4m3,",
        "state/bytes: is of type bytes", "state/huge: is an integer beyond",
        "state/z: is a Python complex", "state/s: is a str with lone", "state/a~b", "UTF-8"}) {
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
  ExportOptions options;
  options.on_unsupported = OnUnsupported::kSkip;
  const auto plan = PlanExport({}, leaves, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->skipped.size(), 8U);
  EXPECT_EQ(plan->items[0].arrays.size(), 1U);
}

TEST(ExportPlanTest, WideningIsReported) {
  const auto leaves = Sorted(
      {Array(Path("u4"), DType::kUInt4, {2}, {2}), Array(Path("f8"), DType::kFloat8E4M3, {2}, {2}),
       Value(Path("z"), format::ValueType::kComplex, std::string(16, '\0'))});
  ExportOptions options;
  options.on_unsupported = OnUnsupported::kWiden;
  const auto plan = PlanExport({}, leaves, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->widened.size(), 3U);
  for (const ExportArray& array : plan->items[0].arrays) {
    EXPECT_EQ(array.rewrite, array.name == "f8");
    if (array.name == "u4") {
      EXPECT_EQ(array.zarr.dtype, DType::kUInt8);
    }
    if (array.name == "f8") {
      EXPECT_EQ(array.zarr.dtype, DType::kFloat16);
    }
    if (array.name == "z") {
      EXPECT_EQ(array.zarr.dtype, DType::kComplex128);
    }
  }
}

TEST(ExportPlanTest, NamesThatOrbaxCannotTellApartAreRefused) {
  const auto leaves = Sorted({Array(Path("a/b"), DType::kInt8, {2}, {2}),
                              Array(Path("a.b"), DType::kInt8, {2}, {2}),
                              Array({PathComponent::IntKey(5)}, DType::kInt8, {2}, {2}),
                              Array(Path("5"), DType::kInt8, {2}, {2}),
                              Value({PathComponent::Key("s")}, format::ValueType::kStr, "x"),
                              Value({PathComponent::Key("s/t")}, format::ValueType::kStr, "y")});
  const Status status = PlanExport({}, leaves, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("3 parts"));
  EXPECT_THAT(status.message(), HasSubstr("Orbax names it \"a.b\""));
  EXPECT_THAT(status.message(), HasSubstr("beside the str state/s"));
}

TEST(ExportPlanTest, ASubtreeBecomesTheTree) {
  const auto leaves = Sorted({Node(Path("p/q"), format::ContainerKind::kDict, 1),
                              Array(Path("p/q/w"), DType::kInt8, {2}, {2})});
  ExportOptions options;
  options.subtree_key = leaves[0].key;
  const auto plan = PlanExport({}, leaves, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->items[0].arrays[0].name, "w");
  options.subtree_key = leaves[1].key;
  const auto alone = PlanExport({}, std::span(leaves).subspan(1), options);
  ASSERT_TRUE(alone.ok()) << alone.status().ToString();
  EXPECT_EQ(alone->items[0].arrays[0].name, "");
}

TEST(ExportPlanTest, ShardingsOfJaxArrays) {
  LeafRecord jax = Array(Path("a"), DType::kFloat32, {4}, {2});
  jax.value_type = format::ValueType::kJaxArray;
  jax.sharding_json = R"({"sharding_type": "SingleDeviceSharding", "device_str": "cpu:0"})";
  LeafRecord key = Array(Path("key"), DType::kUInt32, {2}, {2});
  key.value_type = format::ValueType::kPrngKey;
  key.prng_impl = "threefry2x32";
  key.sharding_json = jax.sharding_json;
  LeafRecord odd = Array(Path("odd"), DType::kFloat32, {4}, {2});
  odd.value_type = format::ValueType::kJaxArray;
  const auto leaves = Sorted({jax, key, odd});
  ExportOptions options;
  options.leaves = ExportLeaves::kJax;
  const auto plan = PlanExport({}, leaves, options);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const ExportItem& item = plan->items[0];
  EXPECT_EQ(Types(item)["a"], OrbaxType::kJaxArray);
  EXPECT_EQ(Types(item)["odd"], OrbaxType::kNumpyArray);
  ASSERT_EQ(plan->as_numpy.size(), 1U);
  EXPECT_EQ(plan->as_numpy[0].path, "state/odd");
  ASSERT_EQ(item.array_metadatas.size(), 2U);
  EXPECT_EQ(item.array_metadatas[1].random_key_impl, "threefry2x32");
  EXPECT_EQ(item.shardings.size(), 2U);
}

TEST(ExportPlanTest, KeysStayKeysAsNumpy) {
  LeafRecord key = Array(Path("key"), DType::kUInt32, {2}, {2});
  key.value_type = format::ValueType::kPrngKey;
  key.prng_impl = "rbg";
  key.sharding_json = R"({"sharding_type": "SingleDeviceSharding", "device_str": "cuda:3"})";
  LeafRecord raw = Array(Path("raw"), DType::kUInt32, {2}, {2});
  raw.value_type = format::ValueType::kJaxArray;
  raw.sharding_json = key.sharding_json;
  const auto plan = PlanExport({}, std::vector{key, raw}, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const ExportItem& item = plan->items[0];
  EXPECT_EQ(Types(item)["key"], OrbaxType::kJaxArray);
  EXPECT_EQ(Types(item)["raw"], OrbaxType::kNumpyArray);
  ASSERT_EQ(item.array_metadatas.size(), 1U);
  EXPECT_EQ(item.array_metadatas[0].random_key_impl, "rbg");
  ASSERT_EQ(item.shardings.size(), 1U);
  EXPECT_EQ(item.shardings[0].sharding,
            format::orbax::Sharding(format::orbax::ReplicatedSharding()));
}

// Orbax has a level "value" for each Variable of NNX.
TEST(ExportPlanTest, VariablesHaveALevelOfTheirOwn) {
  const auto variable = [](LeafRecord leaf, const std::string& types) {
    leaf.variable_types = types;
    return leaf;
  };
  const auto leaves = Sorted({
      Node({}, format::ContainerKind::kDict, 5),
      variable(Array(Path("kernel"), DType::kFloat32, {2}, {2}), "flax.Param"),
      variable(Array(Path("nested"), DType::kFloat32, {2}, {2}), "flax.Param flax.Param"),
      variable(Node(Path("tree"), format::ContainerKind::kDict, 2), "flax.BatchStat"),
      Array(Path("tree/a"), DType::kFloat32, {2}, {2}),
      variable(Array(Path("tree/b"), DType::kFloat32, {2}, {2}), "flax.Param"),
      Array(Path("treetop"), DType::kFloat32, {2}, {2}),
      variable(Node(Path("zero"), format::ContainerKind::kDict, 0), "flax.Param"),
  });
  const auto plan = PlanExport({}, leaves, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const std::map<std::string, OrbaxType> wanted = {
      {"kernel.value", OrbaxType::kNumpyArray}, {"nested.value.value", OrbaxType::kNumpyArray},
      {"tree.value.a", OrbaxType::kNumpyArray}, {"tree.value.b.value", OrbaxType::kNumpyArray},
      {"treetop", OrbaxType::kNumpyArray},      {"zero.value", OrbaxType::kDict}};
  EXPECT_EQ(Types(plan->items[0]), wanted);

  ExportOptions options;
  options.subtree_key = leaves[3].key;
  const auto subtree = PlanExport({}, std::span(leaves).subspan(3, 3), options);
  ASSERT_TRUE(subtree.ok()) << subtree.status().ToString();
  EXPECT_EQ(Types(subtree->items[0]),
            (std::map<std::string, OrbaxType>{{"value.a", OrbaxType::kNumpyArray},
                                              {"value.b.value", OrbaxType::kNumpyArray}}));
}

TEST(ExportPlanTest, TextsOfTheStep) {
  format::StepRecord step;
  step.metadata_json = "[1]";
  step.metrics_json = R"({"loss":0.5})";
  const auto leaves = Sorted({Array(Path("a"), DType::kInt8, {2}, {2})});
  const Status status = PlanExport(step, leaves, {}).status();
  EXPECT_THAT(status.message(), HasSubstr("metadata"));
  step.metadata_json.clear();
  const auto plan = PlanExport(step, leaves, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->items.size(), 2U);
  EXPECT_EQ(plan->items[1].folder, "metrics");
  EXPECT_EQ(plan->items[1].json, R"({"loss": 0.5})");
  EXPECT_EQ(PlanExport({}, {}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ExportPlanTest, StepNames) {
  ExportOptions options;
  EXPECT_EQ(ExportStepName(7, options).value(), "7");
  options.step_digits = 4;
  EXPECT_EQ(ExportStepName(7, options).value(), "0007");
  options.step_prefix = "ckpt";
  EXPECT_EQ(ExportStepName(123456, options).value(), "ckpt_123456");
  options.step_prefix = "a/b";
  EXPECT_EQ(ExportStepName(7, options).status().code(), StatusCode::kInvalidArgument);
}

// ---- bytes -------------------------------------------------------------------------------------

std::vector<ExportArray> ArraysOf(const std::vector<LeafRecord>& leaves) {
  std::vector<ExportArray> arrays;
  for (const LeafRecord& leaf : leaves) arrays.emplace_back().leaf = &leaf;
  return arrays;
}

format::ChunkRecord Chunk(uint64_t segment, uint64_t offset_bytes, uint32_t stored_bytes) {
  format::ChunkRecord chunk;
  chunk.segment = segment;
  chunk.offset_bytes = offset_bytes;
  chunk.stored_bytes = stored_bytes;
  return chunk;
}

TEST(ExportBytesTest, RunsAreMergedAndPacked) {
  std::vector<LeafRecord> leaves(2);
  leaves[0].chunks = {Chunk(2, 4096, 5000), Chunk(1, 8192, 10)};
  leaves[1].chunks = {Chunk(2, 12288, 100), Chunk(2, 40960, 100), Chunk(1, 8256, 10)};
  const auto arrays = ArraysOf(leaves);
  const auto runs = PlanRuns(arrays, 4096);
  EXPECT_THAT(runs, ElementsAre(ByteRun{1, 8192, 4096, 0}, ByteRun{2, 4096, 12288, 4096},
                                ByteRun{2, 40960, 4096, 16384}));
  EXPECT_EQ(RunsEnd(runs), 20480U);
  const ChunkPlaces places = ChunkPlaces::Packed("d/chunks", runs);
  EXPECT_EQ(places.Find(0, leaves[1].chunks[2])->offset_bytes, 64U);
  EXPECT_EQ(places.Find(0, leaves[1].chunks[0])->offset_bytes, 4096U + 8192U);
  EXPECT_EQ(RunsEnd(PlanRuns(arrays, 1)), 5220U);  // not a byte of the neighbours
}

TEST(ExportBytesTest, DataFilesEndBetweenChunks) {
  std::vector<LeafRecord> leaves(1);
  leaves[0].chunks = {Chunk(1, 4096, 6000), Chunk(1, 10096, 100), Chunk(1, 10196, 20000),
                      Chunk(1, 49152, 4096), Chunk(2, 0, 9000)};
  const auto arrays = ArraysOf(leaves);
  const auto runs = PlanRuns(arrays, 4096, 12288);
  // The third chunk is larger than a file may be, and shares a block with those before it.
  EXPECT_THAT(runs, ElementsAre(ByteRun{1, 4096, 8192, 0, 0}, ByteRun{1, 8192, 24576, 0, 1},
                                ByteRun{1, 49152, 4096, 0, 2}, ByteRun{2, 0, 12288, 0, 3}));
  EXPECT_EQ(RunsEnd(runs), 49152U);
  const ChunkPlaces places = ChunkPlaces::Packed("d/chunks", runs);
  EXPECT_THAT(places.files(), ElementsAre("d/chunks-000000", "d/chunks-000001", "d/chunks-000002",
                                          "d/chunks-000003"));
  for (const format::ChunkRecord& chunk : leaves[0].chunks) {
    const auto found = places.Find(chunk.part, chunk);
    ASSERT_OK(found.status());
    const auto place = *found;
    const ByteRun& run = runs[place.file];
    EXPECT_EQ(run.segment, chunk.segment);
    EXPECT_EQ(run.from + place.offset_bytes, chunk.offset_bytes);
    EXPECT_LE(place.offset_bytes + chunk.stored_bytes, run.length);
  }
}

TEST(ExportFilesTest, KeysOfAllArraysAreSortedTogether) {
  const auto leaves = Sorted({Array(Path("a"), DType::kFloat32, {250, 1}, {25, 1}),
                              Array(Path("a/c"), DType::kFloat32, {}, {}),
                              Array({PathComponent::Key("a/c")}, DType::kFloat32, {}, {})});
  for (const int zarr : {3, 2}) {
    ExportOptions options;
    options.zarr_format = zarr;
    const auto plan = PlanExport({}, leaves, options);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    DatabaseInfo info;
    info.zarr_format = zarr;
    const auto files = EncodeDatabase(plan->items[0], ChunkPlaces::Linked({{0, 3}}), info);
    ASSERT_TRUE(files.ok()) << files.status().ToString();
    ASSERT_EQ(files->size(), 2U);
    EXPECT_EQ(files->at(1).name, "manifest.ocdbt");
  }
}

ExportPlan PlanOfFiles(const std::vector<LeafRecord>& leaves, std::string* refused) {
  format::StepRecord step;
  step.items = {{"state", format::ItemKind::kFiles, leaves.size(), 0, 0}};
  auto plan = PlanExport(step, leaves, {});
  *refused = plan.status().message();
  return plan.ok() ? *std::move(plan) : ExportPlan();
}

TEST(ExportPlanTest, ItemsOfFilesStayInTheirDirectory) {
  const LeafRecord root = Node({}, format::ContainerKind::kDict, 2);
  const auto file = [](std::string_view name) {
    return Value({PathComponent::Key(std::string(name))}, format::ValueType::kBytes, "bytes");
  };
  const auto folder = [](std::string_view name) {
    return Value({PathComponent::Key(std::string(name))}, format::ValueType::kNone, "");
  };
  std::string refused;
  const std::vector<LeafRecord> leaves =
      Sorted({root, file("a/b.json"), file("x"), folder("a/empty/")});
  const ExportPlan plan = PlanOfFiles(leaves, &refused);
  ASSERT_EQ(plan.items.size(), 1U) << refused;
  EXPECT_THAT(plan.items[0].directories, ElementsAre("a", "a/empty"));
  ASSERT_EQ(plan.items[0].files.size(), 2U);
  EXPECT_EQ(plan.items[0].files[0].name, "a/b.json");
  EXPECT_THAT(plan.items[0].arrays, IsEmpty());

  const std::string long_name(201, 'x');
  for (const std::string_view name :
       {std::string_view(".."), std::string_view("a/.."), std::string_view("."),
        std::string_view(""), std::string_view("../x"), std::string_view("/etc"),
        std::string_view("a//b"), std::string_view("a\0b", 3), std::string_view(long_name)}) {
    PlanOfFiles(Sorted({root, file(name)}), &refused);
    EXPECT_THAT(refused, HasSubstr("no path of a file")) << name;
    PlanOfFiles(Sorted({root, folder(std::string(name) + "/")}), &refused);
    EXPECT_THAT(refused, HasSubstr("no path of a file")) << name;
  }
  PlanOfFiles(Sorted({root, file("a"), file("a/b")}), &refused);
  EXPECT_THAT(refused, HasSubstr("both a file and a directory"));
  PlanOfFiles(Sorted({root, file("commit_success.txt")}), &refused);
  EXPECT_THAT(refused, HasSubstr("the export makes itself"));
  PlanOfFiles(Sorted({root, Value(Path("a"), format::ValueType::kInt, "5")}), &refused);
  EXPECT_THAT(refused, HasSubstr("not the bytes of a file"));
  PlanOfFiles(Sorted({root, file("a"), Value(Path("b/c"), format::ValueType::kBytes, "x")}),
              &refused);
  EXPECT_THAT(refused, HasSubstr("a part of an item of files"));
}

}  // namespace
}  // namespace stepwell::db
