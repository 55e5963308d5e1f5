// SPDX-License-Identifier: Apache-2.0
// Exports through the public interface. tests/python checks the directory's contents by Orbax
// itself.
#include <filesystem>

#include "tests/api/support/api_support.h"

namespace stepwell {
namespace {

namespace fs = std::filesystem;
using ::testing::SizeIs;

class ApiExportTest : public ApiTest {
 protected:
  static SaveRequest TwoItems() {
    SaveRequest request(7);
    auto numbers = std::make_shared<const std::vector<float>>(Numbers<float>(1000));
    request.Put(Path::In("params", "layer/w"), ArrayView::Of(numbers, {10, 100}));
    request.Put(Path::In("params", "layer/name"), "dense");
    request.Put(Path::In("opt", "count"), 3);
    request.Put(Path::In("opt", "raw"), Bytes(4));
    return request;
  }
  std::string destination() const { return path() + "-export"; }
};

TEST_F(ApiExportTest, AStepBecomesACheckpoint) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, SmallStep(7, 5)));
  ExportOptions options;
  options.mode = ExportMode::kCopy;
  uint64_t calls = 0;
  options.progress = [&](uint64_t done, uint64_t total) {
    ++calls;
    return done <= total;
  };
  const auto report = store.Export(7, destination(), options);
  ASSERT_OK(report);
  EXPECT_EQ(report->path, destination());
  EXPECT_EQ(report->mode, ExportMode::kCopy);
  EXPECT_EQ(report->leaves, 1);
  EXPECT_GT(calls, 0);
  EXPECT_TRUE(fs::exists(destination() + "/state/manifest.ocdbt"));
  EXPECT_ERROR(store.Export(7, destination(), options), StatusCode::kAlreadyExists, destination());
  EXPECT_ERROR(store.Export(8, destination() + "8"), StatusCode::kNotFound, "8");
  fs::remove_all(destination());
  EXPECT_EQ(store.ReadLatest()->ReadVector<float>("w")->front(), 5);
}

TEST_F(ApiExportTest, APathBecomesTheTree) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, TwoItems()));
  const auto report = store.Export(7, destination(), {}, "params/layer");
  ASSERT_OK(report);
  EXPECT_EQ(report->leaves, 2);
  EXPECT_TRUE(fs::exists(destination() + "/params"));
  EXPECT_FALSE(fs::exists(destination() + "/opt"));
  const auto leaf = store.Export(7, destination() + "2", {}, Path::In("params", "layer/w"));
  ASSERT_OK(leaf);
  EXPECT_EQ(leaf->leaves, 1);
  EXPECT_ERROR(store.Export(7, destination() + "3", {}, "params/nothing"), StatusCode::kNotFound,
               "nothing");
  EXPECT_FALSE(fs::exists(destination() + "3"));
}

TEST_F(ApiExportTest, WhatOrbaxCannotHoldIsRefusedOrLeftOut) {
  Store store = Open();
  ASSERT_OK(SaveAndWait(store, TwoItems()));
  EXPECT_ERROR(store.Export(7, destination()), StatusCode::kInvalidArgument, "opt/raw");
  EXPECT_FALSE(fs::exists(destination()));
  ExportOptions options;
  options.on_unsupported = OnUnsupported::kSkip;
  options.layout = ExportLayout::kV0;
  options.step_prefix = "ckpt";
  options.step_digits = 3;
  const auto report = store.Export(7, destination(), options);
  ASSERT_OK(report);
  ASSERT_THAT(report->skipped, SizeIs(1));
  EXPECT_EQ(report->skipped[0].path, "opt/raw");
  EXPECT_TRUE(fs::exists(destination() + "/ckpt_007/params"));
  ASSERT_OK(store.Close());
  EXPECT_ERROR(store.Export(7, destination() + "4"), StatusCode::kFailedPrecondition, "closed");
}

}  // namespace
}  // namespace stepwell
