// SPDX-License-Identifier: Apache-2.0
// Records that exports carry: what is left of a tree, and which records are none.
#include "db/export/orbax/records.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "format/key.h"
#include "tests/io/support/expect_ok.h"

namespace stepwell::db {
namespace {

using format::LeafKind;
using format::LeafRecord;
using RecordPath = std::vector<std::string>;

format::KeyPath KeysOf(const RecordPath& path) {
  format::KeyPath keys;
  for (const std::string& name : path) keys.push_back(format::PathComponent::Key(name));
  return keys;
}

LeafRecord RecordAt(const RecordPath& path, LeafKind kind, uint64_t child_count = 0,
                    const std::string& item = "state") {
  LeafRecord record;
  record.key = format::EncodeLeafKey(item, KeysOf(path)).value();
  record.kind = kind;
  record.value_type = format::ValueType::kNone;
  record.child_count = child_count;
  return record;
}

// {"a": {"b": None, "c": {}}, "d": None}
std::vector<LeafRecord> RecordTree() {
  return {RecordAt({}, LeafKind::kNode, 2), RecordAt({"a"}, LeafKind::kNode, 2),
          RecordAt({"a", "b"}, LeafKind::kValue), RecordAt({"a", "c"}, LeafKind::kNode),
          RecordAt({"d"}, LeafKind::kValue)};
}

TEST(ExportRecordsTest, ATreeHasTheNameOfItsItem) {
  const auto name = CheckRecords(RecordTree());
  ASSERT_OK(name.status());
  EXPECT_EQ(*name, "state");
  EXPECT_OK(CheckRecords({RecordAt({}, LeafKind::kValue)}).status());
}

TEST(ExportRecordsTest, WhatIsNoTreeIsDamage) {
  const std::vector<std::function<void(std::vector<LeafRecord>*)>> damage = {
      [](auto* tree) { tree->clear(); },
      [](auto* tree) { tree->erase(tree->begin()); },      // no top
      [](auto* tree) { tree->erase(tree->begin() + 1); },  // no container
      [](auto* tree) { tree->erase(tree->begin() + 2); },  // a child too few
      [](auto* tree) { tree->pop_back(); },
      [](auto* tree) { tree->push_back(tree->back()); },      // twice
      [](auto* tree) { std::swap((*tree)[2], (*tree)[3]); },  // out of order
      [](auto* tree) { (*tree)[0].child_count = 3; },
      [](auto* tree) { (*tree)[0].child_count = 1; },
      [](auto* tree) { (*tree)[3].child_count = 1; },
      [](auto* tree) { (*tree)[1].child_count = 0; },  // a leaf above others
      [](auto* tree) { tree->back() = RecordAt({"d"}, LeafKind::kValue, 0, "state2"); },
      [](auto* tree) { tree->back().key = "no key"; },
      [](auto* tree) { tree->push_back(RecordAt({}, LeafKind::kValue, 0, "state2")); }};
  for (size_t i = 0; i < damage.size(); ++i) {
    std::vector<LeafRecord> tree = RecordTree();
    damage[i](&tree);
    EXPECT_FALSE(CheckRecords(tree).ok()) << i;
  }
}

TEST(ExportRecordsTest, ContainersOfWhichNothingIsLeftGo) {
  const std::vector<LeafRecord> tree = RecordTree();
  const auto select = [&](const std::vector<size_t>& numbers) {
    std::vector<SelectedRecord> selected;
    const std::vector<RecordPath> paths = {{}, {"a"}, {"a", "b"}, {"a", "c"}, {"d"}};
    for (const size_t i : numbers) selected.push_back({&tree[i], KeysOf(paths[i])});
    return RecordsOfExport("other", selected).value().entries;
  };
  const std::vector<LeafRecord> whole = select({4, 3, 2, 1, 0});
  ASSERT_EQ(whole.size(), 5U);
  EXPECT_EQ(*CheckRecords(whole), "other");
  const std::vector<LeafRecord> some = select({0, 1, 3, 4});
  ASSERT_EQ(some.size(), 4U);
  EXPECT_EQ(some[1].child_count, 1U);
  const std::vector<LeafRecord> few = select({0, 1, 4});
  ASSERT_EQ(few.size(), 2U);
  EXPECT_EQ(few[0].child_count, 1U);
  EXPECT_TRUE(select({2, 4}).empty());  // without containers they are no tree
}

TEST(ExportRecordsTest, ValuesComeBackOrAreDamage) {
  std::vector<LeafRecord> values = {RecordAt({"a"}, LeafKind::kValue),
                                    RecordAt({"b"}, LeafKind::kValue)};
  values[0].value_type = values[1].value_type = format::ValueType::kBytes;
  values[0].inline_value = std::string(5000, 'x');  // longer than a record may have
  const std::string bytes = EncodeValues(values);
  const auto decoded = DecodeValues(bytes);
  ASSERT_OK(decoded.status());
  ASSERT_EQ(decoded->size(), 2U);
  EXPECT_EQ((*decoded)[0].inline_value, values[0].inline_value);
  EXPECT_EQ((*decoded)[0].logical_bytes, 5000U);
  EXPECT_EQ((*decoded)[1].inline_value, "");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeValues(bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeValues(bytes + "x").ok());
  values[1].kind = LeafKind::kNode;
  EXPECT_FALSE(DecodeValues(EncodeValues(values)).ok());
}

}  // namespace
}  // namespace stepwell::db
