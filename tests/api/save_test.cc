// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <complex>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

using SaveTest = ApiTest;

TEST_F(SaveTest, ValuesComeBackAsTheyWere) {
  Store store = Open();
  const std::vector<std::pair<std::string, Value>> values = {
      {"none", Value()},
      {"true", true},
      {"int", -7},
      {"unsigned", uint8_t{200}},
      {"huge", UINT64_MAX},
      {"bigger", BigInt{"-123456789012345678901234567890"}},
      {"float", 0.1},
      {"complex", std::complex<double>(1, -2)},
      {"text", "größer"},
      {"empty", ""},
      {"long", std::string(100000, 'x')},
      {"bytes", Bytes{std::byte{0}, std::byte{255}}},
  };
  SaveRequest request(1);
  for (const auto& [name, value] : values) request.Put(name, value);
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const auto step = store.Read(1);
  ASSERT_OK(step);
  for (const auto& [name, value] : values) {
    const auto read = step->ReadValue(name);
    ASSERT_OK(read);
    EXPECT_TRUE(*read == value) << name;
  }
  EXPECT_EQ(std::get<int64_t>(*step->ReadValue("unsigned")), 200);
  EXPECT_EQ(std::get<BigInt>(*step->ReadValue("huge")).decimal, "18446744073709551615");
  EXPECT_ERROR(step->ReadArray("int"), StatusCode::kInvalidArgument, "not an array");
}

TEST_F(SaveTest, EveryTypeHasItsDType) {
  Store store = Open();
  SaveRequest request(1);
  const auto put = [&request]<typename T>(const char* name, T value) {
    request.Put(name, ArrayView::Of(std::make_shared<const std::vector<T>>(3, value), {3}));
  };
  put("int8", int8_t{-1});
  put("int64", int64_t{-1});
  put("uint16", uint16_t{1});
  put("float32", 1.0F);
  put("float64", 1.0);
  put("complex64", std::complex<float>(1, 2));
  put("complex128", std::complex<double>(1, 2));
  const uint16_t halves[] = {0x3F80, 0x4000};
  request.Put("bfloat16", {.data = halves, .dtype = DType::kBFloat16, .shape = {2}});
  const bool flags[] = {true, false};
  request.Put("bool", ArrayView::Of(flags, {2}));
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const auto step = store.Read(1);
  ASSERT_OK(step);
  for (const auto& leaf : *step->Leaves()) {
    EXPECT_EQ(FindDType(leaf.dtype)->name, leaf.path.ToText());
  }
  EXPECT_THAT(*step->ReadVector<std::complex<float>>("complex64"),
              ::testing::Each(std::complex<float>(1, 2)));
  EXPECT_EQ(std::memcmp(step->ReadArray("bfloat16")->data.get(), halves, sizeof(halves)), 0);
  EXPECT_FALSE((*step->ReadArray("bool")->As<bool>())[1]);
}

TEST_F(SaveTest, StridesOfAnySignAreFollowed) {
  Store store = Open();
  const auto numbers = Numbers<int32_t>(12);  // 3 rows of 4
  SaveRequest request(1);
  ArrayView transposed = ArrayView::Of(numbers.data(), {4, 3});
  transposed.strides_bytes = {4, 16};
  request.Put("transposed", transposed);
  ArrayView reversed = ArrayView::Of(numbers.data() + 11, {12});
  reversed.strides_bytes = {-4};
  request.Put("reversed", reversed);
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const auto step = store.Read(1);
  EXPECT_THAT(*step->ReadVector<int32_t>("transposed"),
              ::testing::ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
  EXPECT_THAT(*step->ReadVector<int32_t>("reversed"),
              ::testing::ElementsAre(11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

TEST_F(SaveTest, BorrowedMemoryMayChangeOnceSaveReturns) {
  Store store = Open();
  std::vector<float> weights(1 << 20, 1);
  SaveRequest request(1);
  request.Put("w", ArrayView::Of(weights.data(), {weights.size()}));
  const auto handle = store.Save(std::move(request));
  ASSERT_OK(handle);
  std::fill(weights.begin(), weights.end(), 2.0F);
  ASSERT_OK(handle->Wait());
  EXPECT_THAT(*store.Read(1)->ReadVector<float>("w"), ::testing::Each(1.0F));
}

TEST_F(SaveTest, HeldMemoryIsLetGoWhenTheSaveIsDone) {
  Store store = Open();
  auto weights = std::make_shared<const std::vector<float>>(1 << 20, 3.0F);
  const std::weak_ptr<const std::vector<float>> watch = weights;
  SaveRequest request(1);
  request.Put("w", ArrayView::Of(std::move(weights), {1 << 20}));
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  EXPECT_THAT(*store.Read(1)->ReadVector<float>("w"), ::testing::Each(3.0F));
  ASSERT_OK(store.Close());
  EXPECT_TRUE(watch.expired());
}

TEST_F(SaveTest, TheHandleTells) {
  Store store = Open();
  const auto handle = store.Save(SmallStep(5));
  ASSERT_OK(handle);
  EXPECT_EQ(handle->step(), 5U);
  std::promise<Status> told;
  handle->OnComplete([&](const Status& status) { told.set_value(status); });
  EXPECT_OK(told.get_future().get());
  EXPECT_TRUE(handle->done());
  EXPECT_OK(handle->status());
  std::promise<size_t> steps;  // a callback may use the store; one of a finished save runs at once
  handle->OnComplete([&](const Status&) { steps.set_value(store.Steps()->size()); });
  EXPECT_EQ(steps.get_future().get(), 1U);
  EXPECT_TRUE(handle->WaitFor(std::chrono::milliseconds(0)));
  const auto stats = handle->stats();
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->stored_bytes, store.Steps()->front().stored_bytes);
  EXPECT_EQ(stats->owned_bytes(), stats->stored_bytes);

  const SaveHandle of_nothing;
  EXPECT_TRUE(of_nothing.done());
  EXPECT_ERROR(of_nothing.Wait(), StatusCode::kFailedPrecondition, "no save");
  EXPECT_FALSE(of_nothing.stats().has_value());
}

TEST_F(SaveTest, AStepThatIsThere) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, SmallStep(1, 1)));
  EXPECT_ERROR(store.Save(SmallStep(1, 2)), StatusCode::kAlreadyExists, "step 1");
  SaveRequest skipped = SmallStep(1, 2);
  skipped.if_exists = IfExists::kSkip;
  const auto handle = store.Save(std::move(skipped));
  EXPECT_OK(handle->Wait());
  EXPECT_TRUE(handle->skipped());
  EXPECT_EQ(store.Read(1)->ReadVector<float>("w")->front(), 1);
  SaveRequest replacing = SmallStep(1, 2);
  replacing.if_exists = IfExists::kReplace;
  EXPECT_OK(SaveAndWait(store, std::move(replacing)));
  EXPECT_EQ(store.Read(1)->ReadVector<float>("w")->front(), 2);
}

// A path finds no attribute in a dict beside a key of the same name.
TEST_F(SaveTest, ContainersAreWhatTheirChildrenSay) {
  Store store = Open();
  SaveRequest request(1);
  const auto put = [&](const char* name, std::initializer_list<PathComponent> children) {
    for (const PathComponent& child : children) {
      request.Put(KeyPath{PathComponent::Key(name), child}, 1);
    }
  };
  const PathComponent key = PathComponent::Key("x");
  const PathComponent attribute = PathComponent::Attribute("x");
  put("attributes", {attribute, PathComponent::Attribute("y")});
  put("gaps", {PathComponent::Index(0), PathComponent::Index(2)});
  put("indices", {PathComponent::Index(0), PathComponent::Index(1)});
  put("keys", {key, PathComponent::IntKey(3)});
  put("mixed keys", {key, attribute});
  put("mixed numbers", {PathComponent::Key("0"), PathComponent::Index(0)});
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const Step step = store.Read(1).value();
  std::map<std::string, std::string> kinds;
  for (const LeafInfo& info : step.Tree().value()) {
    const KeyPath& path = *info.path.components();
    if (path.size() == 1) kinds[path.front().name] = info.kind;
  }
  EXPECT_EQ(kinds, (std::map<std::string, std::string>{{"attributes", "object"},
                                                       {"gaps", "dict"},
                                                       {"indices", "list"},
                                                       {"keys", "dict"},
                                                       {"mixed keys", "object"},
                                                       {"mixed numbers", "object"}}));
  EXPECT_ERROR(step.ReadValue("mixed keys/x"), StatusCode::kInvalidArgument, "ambiguous");
  EXPECT_ERROR(step.ReadValue("mixed numbers/0"), StatusCode::kInvalidArgument, "ambiguous");
}

TEST_F(SaveTest, MistakesAreNamedAndNothingIsSaved) {
  Store store = Open();
  const float one = 1;
  const auto saved = [&](auto&&... puts) {
    SaveRequest request(1);
    (puts(request), ...);
    return StatusOf(store.Save(std::move(request)));
  };
  const auto put = [](Path path, auto what) {
    return [path, what](SaveRequest& request) { request.Put(path, what); };
  };
  EXPECT_ERROR(saved(), StatusCode::kInvalidArgument, "at least one leaf");
  EXPECT_ERROR(saved(put("a", 1), put("a", 2)), StatusCode::kInvalidArgument, "two leaves");
  EXPECT_ERROR(saved(put("a", 1), put("a/b", 2)), StatusCode::kInvalidArgument, "below it");
  EXPECT_ERROR(saved(put("a/b", 1), put("a", 2)), StatusCode::kInvalidArgument, "below it");
  EXPECT_ERROR(saved(put("a*", 1)), StatusCode::kInvalidArgument, "\\*");
  EXPECT_ERROR(saved(put("a\\", 1)), StatusCode::kInvalidArgument, "backslash");
  EXPECT_ERROR(saved(put(KeyPath{PathComponent::Index(-1)}, 1)), StatusCode::kInvalidArgument,
               "negative index");
  EXPECT_ERROR(saved(put(Path::In("", "a"), 1)), StatusCode::kInvalidArgument, "item");
  EXPECT_ERROR(saved(put("a", "\xFF")), StatusCode::kInvalidArgument, "UTF-8");
  EXPECT_ERROR(saved(put("a", BigInt{"12x"})), StatusCode::kInvalidArgument, "decimal");
  EXPECT_ERROR(saved(put("a/b", ArrayView{})), StatusCode::kInvalidArgument, "a/b");
  EXPECT_ERROR(saved(put("a", ArrayView{.dtype = DType::kInt8})), StatusCode::kInvalidArgument,
               "null");
  ArrayView array = ArrayView::Of(&one, {1});
  array.strides_bytes = {4, 4};
  EXPECT_ERROR(saved(put("a", array)), StatusCode::kInvalidArgument, "2 strides for 1 axis");
  array = ArrayView::Of(&one, {1});
  array.shard_shape = {1, 1};
  EXPECT_ERROR(saved(put("a", array)), StatusCode::kInvalidArgument, "shard");
  array = ArrayView::Of(&one, {1});
  array.chunk_bytes_max = 7;
  EXPECT_ERROR(saved(put("a", array)), StatusCode::kInvalidArgument, "4096 to 4194304");
  array = ArrayView{.dtype = DType::kFloat32, .shape = {2}, .shards = {{{0}, {1}, &one}}};
  EXPECT_ERROR(saved(put("a", array)), StatusCode::kInvalidArgument, "1 of the 2 elements");
  EXPECT_ERROR(saved(put("a", ArrayView::Of(&one, {uint64_t{1} << 40, uint64_t{1} << 40}))),
               StatusCode::kInvalidArgument, "a");
  SaveRequest request = SmallStep(1);
  request.metadata_json = "{";
  EXPECT_ERROR(store.Save(std::move(request)), StatusCode::kInvalidArgument, "metadata_json");
  request = SmallStep(1);
  request.metrics_json = "[1]";
  EXPECT_ERROR(store.Save(std::move(request)), StatusCode::kInvalidArgument, "metrics_json");
  EXPECT_ERROR(store.Save(SmallStep(UINT64_MAX)), StatusCode::kInvalidArgument, "out of range");
  EXPECT_TRUE(store.Steps()->empty());
}

TEST_F(SaveTest, AnArrayMayComeInShards) {
  Store store = Open();
  const std::vector<float> left = {0, 1, 4, 5};
  const std::vector<float> right = {2, 6, 3, 7};  // Fortran order
  ArrayView array{.dtype = DType::kFloat32, .shape = {2, 4}};
  array.shards.push_back({{0, 0}, {2, 2}, left.data()});
  array.shards.push_back({{0, 2}, {2, 2}, right.data(), {4, 8}});
  SaveRequest request(1);
  request.Put("w", array);
  const std::vector<float> rows(1 << 20);
  ArrayView columns = ArrayView::Of(rows.data(), {1024, 1024});
  columns.chunk_bytes_max = 1 << 16;
  columns.chunk_axes = {1};
  request.Put("columns", columns);
  ASSERT_OK(SaveAndWait(store, std::move(request)));
  const auto step = store.Read(1);
  ASSERT_OK(step);
  EXPECT_EQ(*step->ReadVector<float>("w"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(*step->ReadVector<float>("columns"), rows);
}

TEST_F(SaveTest, ManyThreadsSave) {
  Store store = Open();
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t k = 0; k < 5; ++k) {
        if (!SaveAndWait(store, SmallStep(10 * i + k)).ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(store.Steps()->size(), 20U);
  EXPECT_OK(store.Wait());
}

}  // namespace
}  // namespace stepwell
