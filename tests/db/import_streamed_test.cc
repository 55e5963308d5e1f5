// SPDX-License-Identifier: Apache-2.0
// Checkpoints of which only a part is in memory while they are imported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "db/export/export.h"
#include "db/import/import.h"
#include "db/import/streamed.h"
#include "io/open_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

constexpr uint64_t kSteps[] = {9};

// Bands, columns, a stack of layers, one row, lengths without divisors; and small ones.
std::vector<LeafSpec> StreamedState() {
  return {{"bands", {6000, 1000}},
          {"columns", {640, 12800}},
          {"empty", {0, 3}},
          {"layers", {12, 700, 900}},
          {"packed", {5'000'000}, false, true},
          {"row", {1, 7'000'001}},
          {"scalar", {}},
          {"small", {300}},
          {"uneven", {4099, 1501}}};
}

class ImportStreamedTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    source_ = Open("source");
    auto handle = SaveSeeded(source_.get(), 1, 5, StreamedState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    ExportOptions options;
    options.mode = ExportMode::kCopy;
    options.zarr_format = GetParam();
    ASSERT_OK(db::Export(*source_, 1, dir_ / "x", options).status());
  }
  std::unique_ptr<Store> Open(const std::string& name) {
    auto store = Store::Open(dir_ / name, {});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  static ImportOptions Streaming() {
    ImportOptions options;
    options.held_bytes_max = uint64_t{8} << 20;
    return options;
  }
  Result<SaveRequest> Request(const ImportOptions& options) {
    STEPWELL_ASSIGN_OR_RETURN(const auto checkpoint,
                              OrbaxCheckpoint::Open(io::LocalFileSystem(), dir_ / "x"));
    return ImportRequest(checkpoint, 9, options);
  }
  static Status Import(Store* store, Result<SaveRequest> request) {
    if (!request.ok()) return request.status();
    STEPWELL_ASSIGN_OR_RETURN(SaveHandle handle, store->Save(std::move(*request)));
    return handle.Wait();
  }
  static std::vector<LeafRecord> Leaves(Store* store, uint64_t step) {
    auto reader = store->Read(step);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    auto leaves = (*reader)->Leaves("");
    EXPECT_TRUE(leaves.ok());
    return *leaves;
  }
  static std::vector<float> Load(Store* store, const std::string& name) {
    const auto reader = *store->Read(9);
    const LeafRecord leaf = reader->Leaves(KeyOf("state", name))->front();
    std::vector<float> out(leaf.logical_bytes / sizeof(float));
    LoadRequest request;
    request.leaf = &leaf;
    request.box = format::WholeArray(leaf.shape);
    request.out = reinterpret_cast<std::byte*>(out.data());
    EXPECT_OK(reader->Load({&request, 1}).status());
    return out;
  }
  std::string DataFile() const { return dir_ / "x/state/d/chunks"; }
  void Flip(uint64_t offset) const {
    std::fstream file(DataFile(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 0x10));
  }

  TempDir dir_{"/var/tmp"};
  std::unique_ptr<Store> source_;
};

TEST_P(ImportStreamedTest, TheStepIsTheOneThatIsReadAtOnce) {
  auto request = Request(Streaming());
  ASSERT_OK(request.status());
  ASSERT_NE(request->far, nullptr);
  size_t streamed = 0;
  for (const LeafInput& leaf : request->items[0].leaves) {
    if (leaf.shards.empty()) continue;
    ++streamed;
    EXPECT_EQ(leaf.hold, nullptr);
    EXPECT_GT(leaf.shards.size(), 1U) << leaf.record.key;
    for (const ShardInput& shard : leaf.shards) {
      EXPECT_LE(format::ChunkBytes(shard.shape, sizeof(float)), uint64_t{28} << 20);
    }
  }
  EXPECT_EQ(streamed, 6U);
  const auto store = Open("target");
  ASSERT_OK(Import(store.get(), std::move(request)));
  ImportOptions at_once;
  at_once.held_bytes_max = UINT64_MAX;
  ASSERT_EQ(Request(at_once)->far, nullptr);
  const auto other = Open("other");
  ASSERT_OK(Import(other.get(), Request(at_once)));
  const auto found = Leaves(store.get(), 9);
  const auto expected = Leaves(other.get(), 9);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].key, expected[i].key);
    EXPECT_EQ(found[i].shard_shape, expected[i].shard_shape);
  }
  for (const LeafSpec& spec : StreamedState()) {
    EXPECT_EQ(Load(store.get(), spec.name), LeafData(spec, 5)) << spec.name;
  }
  ASSERT_OK(VerifyImport(*store, 9, dir_ / "x", Streaming(), io::LocalFileSystem()));
}

// The request is there before the damage, as where a disk loses a block while the import goes on.
TEST_P(ImportStreamedTest, DamageIsFoundAndNothingIsSaved) {
  const uint64_t size = std::filesystem::file_size(DataFile());
  for (const uint64_t offset : {size / 9, size / 2, size - size / 9}) {
    const auto store = Open("target");
    auto request = Request(Streaming());
    ASSERT_OK(request.status());
    Flip(offset);
    const Status status = Import(store.get(), std::move(request));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_THAT(status.message(), ::testing::ContainsRegex("item 'state', leaf '[a-z]+', chunk"));
    EXPECT_THAT(status.message(), ::testing::StartsWith(dir_ / "x"));
    EXPECT_EQ(StepNumbers(store.get()), std::vector<uint64_t>{});
    Flip(offset);
    ASSERT_OK(Import(store.get(), Request(Streaming())));  // the store goes on
    Flip(offset);
    EXPECT_EQ(VerifyImport(*store, 9, dir_ / "x", Streaming(), io::LocalFileSystem()).code(),
              StatusCode::kDataLoss);
    Flip(offset);
    ASSERT_OK(VerifyImport(*store, 9, dir_ / "x", Streaming(), io::LocalFileSystem()));
    ASSERT_OK(store->Delete(kSteps));
    ASSERT_OK(store->Close());
  }
}

TEST_P(ImportStreamedTest, AnotherCheckpointInItsPlaceIsNotMixedIn) {
  const auto store = Open("target");
  auto request = Request(Streaming());
  ASSERT_OK(request.status());
  std::filesystem::rename(dir_ / "x", dir_ / "old");
  std::filesystem::copy(dir_ / "old", dir_ / "x", std::filesystem::copy_options::recursive);
  const Status status = Import(store.get(), std::move(request));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_EQ(StepNumbers(store.get()), std::vector<uint64_t>{});
}

// A checkpoint without a database, whose writer left out what is all fill value: a chunk that
// vanishes meanwhile was none of these.
TEST_P(ImportStreamedTest, AChunkThatVanishesIsNoFillValue) {
  const std::string folder = dir_ / "plain";
  const bool is_zarr3 = GetParam() == 3;
  std::filesystem::create_directories(folder + "/w/c");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  };
  write("_METADATA", StrCat(R"({"tree_metadata": {"w": {"key_metadata": [
      {"key": "w", "key_type": 2}], "value_metadata": {"value_type": "jax.Array",
      "skip_deserialize": false}}}, "use_ocdbt": false, "use_zarr3": )",
                            is_zarr3 ? "true}" : "false}"));
  write("w/.zarray", R"({"zarr_format": 2, "shape": [40000000], "chunks": [1000000],
      "dtype": "|u1", "compressor": null, "fill_value": 0, "filters": null, "order": "C"})");
  write("w/zarr.json", R"({"zarr_format": 3, "node_type": "array", "shape": [40000000],
      "data_type": "uint8", "chunk_grid": {"name": "regular", "configuration":
      {"chunk_shape": [1000000]}}, "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
      "codecs": [{"name": "bytes"}]})");
  const auto chunk = [&](int number) { return StrCat(is_zarr3 ? "w/c/" : "w/", number); };
  for (int i = 0; i < 39; ++i) write(chunk(i), std::string(1'000'000, 'x'));
  const auto checkpoint = OrbaxCheckpoint::Open(io::LocalFileSystem(), folder);
  ASSERT_OK(checkpoint.status());
  const auto store = Open("target");
  auto request = ImportRequest(*checkpoint, 9, Streaming());
  ASSERT_OK(request.status());
  ASSERT_NE(request->far, nullptr);
  std::filesystem::remove(folder + "/" + chunk(30));
  const Status status = Import(store.get(), std::move(request));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_THAT(status.message(), ::testing::HasSubstr("leaf 'w', chunk 30"));
  EXPECT_EQ(StepNumbers(store.get()), std::vector<uint64_t>{});
  write(chunk(30), std::string(1'000'000, 'x'));
  ASSERT_OK(Import(store.get(), ImportRequest(*checkpoint, 9, Streaming())));
}

TEST_P(ImportStreamedTest, ItSaysHowFarItIsAndEndsWhenAsked) {
  const auto store = Open("target");
  ImportOptions options = Streaming();
  uint64_t done = 0;
  uint64_t total = 0;
  bool never_back = true;
  options.progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
    never_back = never_back && done_bytes >= done && done_bytes <= total_bytes;
    done = done_bytes;
    total = total_bytes;
  };
  ASSERT_OK(Import(store.get(), Request(options)));
  uint64_t bytes = 0;
  for (const LeafSpec& spec : StreamedState()) bytes += LeafData(spec, 5).size() * sizeof(float);
  EXPECT_EQ(total, bytes);
  EXPECT_EQ(done, bytes);
  EXPECT_TRUE(never_back);
  ASSERT_OK(store->Delete(kSteps));
  size_t asked = 0;
  options.keep_waiting = [&] { return ++asked < 2; };
  const Status status = Import(store.get(), Request(options));
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
  EXPECT_GE(asked, 2U);
  EXPECT_EQ(StepNumbers(store.get()), std::vector<uint64_t>{});
}

INSTANTIATE_TEST_SUITE_P(Zarr, ImportStreamedTest, ::testing::Values(2, 3));

}  // namespace
}  // namespace stepwell::db
