// SPDX-License-Identifier: Apache-2.0
// Meshes, specs, globs, plans and drawings. That the slices are JAX's:
// tests/python/test_explain.py.
#include <stepwell/mesh.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "db/mesh/plan.h"
#include "db/mesh/sharding.h"
#include "db/read/restore_plan.h"
#include "tests/prng.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh MeshOf(const std::string& text) { return Mesh::Parse(text).value(); }
PartitionSpec SpecOf(const std::string& text) { return PartitionSpec::Parse(text).value(); }

TEST(Mesh, TextAndBack) {
  EXPECT_EQ(MeshOf("data=2, model=4").ToText(), "data=2, model=4");
  EXPECT_EQ(MeshOf("data=2,model=4").device_count(), 8U);
  EXPECT_EQ(MeshOf("").device_count(), 1U);
  EXPECT_THAT(MeshOf("a=2,b=3,c=4").Coordinates(17), ElementsAre(1, 1, 1));
  EXPECT_EQ(MeshOf("x=65536").device_count(), Mesh::kDevicesMax);
  for (const char* bad :
       {"data", "data=", "=2", "data=x", "data=2x", "data=-1", "data=0", "a=2,a=2", "a=2,,b=2",
        "a b=2", "(a)=2", "x=65537", "x=4294967296,y=4294967296", "x=99999999999999999999"}) {
    EXPECT_EQ(Mesh::Parse(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(PartitionSpec, TextAndBack) {
  for (const char* text :
       {"()", "(None)", "(model)", "(model, None)", "((data, model), None, x)"}) {
    EXPECT_EQ(SpecOf(text).ToText(), text);
  }
  EXPECT_EQ(SpecOf("model"), SpecOf("(model,)"));
  EXPECT_EQ(SpecOf(" ( ( a,b ) , None ) ").ToText(), "((a, b), None)");
  EXPECT_EQ(SpecOf("None").axes.size(), 1U);
  for (const char* bad : {"", "(", ")", "(a", "a)", "a,b", "((a)", "(a))", "(a,,b)", "((a,(b)))",
                          "((None, a))", "(a=b)", "('a')"}) {
    EXPECT_EQ(PartitionSpec::Parse(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Shards, MajorToMinor) {
  const Mesh mesh = MeshOf("a=2,b=3");
  const auto slices = Shards(std::vector<uint64_t>{12, 4}, mesh, SpecOf("((b, a))"));
  ASSERT_TRUE(slices.ok());
  std::vector<uint64_t> starts;
  for (const Slice& slice : *slices) {
    starts.push_back(slice.start[0]);
    EXPECT_EQ(slice.stop[0] - slice.start[0], 2U);
    EXPECT_EQ(slice.start[1], 0U);
    EXPECT_EQ(slice.stop[1], 4U);
  }
  EXPECT_THAT(starts, ElementsAre(0, 4, 8, 2, 6, 10));
  EXPECT_TRUE(Shards(std::vector<uint64_t>{}, mesh, SpecOf("()")).ok());
  EXPECT_EQ(Shards(std::vector<uint64_t>{0}, mesh, SpecOf("(a)")).value()[5].stop[0], 0U);
}

TEST(Shards, WhatCannotBeSaysNamesAndNumbers) {
  const Mesh mesh = MeshOf("data=2,model=4");
  const auto message = [&](std::vector<uint64_t> shape, const char* spec) {
    const auto slices = Shards(shape, mesh, SpecOf(spec));
    EXPECT_EQ(slices.status().code(), StatusCode::kInvalidArgument);
    return slices.status().message();
  };
  EXPECT_EQ(message({8}, "(modle)"),
            "spec (modle) names mesh axis \"modle\"; the mesh has data=2, model=4");
  EXPECT_EQ(message({8, 8}, "(model, (data, model))"),
            "spec (model, (data, model)) names mesh axis \"model\" twice");
  EXPECT_EQ(message({8}, "(model, None)"), "spec (model, None) is of 2 axes, and the array has 1");
  EXPECT_EQ(message({8, 12}, "(None, (data, model))"),
            "axis 1 of 12 cannot be split into 8 equal parts as spec (None, (data, model)) over "
            "data=2 and model=4 asks");
  EXPECT_FALSE(Shards(std::vector<uint64_t>{1}, {{{"", 1}}}, {}).ok());
  EXPECT_FALSE(Shards(std::vector<uint64_t>{1}, {{{"x", 0}}}, {}).ok());
}

format::LeafRecord ArrayLeaf(const std::string& name, format::Shape shape,
                             format::Shape chunk_shape, uint64_t offset_bytes) {
  format::LeafRecord leaf;
  leaf.key = format::EncodeLeafKey("state", {format::PathComponent::Key(name)}).value();
  leaf.dtype = format::DType::kInt16;
  leaf.shape = std::move(shape);
  leaf.chunk_shape = std::move(chunk_shape);
  leaf.chunk_count = format::ChunkCount(leaf.shape, leaf.chunk_shape);
  const uint64_t bytes = format::ChunkBytes(leaf.chunk_shape, 2);
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    format::ChunkRecord chunk;
    chunk.segment = 1;
    chunk.offset_bytes = offset_bytes + i * 4096;
    chunk.logical_bytes = static_cast<uint32_t>(bytes);
    chunk.stored_bytes = static_cast<uint32_t>(bytes + format::kCrcBytes);
    leaf.chunks.push_back(chunk);
  }
  return leaf;
}

// Records of a step: arrays of the item `state`, below its root.
std::vector<format::LeafRecord> StepOf(std::vector<format::LeafRecord> arrays) {
  format::LeafRecord root;
  root.key = format::EncodeLeafKey("state", {}).value();
  root.kind = format::LeafKind::kNode;
  arrays.insert(arrays.begin(), root);
  return arrays;
}

Result<LoadPlan> Plan(const std::vector<format::LeafRecord>& records, const Mesh& mesh,
                      std::span<const SpecRule> rules, bool only_state = true) {
  STEPWELL_ASSIGN_OR_RETURN(const StepTree step, StepTree::Make(0, records, only_state));
  return PlanMesh(step, mesh, rules);
}

TEST(MeshPlan, FirstRuleCountsAndOthersAreReplicated) {
  const auto leaves = StepOf({ArrayLeaf("a", {8, 8}, {2, 8}, 0), ArrayLeaf("b", {8}, {8}, 65536),
                              ArrayLeaf("c", {8}, {8}, 131072)});
  const std::vector<SpecRule> rules = {{"a", SpecOf("(x)")}, {"*", SpecOf("((x, y))")}};
  const auto plan = Plan(leaves, MeshOf("x=2,y=2"), std::span(rules).first(1));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->leaves.size(), 3U);
  EXPECT_EQ(plan->leaves[0].spec.ToText(), "(x)");
  EXPECT_EQ(plan->leaves[0].slices, 2U);
  EXPECT_EQ(plan->leaves[1].slices, 1U);
  EXPECT_EQ(plan->total.chunks, 6U);
  EXPECT_EQ(plan->total.bytes_needed, 4 * (32 + 4) + 2 * (16 + 4));
  EXPECT_EQ(plan->total.bytes_out, 128U + 16 + 16);
  ASSERT_EQ(plan->devices.size(), 4U);
  for (const LoadPlan::Cost& device : plan->devices) {
    EXPECT_EQ(device.chunks, 4U);
    EXPECT_EQ(device.bytes_out, 64U + 16 + 16);
  }
  EXPECT_THAT(plan->ToText(), HasSubstr("x=1,y=0"));
  EXPECT_EQ(Plan(leaves, MeshOf("x=2,y=2"), rules)->leaves[2].spec.ToText(), "((x, y))");
  EXPECT_TRUE(Plan(leaves, MeshOf("x=2"), {{{"state/a", SpecOf("x")}}}, false).ok());
  const auto nothing = Plan(leaves, MeshOf("x=2"), {{{"z/**", SpecOf("x")}}});
  EXPECT_EQ(nothing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(nothing.status().message(), HasSubstr("z/**"));
  const auto split = Plan(leaves, MeshOf("x=3"), {{{"b", SpecOf("x")}}});
  EXPECT_THAT(split.status().message(), HasSubstr("b: axis 0 of 8 cannot be split into 3"));
}

TEST(MeshPlan, EveryDeviceAgainstANaiveCount) {
  Prng random(7);
  for (int round = 0; round < 200; ++round) {
    const Mesh mesh{{{"x", 1 + random.Below(4)}, {"y", 1 + random.Below(3)}}};
    const uint64_t unit = mesh.device_count();
    const format::Shape shape = {unit * (1 + random.Below(6)), unit * random.Below(4)};
    const format::Shape chunk = {1 + random.Below(shape[0]), 1 + random.Below(shape[1] + 1)};
    const auto leaves = StepOf({ArrayLeaf("a", shape, chunk, 4096)});
    const std::vector<const char*> specs = {"()",     "(x)",      "(None, y)",
                                            "(y, x)", "((y, x))", "(None, (x, y))"};
    const SpecRule rule{"a", SpecOf(specs[random.Below(specs.size())])};
    const auto plan = Plan(leaves, mesh, {{rule}});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    std::set<uint64_t> all;
    for (uint64_t device = 0; device < unit; ++device) {
      const Slice slice = ShardOf(shape, mesh, rule.spec, device);
      std::set<uint64_t> needed;
      const uint64_t columns = (shape[1] + chunk[1] - 1) / chunk[1];
      for (uint64_t i = slice.start[0]; i < slice.stop[0]; ++i) {
        for (uint64_t k = slice.start[1]; k < slice.stop[1]; ++k) {
          needed.insert(i / chunk[0] * columns + k / chunk[1]);
        }
      }
      EXPECT_EQ(plan->devices[device].chunks, needed.size());
      all.insert(needed.begin(), needed.end());
    }
    EXPECT_EQ(plan->total.chunks, all.size());
    EXPECT_EQ(plan->total.bytes_needed, all.size() * (chunk[0] * chunk[1] * 2 + 4));
  }
}

// Bands of rows, each with chunks of its own, as several processes save an array.
format::LeafRecord BandsLeaf(const format::Shape& shape, Prng* random) {
  format::LeafRecord leaf = ArrayLeaf("a", shape, shape, 0);
  leaf.partial = true;
  leaf.chunk_count = 0;
  leaf.chunks.clear();
  for (uint64_t row = 0; row < shape[0];) {
    format::PieceRecord piece;
    piece.origin = {row, 0};
    piece.shape = {1 + random->Below(shape[0] - row), shape[1]};
    piece.chunk_shape = {1 + random->Below(piece.shape[0]), 1 + random->Below(shape[1])};
    piece.first_chunk = leaf.chunk_count;
    row += piece.shape[0];
    // Any leaf with this grid has such chunks.
    const format::LeafRecord own =
        ArrayLeaf("a", piece.shape, piece.chunk_shape, 4096 * leaf.chunk_count);
    leaf.chunks.insert(leaf.chunks.end(), own.chunks.begin(), own.chunks.end());
    leaf.chunk_count += own.chunk_count;
    leaf.pieces.push_back(std::move(piece));
  }
  return leaf;
}

TEST(MeshPlan, PiecesWithGridsOfTheirOwnAgainstANaiveCount) {
  Prng random(8);
  for (int round = 0; round < 200; ++round) {
    const Mesh mesh{{{"x", 1 + random.Below(4)}, {"y", 1 + random.Below(3)}}};
    const uint64_t unit = mesh.device_count();
    const format::Shape shape = {unit * (1 + random.Below(6)), unit * (1 + random.Below(3))};
    const auto leaves = StepOf({BandsLeaf(shape, &random)});
    const format::LeafRecord& leaf = leaves.back();
    const std::vector<const char*> specs = {"()", "(x)", "(None, y)", "(y, x)", "((y, x))"};
    const SpecRule rule{"a", SpecOf(specs[random.Below(specs.size())])};
    const auto plan = Plan(leaves, mesh, {{rule}});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    std::set<uint64_t> all;
    for (uint64_t device = 0; device < unit; ++device) {
      const Slice slice = ShardOf(shape, mesh, rule.spec, device);
      std::set<uint64_t> needed;
      for (uint64_t i = slice.start[0]; i < slice.stop[0]; ++i) {
        size_t band = 0;
        while (i >= leaf.pieces[band].origin[0] + leaf.pieces[band].shape[0]) ++band;
        const format::PieceRecord& piece = leaf.pieces[band];
        const uint64_t columns = (shape[1] + piece.chunk_shape[1] - 1) / piece.chunk_shape[1];
        for (uint64_t k = slice.start[1]; k < slice.stop[1]; ++k) {
          needed.insert(piece.first_chunk + (i - piece.origin[0]) / piece.chunk_shape[0] * columns +
                        k / piece.chunk_shape[1]);
        }
      }
      EXPECT_EQ(plan->devices[device].chunks, needed.size());
      uint64_t bytes = 0;
      for (const uint64_t chunk : needed) bytes += leaf.chunks[chunk].stored_bytes;
      EXPECT_EQ(plan->devices[device].bytes_needed, bytes);
      EXPECT_EQ(plan->devices[device].bytes_out,
                2 * (slice.stop[0] - slice.start[0]) * (slice.stop[1] - slice.start[1]));
      all.insert(needed.begin(), needed.end());
    }
    EXPECT_EQ(plan->total.chunks, all.size());
    EXPECT_EQ(plan->leaves.front().chunks, leaf.chunk_count);
  }
}

std::string Sharding(const std::string& sizes, const std::string& names, const std::string& spec,
                     const std::string& ids) {
  return StrCat(R"({"sharding_type": "NamedSharding", "shape": )", sizes, R"(, "axis_names": )",
                names, R"(, "partition_spec": )", spec, R"(, "device_mesh": {"mesh": )", ids, "}}");
}

TEST(ShardingText, DrawsWhoHoldsWhat) {
  const std::string ids = R"([[{"id": 3}, {"id": 2}], [{"id": 1}, {"id": 0}]])";
  const std::string both = Sharding("[2, 2]", R"(["x", "y"])", R"(["x", "y"])", ids);
  EXPECT_EQ(ShardingText(std::vector<uint64_t>{8, 6}, both),
            "over x=2, y=2 as (x, y): 4 slices of [4, 3]\n"
            "  axis 0   0:3   3:6   axis 1\n"
            "         ┌─────┬─────┐\n"
            "  0:4    │ 3   │ 2   │\n"
            "         ├─────┼─────┤\n"
            "  4:8    │ 1   │ 0   │\n"
            "         └─────┴─────┘\n");
  const std::string rows = Sharding("[2, 2]", R"(["x", "y"])", R"([["x"]])", ids);
  EXPECT_THAT(ShardingText(std::vector<uint64_t>{8}, rows), HasSubstr("│ 2,3 │ 0,1 │"));
  const std::string none = Sharding("[2, 2]", R"(["x", "y"])", "[null]", ids);
  EXPECT_EQ(ShardingText(std::vector<uint64_t>{8}, none),
            "over x=2, y=2 as (None): whole on 0-3\n");
  EXPECT_THAT(ShardingText(std::vector<uint64_t>{7, 6}, both), HasSubstr("axis 0 of 7"));
  EXPECT_EQ(ShardingText(std::vector<uint64_t>{8}, ""), "not sharded\n");
}

TEST(ShardingText, IsSmallForLargeMeshes) {
  std::string ids;
  for (int i = 0; i < 64; ++i) {
    ids += i == 0 ? "[" : ", ";
    for (int k = 0; k < 64; ++k) ids += StrCat(k == 0 ? "[" : ", ", R"({"id": )", 64 * i + k, "}");
    ids += "]";
  }
  const std::string json = Sharding("[64, 64]", R"(["x", "y"])", R"(["y", "x"])", ids + "]");
  const std::string text = ShardingText(std::vector<uint64_t>{64, 128}, json);
  EXPECT_LT(text.size(), 4000U);
  EXPECT_THAT(text, HasSubstr("4095"));
  EXPECT_THAT(text, HasSubstr("…"));
}

TEST(ShardingText, TakesAnyBytes) {
  const std::string good = Sharding("[2]", R"(["x"])", R"(["x"])", R"([{"id": 0}, {"id": 1}])");
  ASSERT_TRUE(ParseSharding(good).has_value());
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), std::string("7"), std::string("\xFF"),
        Sharding("[3]", R"(["x"])", R"(["x"])", R"([{"id": 0}, {"id": 1}])"),
        Sharding("[2]", R"(["x", "y"])", R"(["x"])", R"([{"id": 0}, {"id": 1}])"),
        Sharding("[-2]", R"(["x"])", R"(["x"])", R"([{"id": 0}, {"id": 1}])"),
        Sharding("[2]", R"([1])", R"(["x"])", R"([{"id": 0}, {"id": 1}])"),
        Sharding("[2]", R"(["x"])", R"([7])", R"([{"id": 0}, {"id": 1}])"),
        Sharding("[2]", R"(["x"])", R"(["x"])", R"([[{"id": 0}], {"id": 1}])"),
        Sharding("[99999999]", R"(["x"])", R"(["x"])", "[]")}) {
    EXPECT_FALSE(ParseSharding(bad).has_value()) << bad;
    EXPECT_FALSE(ShardingText(std::vector<uint64_t>{8}, bad).empty());
  }
  Prng random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    EXPECT_FALSE(ShardingText(std::vector<uint64_t>{8}, text).empty());
  }
  EXPECT_EQ(ShardingText(std::vector<uint64_t>{8},
                         R"({"sharding_type": "SingleDeviceSharding", "device_str": "a\u001bb"})"),
            "on one device, a?b\n");
}

}  // namespace
}  // namespace stepwell::db
