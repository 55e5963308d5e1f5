// SPDX-License-Identifier: Apache-2.0
#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

using ::testing::ElementsAre;

// Step 3: arrays of (100, 64) int32 and of no axes, values, lists; step 4: two items.
class ReadTest : public ApiTest {
 protected:
  void SetUp() override {
    ApiTest::SetUp();
    store_.emplace(Open());
    SaveRequest request(3);
    request.Put("params/layer/kernel", ArrayView::Of(numbers_.data(), {100, 64}));
    request.Put("params/layer/bias", ArrayView::Of(numbers_.data(), {64}));
    request.Put("scalar", ArrayView::Of(numbers_.data() + 7, {}));
    request.Put("none", ArrayView::Of<int32_t>(nullptr, {0, 5}));
    request.Put("epoch", 12);
    request.Put(KeyPath{PathComponent::Key("list"), PathComponent::Index(0)}, "zero");
    request.Put(KeyPath{PathComponent::Key("list"), PathComponent::Index(1)}, "one");
    request.Put(R"(odd\/name/\*)", true);
    request.metadata_json = R"({"run": "a"})";
    request.metrics_json = R"({"loss": 0.5})";
    ASSERT_OK(SaveAndWait(*store_, std::move(request)));
    SaveRequest items(4);
    items.Put("w", 1);
    items.Put(Path::In("data", "position"), 2);
    items.Put(Path::In("data", KeyPath{PathComponent::Key("0")}), "key");
    items.Put(Path::In("data", KeyPath{PathComponent::IntKey(0)}), "int key");
    ASSERT_OK(SaveAndWait(*store_, std::move(items)));
  }
  void TearDown() override {
    store_.reset();
    ApiTest::TearDown();
  }

  Step Read(uint64_t step) { return store_->Read(step).value(); }

  const std::vector<int32_t> numbers_ = Numbers<int32_t>(6400);
  std::optional<Store> store_;
};

TEST_F(ReadTest, LeavesHaveTheirPathsShapesAndSizes) {
  std::vector<std::string> paths;
  const Step step = Read(3);
  const auto leaves = step.Leaves();
  ASSERT_OK(leaves);
  for (const LeafInfo& leaf : *leaves) {
    paths.push_back(leaf.path.ToText());
    EXPECT_OK(step.Leaf(leaf.path));
    EXPECT_OK(step.Leaf(leaf.path.ToText()));
  }
  EXPECT_THAT(paths, ElementsAre("epoch", "list/0", "list/1", "none", R"(odd\/name/\*)",
                                 "params/layer/bias", "params/layer/kernel", "scalar"));
  const auto kernel = step.Leaf("params/layer/kernel");
  ASSERT_OK(kernel);
  EXPECT_EQ(kernel->type, LeafType::kArray);
  EXPECT_EQ(kernel->dtype, DType::kInt32);
  EXPECT_THAT(kernel->shape, ElementsAre(100, 64));
  EXPECT_EQ(kernel->chunk_shape.size(), 2U);
  EXPECT_EQ(kernel->logical_bytes, 25600U);
  EXPECT_GT(kernel->stored_bytes, 0U);
  EXPECT_EQ(step.Leaf("epoch")->type, LeafType::kInt);
  EXPECT_EQ(step.Leaves("params")->size(), 2U);
  EXPECT_EQ(step.Leaves("state/params/layer")->size(), 2U);
}

TEST_F(ReadTest, TheStepTellsOfItself) {
  const StepInfo info = Read(3).info();
  EXPECT_EQ(info.step, 3U);
  EXPECT_EQ(info.leaves, 8U);
  EXPECT_FALSE(info.pinned);
  ASSERT_EQ(info.items.size(), 1U);
  EXPECT_EQ(info.items[0].name, "state");
  EXPECT_EQ(info.items[0].leaves, 8U);
  EXPECT_GT(info.logical_bytes, 25600U);
  EXPECT_GT(info.stored_bytes, 0U);
  EXPECT_GT(info.time.time_since_epoch().count(), 0);
  EXPECT_EQ(info.metadata_json, R"({"run": "a"})");
  EXPECT_EQ(info.metrics_json, R"({"loss": 0.5})");
  EXPECT_EQ(store_->ReadLatest()->info().step, 4U);
  EXPECT_EQ(store_->Steps()->at(1).items.size(), 2U);
}

TEST_F(ReadTest, WholeArraysAndSlices) {
  const Step step = Read(3);
  EXPECT_EQ(*step.ReadVector<int32_t>("params/layer/kernel"), numbers_);
  EXPECT_THAT(*step.ReadVector<int32_t>("params/layer/kernel", {{2, 1}, {4, 4}}),
              ElementsAre(129, 130, 131, 193, 194, 195));
  const auto slice = step.ReadArray("params/layer/kernel", {{99, 0}, {100, 64}});
  ASSERT_OK(slice);
  EXPECT_THAT(slice->shape, ElementsAre(1, 64));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(slice->data.get()) % 64, 0U);
  EXPECT_EQ(slice->As<int32_t>()->front(), 99 * 64);
  EXPECT_ERROR(slice->As<float>(), StatusCode::kInvalidArgument, "int32, not float32");
  EXPECT_THAT(*step.ReadVector<int32_t>("scalar"), ElementsAre(7));
  EXPECT_THAT(*step.ReadVector<int32_t>("none"), ElementsAre());
  EXPECT_THAT(step.ReadArray("none")->shape, ElementsAre(0, 5));
  EXPECT_THAT(*step.ReadVector<int32_t>("params/layer/bias", {{5}, {5}}), ElementsAre());
}

TEST_F(ReadTest, IntoTheCallersMemoryWithStrides) {
  // Two rows of the kernel as columns of a (64, 2) array, and a bias, in one go.
  std::vector<int32_t> columns(128, -1);
  std::vector<int32_t> bias(64, -1);
  const ReadRequest requests[] = {
      {.path = "params/layer/kernel",
       .dtype = DType::kInt32,
       .slice = {{10, 0}, {12, 64}},
       .out = columns.data(),
       .out_bytes = 512,
       .strides_bytes = {4, 8}},
      {.path = "params/layer/bias", .out = bias.data(), .out_bytes = 256},
  };
  const auto stats = Read(3).Read(requests);
  ASSERT_OK(stats);
  EXPECT_EQ(stats->bytes_out, 768U);
  for (int32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(columns[static_cast<size_t>(2 * i)], 640 + i);
    EXPECT_EQ(columns[static_cast<size_t>(2 * i + 1)], 704 + i);
    EXPECT_EQ(bias[static_cast<size_t>(i)], i);
  }
}

TEST_F(ReadTest, RequestsThatDoNotFitAreRefused) {
  const Step step = Read(3);
  std::vector<int32_t> memory(128, -1);
  const auto read = [&](ReadRequest request) {
    request.path = "params/layer/bias";
    if (request.out_bytes != 1) {
      request.out = memory.data();
      request.out_bytes = request.out_bytes == 0 ? 512 : request.out_bytes;
    }
    return StatusOf(step.Read({&request, 1}));
  };
  constexpr auto kBad = StatusCode::kInvalidArgument;
  EXPECT_ERROR(read({.dtype = DType::kFloat32}), kBad, "int32, not float32");
  EXPECT_ERROR(read({.slice = {{0}, {65}}}), kBad, "is not a slice of 64");
  EXPECT_ERROR(read({.slice = {{9}, {8}}}), kBad, "is not a slice");
  EXPECT_ERROR(read({.slice = {{0, 0}, {1, 1}}}), kBad, "axes");
  EXPECT_ERROR(read({.slice = {{0}, {}}}), kBad, "axes");
  EXPECT_ERROR(read({.out_bytes = 255}), kBad, "255 bytes where 256");
  EXPECT_ERROR(read({.out_bytes = 1}), kBad, "too small");
  EXPECT_ERROR(read({.out_bytes = 507, .strides_bytes = {8}}), kBad, "508 are needed");
  EXPECT_ERROR(read({.strides_bytes = {4, 4}}), kBad, "2 strides for 1 axis");
  EXPECT_ERROR(read({.strides_bytes = {-4}}), kBad, "stride of -4");
  EXPECT_ERROR(read({.strides_bytes = {0}}), kBad, "stride of 0");
  EXPECT_ERROR(read({.strides_bytes = {INT64_MAX}}), kBad, "more than 2^64");
  EXPECT_THAT(memory, ::testing::Each(-1));
  const ReadRequest null{.path = "params/layer/bias", .out_bytes = 256};
  EXPECT_ERROR(step.Read({&null, 1}), kBad, "null");
  EXPECT_ERROR(step.ReadVector<float>("params/layer/bias"), kBad, "int32, not float32");
  EXPECT_ERROR(step.ReadValue("params/layer/bias"), kBad, "not a value");
  EXPECT_ERROR(step.Leaf("params"), kBad, "subtree of 2 leaves");
  EXPECT_ERROR(step.Leaf(""), kBad, "subtree of 8 leaves");
}

TEST_F(ReadTest, PathsThatAreNotThereNameWhatIs) {
  const Step step = Read(3);
  constexpr auto kNone = StatusCode::kNotFound;
  EXPECT_ERROR(step.Leaf("params/layer/weight"), kNone,
               "nearest: params/layer/bias, params/layer/kernel");
  EXPECT_ERROR(step.Leaf("params/leyer/kernel"), kNone, "layer");
  EXPECT_ERROR(step.Leaf("parm"), kNone, "nearest: params");
  EXPECT_ERROR(step.Leaf("epoch/x"), kNone, "nothing below");
  EXPECT_ERROR(step.Leaf("q"), kNone, "there are: epoch, list, none");
  EXPECT_ERROR(step.Leaf(Path::In("data", "x")), kNone, "there are: state");
  EXPECT_ERROR(store_->Read(99), kNone, "4");
}

TEST_F(ReadTest, ItemsAndTypesTellPathsApart) {
  const Step step = Read(4);
  EXPECT_EQ(std::get<int64_t>(*step.ReadValue("data/position")), 2);
  EXPECT_EQ(std::get<int64_t>(*step.ReadValue(Path::In("data", "position"))), 2);
  EXPECT_EQ(std::get<int64_t>(*step.ReadValue("state/w")), 1);
  EXPECT_EQ(std::get<int64_t>(*step.ReadValue(KeyPath{PathComponent::Key("w")})), 1);
  EXPECT_ERROR(step.ReadValue("w"), StatusCode::kNotFound, "nearest: state/w");
  EXPECT_ERROR(step.ReadValue("data/0"), StatusCode::kInvalidArgument,
               "give the path as components with types");
  EXPECT_EQ(
      std::get<std::string>(*step.ReadValue(Path::In("data", KeyPath{PathComponent::IntKey(0)}))),
      "int key");
  EXPECT_EQ(
      std::get<std::string>(*step.ReadValue(Path::In("data", KeyPath{PathComponent::Key("0")}))),
      "key");
  // Types break ties only: an attribute finds the key that is spelled so.
  EXPECT_EQ(std::get<int64_t>(*step.ReadValue(KeyPath{PathComponent::Attribute("w")})), 1);
  EXPECT_EQ(step.Leaves(Path::In("data", ""))->size(), 3U);
}

TEST_F(ReadTest, GlobsNameSeveralLeaves) {
  const Step step = Read(3);
  const auto leaves = step.Leaves("params/l*/*");
  ASSERT_TRUE(leaves.ok()) << leaves.status().ToString();
  ASSERT_EQ(leaves->size(), 2U);
  EXPECT_EQ(leaves->at(1).path.ToText(), "params/layer/kernel");
  EXPECT_EQ(step.Load("list/?")->size(), 2U);
  EXPECT_ERROR(step.Leaf("list/*"), StatusCode::kInvalidArgument, "has a wildcard");
  EXPECT_ERROR(step.Leaves("nothing*"), StatusCode::kNotFound, "there are: epoch");
}

TEST_F(ReadTest, ASubtreeLoadsInOneGo) {
  const auto loaded = Read(3).Load();
  ASSERT_OK(loaded);
  ASSERT_EQ(loaded->size(), 8U);
  EXPECT_EQ(std::get<int64_t>(std::get<Value>(loaded->at(0).data)), 12);
  const Array& kernel = std::get<Array>(loaded->at(6).data);
  const auto elements = kernel.As<int32_t>();
  EXPECT_TRUE(std::equal(elements->begin(), elements->end(), numbers_.begin(), numbers_.end()));
  EXPECT_EQ(Read(3).Load("list")->size(), 2U);
}

TEST_F(ReadTest, AStepOutlivesItsDeletionButNotTheStore) {
  const Step step = Read(3);
  ASSERT_OK(store_->Delete({3}));
  EXPECT_EQ(*step.ReadVector<int32_t>("params/layer/kernel"), numbers_);
  ASSERT_OK(store_->Close());
  EXPECT_ERROR(step.ReadVector<int32_t>("scalar"), StatusCode::kFailedPrecondition, "closed");
  EXPECT_ERROR(step.Leaves(), StatusCode::kFailedPrecondition, "closed");
  store_.reset();
  EXPECT_ERROR(step.Load(), StatusCode::kFailedPrecondition, "closed");
  EXPECT_EQ(step.info().step, 3U);
}

}  // namespace
}  // namespace stepwell
