// SPDX-License-Identifier: Apache-2.0
// A step's records read in part: the same as filtering the whole, and no more bytes than needed.
#include "db/log/step_records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "db/layout.h"
#include "db/log/recovery.h"
#include "db/log/slot_file.h"
#include "io/open_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;
using format::PathComponent;

constexpr size_t kLayers = 400;
constexpr size_t kLeavesOfOne = 10;

std::string Name(const char* what, size_t number) {
  std::string digits = std::to_string(number);
  return what + std::string(4 - digits.size(), '0') + digits;
}

std::string LeafKey(std::initializer_list<std::string> names) {
  format::KeyPath path;
  for (const std::string& name : names) {
    path.push_back({.type = PathComponent::Type::kKey, .number = 0, .name = name});
  }
  return format::EncodeLeafKey("state", path).value();
}

LeafInput Node(std::string key) {
  LeafInput node;
  node.record.key = std::move(key);
  node.record.kind = format::LeafKind::kNode;
  node.record.container = format::ContainerKind::kDict;
  return node;
}

// state/layer0000/w0000 …, all of `data`, and in the middle a long value and, of `many`, an array
// of more chunks than one frame of records has. All are alive until the save has returned.
SaveRequest ManyLeaves(const std::vector<float>& data, const std::string& long_value,
                       const std::vector<float>& many) {
  SaveRequest request;
  request.step = 1;
  ItemInput item;
  item.name = "state";
  item.leaves.push_back(Node(LeafKey({})));
  for (size_t layer = 0; layer < kLayers; ++layer) {
    item.leaves.push_back(Node(LeafKey({Name("layer", layer)})));
    for (size_t i = 0; i < kLeavesOfOne; ++i) {
      LeafInput leaf;
      leaf.record.key = LeafKey({Name("layer", layer), Name("w", i)});
      leaf.record.kind = format::LeafKind::kArray;
      leaf.record.dtype = format::DType::kFloat32;
      leaf.record.shape = {4};
      leaf.data = reinterpret_cast<const std::byte*>(data.data());
      item.leaves.push_back(std::move(leaf));
    }
  }
  LeafInput big;
  big.record.key = LeafKey({Name("layer", kLayers / 2), "x"});
  big.record.kind = format::LeafKind::kValue;
  big.record.value_type = format::ValueType::kBytes;
  big.value = long_value;
  item.leaves.push_back(std::move(big));
  LeafInput cut;
  cut.record.key = LeafKey({Name("layer", kLayers / 2), "y"});
  cut.record.kind = format::LeafKind::kArray;
  cut.record.dtype = format::DType::kFloat32;
  cut.record.shape = {many.size()};
  cut.data = reinterpret_cast<const std::byte*>(many.data());
  cut.chunk_bytes_max = 4096;
  item.leaves.push_back(std::move(cut));
  request.items.push_back(std::move(item));
  return request;
}

std::vector<float> Ascending(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

class StepRecordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open(path_, {});
    ASSERT_OK(store.status());
    ASSERT_OK((*store)->Save(ManyLeaves({1, 2, 3, 4}, std::string(5 << 20, 'x'), many_))->Wait());
    ASSERT_OK((*store)->Close());
    const auto slot_file = SlotFile::Open(io::LocalFileSystem(), path_, /*write=*/false, nullptr);
    const auto state = RecoverByMarks((*slot_file)->Read().value(), files_, nullptr);
    ASSERT_OK(state.status());
    place_ = state->live.at(1).place;
    whole_ = ReadStepRecords(files_, place_, "").value();
    ASSERT_EQ(whole_.size(), 1 + kLayers * (kLeavesOfOne + 1) + 2);
  }

  std::vector<LeafRecord> Filtered(const format::KeyRange& range) const {
    std::vector<LeafRecord> expected;
    for (const LeafRecord& leaf : whole_) {
      if (leaf.key >= range.first && (range.end.empty() || leaf.key < range.end)) {
        expected.push_back(leaf);
      }
    }
    return expected;
  }

  TempDir directory_;
  const std::string path_ = directory_ / "store";
  SegmentFiles files_{io::LocalFileSystem(), path_};
  format::FramePlace place_;
  std::vector<LeafRecord> whole_;
  const std::vector<float> many_ = Ascending(3000 * 1024);
};

TEST_F(StepRecordsTest, RangesAreWhatFilteringGives) {
  const auto records = StepRecords::Open(&files_, place_);
  ASSERT_OK(records.status());
  for (size_t i = 0; i < whole_.size(); i += 7) {
    for (const format::KeyRange& range :
         {format::KeyAlone(whole_[i].key), format::KeysBelow(whole_[i].key),
          format::KeyAlone(whole_[i].key + "\x03none")}) {
      const auto read = (*records)->In(range);
      ASSERT_OK(read.status());
      ASSERT_EQ(*read, Filtered(range)) << i;
    }
  }
  EXPECT_EQ((*records)->In(format::KeysBelow("")).value(), whole_);
}

TEST_F(StepRecordsTest, OneLeafReadsNoMoreThanItsBlock) {
  const auto all = StepRecords::Open(&files_, place_);
  ASSERT_TRUE((*all)->In(format::KeysBelow("")).ok());
  const uint64_t all_bytes = (*all)->bytes_read();
  ASSERT_GT(all_bytes, uint64_t{100} << 10);
  for (const size_t layer : {size_t{0}, kLayers / 3, kLayers - 1}) {
    const auto records = StepRecords::Open(&files_, place_);
    const std::string key = LeafKey({Name("layer", layer), Name("w", 3)});
    ASSERT_EQ((*records)->In(format::KeyAlone(key)).value().size(), 1U);
    EXPECT_LT((*records)->bytes_read(), all_bytes / 2);  // the commit's frame and one block
    const uint64_t once = (*records)->bytes_read();
    ASSERT_EQ((*records)->In(format::KeyAlone(key)).value().size(), 1U);
    EXPECT_EQ((*records)->bytes_read(), once) << "the block is at hand";
  }
}

TEST_F(StepRecordsTest, AnArrayOfManyChunksLoads) {
  StoreOptions options;
  options.read_only = true;
  const auto store = Store::Open(path_, options);
  ASSERT_OK(store.status());
  const auto reader = (*store)->Read(1);
  ASSERT_OK(reader.status());
  const auto leaf = (*reader)->Find(LeafKey({Name("layer", kLayers / 2), "y"}));
  ASSERT_OK(leaf.status());
  ASSERT_EQ((*leaf)->chunks.size(), 3000U);
  std::vector<float> out(many_.size());
  LoadRequest request;
  request.leaf = &**leaf;
  request.box = format::WholeArray((*leaf)->shape);
  request.out = reinterpret_cast<std::byte*>(out.data());
  ASSERT_OK((*reader)->Load({&request, 1}).status());
  EXPECT_EQ(out, many_);
}

// In a step just saved, in one of an earlier session, and in a store opened for reading.
TEST_F(StepRecordsTest, FindAgreesInAWriterAndAReader) {
  const auto check = [&](Store* store, uint64_t step, const char* where) {
    const auto reader = store->Read(step);
    ASSERT_OK(reader.status());
    for (size_t i = 0; i < whole_.size(); i += 97) {
      const auto found = (*reader)->Find(whole_[i].key);
      ASSERT_OK(found.status());
      ASSERT_TRUE(found->has_value()) << where;
      EXPECT_EQ((*found)->key, whole_[i].key) << where;
      EXPECT_EQ((*found)->chunks.size(), whole_[i].chunk_count) << where;
      if (step == 1) {
        EXPECT_EQ(**found, whole_[i]) << where;
      }
    }
    for (const std::string& none :
         {std::string(), LeafKey({"layer"}), LeafKey({"layer0000", "z"})}) {
      EXPECT_FALSE((*reader)->Find(none).value().has_value()) << where;
    }
  };
  StoreOptions options;
  {
    auto store = Store::Open(path_, options);
    ASSERT_OK(store.status());
    check(store->get(), 1, "earlier session");
    const std::vector<float> data{1, 2, 3, 4};
    SaveRequest again = ManyLeaves(data, std::string(5 << 20, 'y'), many_);
    again.step = 2;
    ASSERT_OK((*store)->Save(std::move(again))->Wait());
    check(store->get(), 2, "just saved");
  }
  options.read_only = true;
  auto store = Store::Open(path_, options);
  ASSERT_OK(store.status());
  check(store->get(), 1, "reader");
}

}  // namespace
}  // namespace stepwell::db
