// SPDX-License-Identifier: Apache-2.0
#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

// A step's arrays as a mesh of four devices holds them.
class MeshApiTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    store_.emplace(Open());
    SaveRequest request(1);
    ArrayView kernel = ArrayView::Of(numbers_.data(), {40, 60});
    kernel.shard_shape = {10, 60};
    request.Put("params/kernel", kernel);
    request.Put("params/bias", ArrayView::Of(numbers_.data(), {60}));
    request.Put("scalar", ArrayView::Of(numbers_.data() + 7, {}));
    request.Put("epoch", 12);
    ASSERT_OK(SaveAndWait(*store_, std::move(request)));
  }
  void TearDown() override {
    store_.reset();
    ApiTest::TearDown();
  }

  const std::vector<int32_t> numbers_ = Numbers<int32_t>(2400);
  std::optional<Store> store_;
};

TEST_F(MeshApiTest, EveryDeviceGetsItsSlicesAndEachChunkIsReadOnce) {
  const Step step = store_->Read(1).value();
  const auto plan = step.PlanLoad(Mesh::Parse("x=2,y=2").value(),
                                  {{"params/kernel", PartitionSpec::Parse("(x, y)").value()},
                                   {"params/*", PartitionSpec::Parse("(y)").value()}});
  ASSERT_OK(plan);
  ASSERT_EQ(plan->leaves.size(), 3U);
  EXPECT_EQ(plan->total.chunks, 6U);  // four of the kernel
  EXPECT_EQ(plan->devices.at(3).chunks, 4U);
  std::vector<std::vector<int32_t>> kernels(4, std::vector<int32_t>(20 * 30));
  std::vector<std::vector<int32_t>> biases(4, std::vector<int32_t>(30));
  std::vector<int32_t> scalars(4);
  std::vector<ShardMemory> shards;
  for (uint64_t device = 0; device < 4; ++device) {
    const auto add = [&](const char* path, int32_t* out, size_t count) {
      shards.push_back({.device = device,
                        .path = path,
                        .dtype = DType::kInt32,
                        .out = out,
                        .out_bytes = count * sizeof(int32_t)});
    };
    add("params/kernel", kernels[device].data(), kernels[device].size());
    add("params/bias", biases[device].data(), biases[device].size());
    add("scalar", &scalars[device], 1);
  }
  const auto stats = step.ReadShards(*plan, shards);
  ASSERT_OK(stats);
  EXPECT_EQ(stats->chunks, plan->total.chunks);
  EXPECT_EQ(stats->bytes_needed, plan->total.bytes_needed);
  for (uint64_t device = 0; device < 4; ++device) {
    const uint64_t x = device / 2;
    const uint64_t y = device % 2;
    for (uint64_t i = 0; i < 20; ++i) {
      for (uint64_t k = 0; k < 30; ++k) {
        EXPECT_EQ(kernels[device][i * 30 + k], numbers_[(x * 20 + i) * 60 + y * 30 + k]);
      }
    }
    EXPECT_EQ(biases[device].front(), numbers_[y * 30]);
    EXPECT_EQ(scalars[device], numbers_[7]);
  }
  // One device alone reads only its own.
  const auto alone = step.ReadShards(*plan, std::span(shards).last(3));
  ASSERT_OK(alone);
  EXPECT_EQ(alone->chunks, plan->devices[3].chunks);
}

TEST_F(MeshApiTest, WhatCannotBe) {
  const Step step = store_->Read(1).value();
  const Mesh mesh = Mesh::Parse("x=2").value();
  const auto message = [](const Status& status) { return status.ToString(); };
  using ::testing::HasSubstr;
  const auto plan_of = [&](const char* path, const char* spec) {
    return step.PlanLoad(mesh, {{path, PartitionSpec::Parse(spec).value()}});
  };
  EXPECT_THAT(message(plan_of("params/bias", "(z)").status()),
              HasSubstr("params/bias: spec (z) names mesh axis \"z\"; the mesh has x=2"));
  EXPECT_THAT(message(plan_of("scalar", "(x)").status()), HasSubstr("scalar: spec (x) is of 1"));
  EXPECT_THAT(message(plan_of("nothing", "(x)").status()), HasSubstr("nothing"));
  const LoadPlan plan = step.PlanLoad(mesh).value();
  int32_t out = 0;
  const auto read = [&](ShardMemory shard) { return step.ReadShards(plan, {&shard, 1}).status(); };
  EXPECT_THAT(message(read({.device = 2, .path = "scalar", .out = &out, .out_bytes = 4})),
              HasSubstr("no device 2 in the mesh x=2 of 2"));
  EXPECT_THAT(message(read({.device = 0, .path = "epoch", .out = &out, .out_bytes = 4})),
              HasSubstr("not in the plan"));
  EXPECT_THAT(message(read({.device = 0, .path = "scalar", .out = &out, .out_bytes = 3})),
              HasSubstr("too small"));
  EXPECT_THAT(
      message(read(
          {.device = 0, .path = "scalar", .dtype = DType::kFloat32, .out = &out, .out_bytes = 4})),
      HasSubstr("float32"));
  EXPECT_OK(read({.device = 1, .path = "scalar", .out = &out, .out_bytes = 4}));
  EXPECT_EQ(out, 7);
}

}  // namespace
}  // namespace stepwell
