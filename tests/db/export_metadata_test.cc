// SPDX-License-Identifier: Apache-2.0
// The metadata that an import kept of a root and of items returns to its place, and nothing else
// does.
#include "db/export/orbax/plan.h"

#include <gtest/gtest.h>

namespace stepwell::db {
namespace {

ExportPlan PlanWith(std::string custom_metadata) {
  ExportPlan plan;
  plan.custom_metadata = std::move(custom_metadata);
  plan.items.resize(2);
  plan.items[0].name = "state";
  plan.items[0].folder = "default";
  plan.items[1].name = "config";
  plan.items[1].json_file = "metadata";
  return plan;
}

constexpr const char* kImported =
    R"({"a": NaN, "orbax": {"root": {"r": 1}, "items": {"state": {"s": [2]}}}, "z": 0})";

TEST(ExportMetadataTest, ItemsAndRootGetTheirOwnBack) {
  ExportPlan plan = PlanWith(kImported);
  PlaceImportedMetadata(/*makes_root=*/true, &plan);
  EXPECT_EQ(plan.custom_metadata, R"({"a": NaN, "z": 0})");
  EXPECT_EQ(plan.root_metadata, R"({"r": 1})");
  EXPECT_EQ(plan.items[0].tree.custom_metadata, R"({"s": [2]})");
}

TEST(ExportMetadataTest, WhatHasNoPlaceStays) {
  ExportPlan plan = PlanWith(kImported);
  PlaceImportedMetadata(/*makes_root=*/false, &plan);
  EXPECT_EQ(plan.custom_metadata, R"({"a": NaN, "orbax": {"root": {"r": 1}}, "z": 0})");
  EXPECT_EQ(plan.root_metadata, "");

  // A JSON item has no metadata of its own; another one is not in this export.
  plan = PlanWith(R"({"orbax": {"items": {"config": {"c": 1}, "gone": {"g": 2}}}})");
  PlaceImportedMetadata(/*makes_root=*/true, &plan);
  EXPECT_EQ(plan.custom_metadata,
            R"({"orbax": {"items": {"config": {"c": 1}, "gone": {"g": 2}}}})");
}

TEST(ExportMetadataTest, OfSeveralKeysTheLastIsTheImports) {
  ExportPlan plan = PlanWith(R"({"orbax": {"root": {"u": 1}}, "orbax_": {"root": {"r": 2}}})");
  PlaceImportedMetadata(/*makes_root=*/true, &plan);
  EXPECT_EQ(plan.custom_metadata, R"({"orbax": {"root": {"u": 1}}})");
  EXPECT_EQ(plan.root_metadata, R"({"r": 2})");
}

TEST(ExportMetadataTest, WhatUsersWroteStays) {
  for (const char* const text :
       {R"({})", R"({"orbax": 1})", R"({"orbax": {}})", R"({"orbax": {"root": 1}})",
        R"({"orbax": {"root": {}, "mine": {}}})", R"({"orbax_": {"root": {}}})", R"([])"}) {
    ExportPlan plan = PlanWith(text);
    PlaceImportedMetadata(/*makes_root=*/true, &plan);
    EXPECT_EQ(plan.custom_metadata, text);
    EXPECT_EQ(plan.root_metadata, "");
    EXPECT_EQ(plan.items[0].tree.custom_metadata, "null");
  }
}

}  // namespace
}  // namespace stepwell::db
