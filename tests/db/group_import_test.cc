// SPDX-License-Identifier: Apache-2.0
// A checkpoint that several processes import, each a share of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "db/export/export.h"
#include "db/import/import.h"
#include "io/open_disk.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;
using ::testing::HasSubstr;

constexpr uint32_t kShares = 3;
constexpr uint64_t kMiB = uint64_t{1} << 20;

// About 24 MB, of which "coded" is stored in less.
std::vector<LeafSpec> GroupState() {
  return {{"small", {7}},
          {"raw", {3000, 1000}},
          {"empty", {0, 3}},
          {"coded", {2900, 1000}, true, true},
          {"last", {100000}}};
}

class GroupImportTest : public ::testing::Test {
 protected:
  void Export(int zarr_format) {
    source_ = Store::Open(dir_ / "source", {}).value();
    auto handle = SaveSeeded(source_.get(), 1, 5, GroupState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    ExportOptions options;
    options.mode = ExportMode::kCopy;
    options.zarr_format = zarr_format;
    ASSERT_OK(db::Export(*source_, 1, dir_ / "x", options).status());
    auto group = GroupStores::Open(dir_ / "target", kShares);
    ASSERT_OK(group.status());
    group_ = std::move(*group);
  }
  Result<ImportPlan> Plan() const {
    STEPWELL_ASSIGN_OR_RETURN(const auto checkpoint,
                              OrbaxCheckpoint::Open(io::LocalFileSystem(), dir_ / "x"));
    return ImportPlan::Make(checkpoint, {});
  }
  Result<SaveRequest> Share(uint32_t index, uint64_t memory_bytes_max = 0) const {
    STEPWELL_ASSIGN_OR_RETURN(ImportPlan plan, Plan());
    ImportOptions options;
    options.memory_bytes_max = memory_bytes_max;
    STEPWELL_ASSIGN_OR_RETURN(SaveRequest request, plan.Read(9, {index, kShares}, options));
    request.group = GroupSave{SaveId(9), group_.parts};
    return request;
  }
  static Status Save(Store* store, Result<SaveRequest> request) {
    if (!request.ok()) return request.status();
    STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle, store->Save(std::move(*request)));
    return handle.Wait();
  }
  void ImportAll() {
    for (uint32_t index = 0; index < kShares; ++index) {
      ASSERT_OK(Save(group_.part(index), Share(index)));
    }
    ASSERT_OK(group_.DecideAll(Commit(9, 9)).status());
  }
  static LeafRecord Leaf(Store* store, uint64_t step, const std::string& name) {
    const auto reader = store->Read(step).value();
    return reader->Find(KeyOf("state", name)).value().value();
  }
  void ExpectAllThere() {
    const auto reader = group_.part(0)->Read(9);
    ASSERT_OK(reader.status());
    for (const LeafSpec& spec : GroupState()) {
      const LeafRecord leaf = Leaf(group_.part(0), 9, spec.name);
      EXPECT_FALSE(leaf.partial) << spec.name;  // its pieces have one grid
      std::vector<float> out(leaf.logical_bytes / sizeof(float));
      LoadRequest request;
      request.leaf = &leaf;
      request.box = format::WholeArray(leaf.shape);
      request.out = reinterpret_cast<std::byte*>(out.data());
      ASSERT_OK((*reader)->Load({&request, 1}).status());
      EXPECT_EQ(out, LeafData(spec, 5)) << spec.name;
    }
    const auto report = group_.part(0)->Verify({});
    ASSERT_OK(report.status());
    EXPECT_TRUE(report->problems.empty());
  }

  TempDir dir_{"/var/tmp"};
  std::unique_ptr<Store> source_;
  GroupStores group_;
};

TEST_F(GroupImportTest, PayloadsAreKeptInEachShare) {
  Export(/*zarr_format=*/3);
  ImportAll();
  ExpectAllThere();
  for (const char* name : {"raw", "coded"}) {
    const LeafRecord from = Leaf(source_.get(), 1, name);
    const LeafRecord to = Leaf(group_.part(0), 9, name);
    EXPECT_EQ(to.codec(), from.codec()) << name;
    EXPECT_EQ(to.chunk_shape, from.chunk_shape) << name;
    ASSERT_EQ(to.chunks.size(), from.chunks.size()) << name;
    std::set<uint32_t> writers;
    for (size_t i = 0; i < to.chunks.size(); ++i) {
      EXPECT_EQ(to.chunks[i].crc, from.chunks[i].crc) << name;
      EXPECT_EQ(to.chunks[i].stored_bytes, from.chunks[i].stored_bytes) << name;
      writers.insert(to.chunks[i].part);
    }
    EXPECT_EQ(writers.size(), 2u) << name;
  }
  EXPECT_EQ(Leaf(group_.part(0), 9, "coded").codec(), format::CodecId::kBloscLz4);
}

TEST_F(GroupImportTest, DecodedArraysHaveOneGrid) {
  Export(/*zarr_format=*/2);
  ImportAll();
  ExpectAllThere();
  // Nobody sees all of it, and all have to choose the same.
  EXPECT_EQ(Leaf(group_.part(0), 9, "coded").codec(), format::CodecId::kRaw);
}

TEST_F(GroupImportTest, AShareNeedsItsMemoryOnly) {
  Export(/*zarr_format=*/2);
  for (uint32_t index = 0; index < kShares; ++index) {
    EXPECT_OK(Share(index, 16 * kMiB).status());
  }
  const auto checkpoint = OrbaxCheckpoint::Open(io::LocalFileSystem(), dir_ / "x");
  ImportOptions options;
  options.memory_bytes_max = 16 * kMiB;
  EXPECT_EQ(ImportRequest(*checkpoint, 9, options).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(GroupImportTest, WhatIsReplacedWhileItIsReadIsNotImported) {
  Export(/*zarr_format=*/3);
  auto plan = Plan();
  ASSERT_OK(plan.status());
  std::filesystem::copy(dir_ / "x", dir_ / "y", std::filesystem::copy_options::recursive);
  std::filesystem::rename(dir_ / "x", dir_ / "old");
  std::filesystem::rename(dir_ / "y", dir_ / "x");
  const Status status = plan->Read(9, {}, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.message();
  const auto checkpoint = OrbaxCheckpoint::Open(io::LocalFileSystem(), dir_ / "x");
  std::filesystem::remove_all(dir_ / "x");  // damage that is none
  EXPECT_EQ(ImportPlan::Make(*checkpoint, {}).status().code(), StatusCode::kUnavailable);
}

TEST_F(GroupImportTest, IdentitiesTellCheckpointsApart) {
  Export(/*zarr_format=*/3);
  const std::string identity = Plan().value().Identity().value();
  EXPECT_EQ(Plan().value().Identity().value(), identity);
  std::filesystem::remove_all(dir_ / "x");
  ExportOptions options;
  options.mode = ExportMode::kCopy;
  auto handle = SaveSeeded(source_.get(), 2, 6, GroupState());
  ASSERT_OK(handle.status());
  ASSERT_OK(handle->Wait());
  ASSERT_OK(db::Export(*source_, 2, dir_ / "x", options).status());
  EXPECT_NE(Plan().value().Identity().value(), identity);
}

TEST_F(GroupImportTest, ASaveRefusesEncodedShardsThatDoNotFit) {
  Export(/*zarr_format=*/3);
  const auto refused = [&](std::string_view why, const std::function<void(LeafInput*)>& spoil) {
    auto request = Share(1);
    ASSERT_OK(request.status());
    auto& leaves = request->items[0].leaves;
    const auto leaf = std::find_if(leaves.begin(), leaves.end(), [](const LeafInput& each) {
      return each.record.key == KeyOf("state", "raw");
    });
    ASSERT_NE(leaf, leaves.end());
    ASSERT_TRUE(leaf->partial);
    ASSERT_FALSE(leaf->payloads.empty());
    spoil(&*leaf);
    const Status status = Save(group_.part(1), std::move(request));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(status.message(), HasSubstr(why));
  };
  refused("its grid has", [](LeafInput* leaf) { leaf->payloads.pop_back(); });
  refused("within a chunk", [](LeafInput* leaf) { --leaf->shards[0].shape[1]; });
  refused("within a chunk", [](LeafInput* leaf) { ++leaf->shards[0].origin[0]; });
  refused("ascend", [](LeafInput* leaf) {
    leaf->shards.insert(leaf->shards.begin(), leaf->shards[0]);
    leaf->shards[0].origin[0] += 1000;
  });
  refused("overlap", [](LeafInput* leaf) { leaf->shards.push_back(leaf->shards[0]); });
}

}  // namespace
}  // namespace stepwell::db
