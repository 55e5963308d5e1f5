// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/leaves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "db/import/tree.h"
#include "format/key.h"

namespace stepwell::db {
namespace {

using format::ContainerKind;
using format::LeafRecord;

using format::ValueType;
using ::testing::HasSubstr;

class ExportJsonTest : public ::testing::Test {
 protected:
  void Node(const format::KeyPath& path, ContainerKind container) {
    Add(import::NodeInput(*format::EncodeLeafKey("config", path), container, 0));
  }
  void Value(const format::KeyPath& path, ValueType type, const std::string& bytes) {
    Add(import::ValueInput(*format::EncodeLeafKey("config", path), type, bytes));
    leaves_.back().inline_value = bytes;
  }
  void Add(LeafInput input) { leaves_.push_back(std::move(input.record)); }

  std::vector<LeafRecord> leaves_;
};

TEST_F(ExportJsonTest, EveryTypeThatJsonHas) {
  const auto key = [](const char* name) { return PathComponent::Key(name); };
  Node({}, ContainerKind::kDict);
  Node({key("a")}, ContainerKind::kList);
  Value({key("a"), PathComponent::Index(0)}, ValueType::kInt, "-7");
  Value({key("a"), PathComponent::Index(1)}, ValueType::kInt, "18446744073709551615");
  Value({key("a"), PathComponent::Index(2)}, ValueType::kFloat, import::FloatValue(1e-3));
  Value({key("a"), PathComponent::Index(3)}, ValueType::kInt, "-18446744073709551616");
  Node({key("b")}, ContainerKind::kDict);
  Value({key("b"), key("no")}, ValueType::kBool, std::string(1, '\0'));
  Value({key("b"), key("none")}, ValueType::kNone, "");
  Value({key("b"), key("text")}, ValueType::kStr, "\xC3\xA4\"");
  const auto text = EncodeJsonItem(leaves_, 0);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(*text, R"({"a": [-7, 18446744073709551615, 0.001, -18446744073709551616], )"
                   R"("b": {"no": false, "none": null, "text": "\u00e4\""}})");
  const std::span<const LeafRecord> below = std::span<const LeafRecord>(leaves_).subspan(6, 4);
  const auto part = EncodeJsonItem(below, 1);
  ASSERT_TRUE(part.ok()) << part.status().ToString();
  EXPECT_EQ(*part, R"({"no": false, "none": null, "text": "\u00e4\""})");
}

TEST_F(ExportJsonTest, WhatJsonHasNot) {
  const auto refused = [&](StatusCode code, const char* words) {
    const Status status = EncodeJsonItem(leaves_, 0).status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(words));
    leaves_.clear();
  };
  Value({}, ValueType::kInt, std::string(4301, '7'));
  refused(StatusCode::kInvalidArgument, "4300 digits");
  for (const char* bad : {"", "-", "7x", "1e3"}) {
    Value({}, ValueType::kInt, bad);
    refused(StatusCode::kDataLoss, "damaged");
  }
  Value({}, ValueType::kBytes, "ab");
  refused(StatusCode::kInvalidArgument, "JSON has not");
  Value({}, ValueType::kStr, "\xFF");
  refused(StatusCode::kInvalidArgument, "UTF-8");
  Node({}, ContainerKind::kDict);
  leaves_.back().kind = format::LeafKind::kArray;
  refused(StatusCode::kInvalidArgument, "an array");
  format::KeyPath deep;
  for (int i = 0; i < 150; ++i) {
    Node(deep, ContainerKind::kList);
    deep.push_back(PathComponent::Index(0));
  }
  refused(StatusCode::kInvalidArgument, "levels");
  Value({PathComponent::Key("a")}, ValueType::kNone, "");
  refused(StatusCode::kDataLoss, "container");
  Node({}, ContainerKind::kList);
  Value({PathComponent::Index(1)}, ValueType::kNone, "");
  refused(StatusCode::kDataLoss, "container");
  Value({}, ValueType::kFloat, "abc");
  refused(StatusCode::kDataLoss, "damaged");
}

}  // namespace
}  // namespace stepwell::db
