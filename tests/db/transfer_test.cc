// SPDX-License-Identifier: Apache-2.0
// Steps of a pushed run, there and back without a network, and lists that are forged.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "db/transfer/pull.h"
#include "db/transfer/push.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::DataObject;
using format::PushedStep;

std::vector<LeafSpec> SomeState() {
  return {{"small", {7}}, {"raw", {800, 1000}}, {"empty", {0, 3}}, {"coded", {400000}, true, true}};
}

class TransferTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> Open(const std::string& name) {
    auto store = Store::Open(dir_ / name, StoreOptions());
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  void SetUp() override {
    source_ = Open("source");
    auto handle = SaveSeeded(source_.get(), 1, 5, SomeState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    auto reader = source_->Read(1);
    ASSERT_OK(reader.status());
    auto plan = PushPlan::Make(*source_, *reader, {});
    ASSERT_OK(plan.status());
    std::vector<DataObject> made;
    for (size_t i = 0; i < plan->object_count(); ++i) {
      auto bytes = plan->Read(i);
      ASSERT_OK(bytes.status());
      ASSERT_EQ(bytes->size(), plan->object_bytes(i));
      made.push_back({{}, i, bytes->size()});
      objects_.push_back(std::move(*bytes));
    }
    const auto encoded = plan->List(made);
    EXPECT_OK(encoded.status());
    auto list = format::DecodePushedStep(AsBytes(*encoded));
    ASSERT_OK(list.status());
    list_ = std::move(*list);
    consumer_ = Open("consumer");
  }
  // The first error of a pull of the list.
  Status Pull(const PushedStep& list) {
    STEPWELL_ASSIGN_OR_RETURN(PullPlan plan, PullPlan::Make(*consumer_, list, {}));
    for (size_t i = 0; i < plan.ranges().size(); ++i) {
      const PullRange& range = plan.ranges()[i];
      const std::string& object = objects_[range.object];
      if (range.offset_bytes > object.size()) return DataLossError("beyond the end");
      const std::string bytes = object.substr(range.offset_bytes, range.length_bytes);
      STEPWELL_RETURN_IF_ERROR(plan.Accept(i, AsBytes(bytes)));
      STEPWELL_RETURN_IF_ERROR(plan.Accept(i, AsBytes(bytes)));  // once more does no harm
    }
    STEPWELL_ASSIGN_OR_RETURN(SaveRequest request, plan.Request());
    request.if_exists = IfExists::kReplace;
    STEPWELL_ASSIGN_OR_RETURN(SaveHandle handle, consumer_->Save(std::move(request)));
    return handle.Wait();
  }
  format::LeafRecord& Leaf(PushedStep* list, const std::string& name) {
    for (format::LeafRecord& leaf : list->leaves) {
      if (leaf.key == KeyOf("state", name)) return leaf;
    }
    ADD_FAILURE() << name;
    return list->leaves.front();
  }

  TempDir dir_;
  std::unique_ptr<Store> source_;
  std::unique_ptr<Store> consumer_;
  std::vector<std::string> objects_;
  PushedStep list_;
};

TEST_F(TransferTest, ThereAndBack) {
  ASSERT_OK(Pull(list_));
  auto before = (*source_->Read(1))->Leaves("");
  auto after = (*consumer_->Read(1))->Leaves("");
  ASSERT_TRUE(before.ok() && after.ok());
  ASSERT_EQ(before->size(), after->size());
  for (size_t i = 0; i < before->size(); ++i) {
    EXPECT_EQ((*before)[i].key, (*after)[i].key);
    EXPECT_EQ((*before)[i].chunk_shape, (*after)[i].chunk_shape);
    ASSERT_EQ((*before)[i].chunks.size(), (*after)[i].chunks.size());
    for (size_t j = 0; j < (*before)[i].chunks.size(); ++j) {
      EXPECT_TRUE((*before)[i].chunks[j].hash == (*after)[i].chunks[j].hash);
    }
  }
  // Now the store has all of it.
  auto again = PullPlan::Make(*consumer_, list_, {});
  ASSERT_OK(again.status());
  EXPECT_TRUE(again->ranges().empty());
  ASSERT_OK(Pull(list_));
}

TEST_F(TransferTest, APlaceThatHasTheStepGetsNothing) {
  auto reader = source_->Read(1);
  ASSERT_OK(reader.status());
  auto plan = PushPlan::Make(*source_, *reader, {list_});
  ASSERT_OK(plan.status());
  EXPECT_EQ(plan->object_count(), 0U);
  EXPECT_EQ(plan->referred().size(), list_.objects.size());
}

TEST_F(TransferTest, ForgedListsAreRefused) {
  using Forge = std::function<void(PushedStep*)>;
  const std::vector<std::pair<const char*, Forge>> forgeries = {
      {"an array longer than its bytes", [&](auto* s) { Leaf(s, "raw").logical_bytes = 16; }},
      {"an array shorter", [&](auto* s) { Leaf(s, "raw").logical_bytes = uint64_t{1} << 62; }},
      {"a shape",
       [&](auto* s) {
         Leaf(s, "raw").shape = {800, 100000};
       }},
      {"a huge shape",
       [&](auto* s) {
         Leaf(s, "raw").shape = {uint64_t{1} << 63, 1000};
       }},
      {"another grid",
       [&](auto* s) {
         Leaf(s, "raw").chunk_shape = {1, 1};
       }},
      {"a huge grid",
       [&](auto* s) {
         Leaf(s, "raw").chunk_shape = {uint64_t{1} << 40, 1 << 20};
       }},
      {"another rank", [&](auto* s) { Leaf(s, "raw").shape = {800000}; }},
      {"another dtype", [&](auto* s) { Leaf(s, "raw").dtype = format::DType::kFloat64; }},
      {"no dtype", [&](auto* s) { Leaf(s, "raw").dtype = static_cast<format::DType>(200); }},
      {"a codec", [&](auto* s) { Leaf(s, "raw").chunks[0].codec = format::CodecId::kBloscLz4; }},
      {"a delta", [&](auto* s) { Leaf(s, "raw").chunks[0].codec = format::CodecId::kDelta; }},
      {"an unknown codec",
       [&](auto* s) { Leaf(s, "raw").chunks[0].codec = static_cast<format::CodecId>(99); }},
      {"a chunk's length", [&](auto* s) { Leaf(s, "raw").chunks[0].logical_bytes = 1 << 26; }},
      {"a payload's length", [&](auto* s) { Leaf(s, "raw").chunks[0].stored_bytes -= 4; }},
      {"an offset", [&](auto* s) { Leaf(s, "raw").chunks[0].offset_bytes += 4; }},
      {"that of another",
       [&](auto* s) {
         Leaf(s, "raw").chunks[0].offset_bytes = Leaf(s, "raw").chunks[1].offset_bytes;
       }},
      {"a crc", [&](auto* s) { Leaf(s, "coded").chunks[0].crc ^= 1; }},
      {"a hash", [&](auto* s) { Leaf(s, "coded").chunks[0].hash.low ^= 1; }},
      {"a key", [&](auto* s) { Leaf(s, "coded").key = "\xff\xff"; }},
      {"no item", [&](auto* s) { s->step->items.clear(); }},
      {"an item twice", [&](auto* s) { s->step->items.push_back(s->step->items[0]); }},
  };
  for (const auto& [name, forge] : forgeries) {
    PushedStep list = list_;
    forge(&list);
    const Status status = Pull(list);
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_TRUE(status.code() == StatusCode::kDataLoss ||
                status.code() == StatusCode::kInvalidArgument)
        << name << ": " << status.ToString();
    EXPECT_FALSE(consumer_->Newest()->has_value()) << name;
  }
}

TEST_F(TransferTest, AStepThatNeedsTooMuchMemoryIsRefused) {
  const PullOptions options{.items = {}, .memory_bytes_max = 1 << 20};
  EXPECT_EQ(PullPlan::Make(*consumer_, list_, options).status().code(),
            StatusCode::kResourceExhausted);
}

TEST_F(TransferTest, NotAllOfItIsNoStep) {
  auto plan = PullPlan::Make(*consumer_, list_, {});
  ASSERT_OK(plan.status());
  EXPECT_EQ(plan->Request().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(plan->Accept(0, {}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(PullPlan::Make(*consumer_, list_, {.items = {"nope"}}).status().code(),
            StatusCode::kNotFound);
}

}  // namespace
}  // namespace stepwell::db
