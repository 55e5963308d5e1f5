// SPDX-License-Identifier: Apache-2.0
// Chunks that are stored as we would store them: imported as they are, after a look at them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "db/export/export.h"
#include "db/import/import.h"
#include "format/codec.h"
#include "format/crc32c.h"
#include "format/endian.h"
#include "io/open_disk.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::CodecId;
using format::LeafRecord;

std::vector<LeafSpec> PayloadState() {
  return {{"small", {7}}, {"raw", {800, 1000}}, {"empty", {0, 3}}, {"coded", {400000}, true, true}};
}

class ImportPayloadsTest : public ::testing::Test {
 protected:
  // A store with step 1 and its export by copy.
  void Export(int zarr_format = 3) {
    source_ = Open("source", CodecPolicy::kAuto);
    auto handle = SaveSeeded(source_.get(), 1, 5, PayloadState());
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    ExportOptions options;
    options.mode = ExportMode::kCopy;
    options.zarr_format = zarr_format;
    ASSERT_OK(db::Export(*source_, 1, dir_ / "x", options).status());
  }
  std::unique_ptr<Store> Open(const std::string& name, CodecPolicy codec) {
    StoreOptions options;
    options.codec = codec;
    auto store = Store::Open(dir_ / name, options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }
  Result<SaveRequest> Request(uint64_t step) {
    STEPWELL_ASSIGN_OR_RETURN(const auto checkpoint,
                              OrbaxCheckpoint::Open(io::LocalFileSystem(), dir_ / "x"));
    return ImportRequest(checkpoint, step, {});
  }
  static Status Import(Store* store, Result<SaveRequest> request) {
    if (!request.ok()) return request.status();
    STEPWELL_ASSIGN_OR_RETURN(SaveHandle handle, store->Save(std::move(*request)));
    return handle.Wait();
  }
  static LeafRecord Leaf(Store* store, uint64_t step, const std::string& name) {
    auto reader = store->Read(step);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    auto leaves = (*reader)->Leaves(KeyOf("state", name));
    EXPECT_TRUE(leaves.ok() && leaves->size() == 1);
    return leaves->front();
  }
  static std::vector<float> Load(Store* store, uint64_t step, const std::string& name) {
    const LeafRecord leaf = Leaf(store, step, name);
    std::vector<float> out(leaf.logical_bytes / sizeof(float));
    LoadRequest request;
    request.leaf = &leaf;
    request.box = format::WholeArray(leaf.shape);
    request.out = reinterpret_cast<std::byte*>(out.data());
    EXPECT_OK((*store->Read(step))->Load({&request, 1}).status());
    return out;
  }
  std::string DataFile() const { return dir_ / "x/state/d/chunks"; }
  std::string ReadData() {
    std::ifstream file(DataFile(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void WriteData(const std::string& bytes) {
    std::ofstream(DataFile(), std::ios::binary | std::ios::trunc) << bytes;
  }

  TempDir dir_{"/var/tmp"};
  std::unique_ptr<Store> source_;
};

TEST_F(ImportPayloadsTest, TheyAreSavedAsTheyAre) {
  Export();
  const auto store = Open("target", CodecPolicy::kRaw);
  ASSERT_OK(Import(store.get(), Request(9)));
  for (const char* name : {"raw", "coded"}) {
    const LeafRecord from = Leaf(source_.get(), 1, name);
    const LeafRecord to = Leaf(store.get(), 9, name);
    EXPECT_EQ(to.codec(), from.codec()) << name;
    EXPECT_EQ(to.chunk_shape, from.chunk_shape) << name;
    ASSERT_EQ(to.chunks.size(), from.chunks.size()) << name;
    EXPECT_GT(to.chunks.size(), 1u) << name;
    for (size_t i = 0; i < to.chunks.size(); ++i) {
      EXPECT_EQ(to.chunks[i].crc, from.chunks[i].crc) << name;
      EXPECT_EQ(to.chunks[i].stored_bytes, from.chunks[i].stored_bytes) << name;
    }
  }
  EXPECT_EQ(Leaf(store.get(), 9, "coded").codec(), CodecId::kBloscLz4);
  for (const LeafSpec& spec : PayloadState()) {
    EXPECT_EQ(Load(store.get(), 9, spec.name), LeafData(spec, 5)) << spec.name;
  }
  const auto report = store->Verify({});
  ASSERT_OK(report.status());
  EXPECT_TRUE(report->problems.empty());
}

TEST_F(ImportPayloadsTest, WithoutChecksumsTheyAreEncodedAnew) {
  Export(/*zarr_format=*/2);
  const auto store = Open("target", CodecPolicy::kRaw);
  ASSERT_OK(Import(store.get(), Request(9)));
  EXPECT_EQ(Leaf(store.get(), 9, "coded").codec(), CodecId::kRaw);
  for (const LeafSpec& spec : PayloadState()) {
    EXPECT_EQ(Load(store.get(), 9, spec.name), LeafData(spec, 5)) << spec.name;
  }
}

TEST_F(ImportPayloadsTest, EveryFlippedByteIsFound) {
  Export();
  const std::string right = ReadData();
  const auto request = Request(9);
  ASSERT_OK(request.status());
  size_t kept = 0;
  for (const LeafInput& leaf : request->items[0].leaves) kept += leaf.payloads.size();
  EXPECT_GT(kept, 2u);
  // A payload's first bytes, its last, and some between.
  for (const char* name : {"raw", "coded"}) {
    const LeafRecord record = Leaf(source_.get(), 1, name);
    const auto& leaves = request->items[0].leaves;
    const auto leaf = std::find_if(leaves.begin(), leaves.end(), [&](const LeafInput& each) {
      return each.record.key == record.key;
    });
    ASSERT_NE(leaf, leaves.end());
    ASSERT_FALSE(leaf->payloads.empty()) << name;
    // By its beginning: a sanitizer looks at all of what each comparison of a search is given.
    const std::string_view payload = AsText(leaf->payloads.back());
    const size_t size = payload.size();
    const size_t at = right.find(payload.substr(0, 64));
    ASSERT_NE(at, std::string::npos);
    ASSERT_EQ(right.substr(at, size), payload);
    for (const size_t offset : {size_t{0}, size_t{5}, size / 2, size - 4, size - 1}) {
      std::string wrong = right;
      wrong[at + offset] ^= 0x10;
      WriteData(wrong);
      const Status status = Request(9).status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << name << " " << offset;
      EXPECT_THAT(status.message(), ::testing::HasSubstr(name));
    }
    // A right checksum of what does not decode.
    if (leaf->codec == CodecId::kBloscLz4) {
      std::string wrong = right;
      for (size_t i = 20; i < size - 4; ++i) wrong[at + i] = static_cast<char>(0xFF);
      const uint32_t crc = format::Crc32c(AsBytes(wrong).subspan(at, size - 4));
      format::StoreLittle(reinterpret_cast<std::byte*>(wrong.data()) + at + size - 4, crc);
      WriteData(wrong);
      EXPECT_EQ(Request(9).status().code(), StatusCode::kDataLoss);
    }
    WriteData(right);
  }
  ASSERT_OK(Request(9).status());
}

TEST_F(ImportPayloadsTest, ASaveRefusesWhatDoesNotFitItsGrid) {
  Export();
  const auto store = Open("target", CodecPolicy::kRaw);
  const auto refused = [&](const std::function<void(LeafInput*)>& spoil) {
    auto request = Request(9);
    EXPECT_TRUE(request.ok());
    for (LeafInput& leaf : request->items[0].leaves) {
      if (leaf.record.key == KeyOf("state", "raw")) spoil(&leaf);
    }
    return Import(store.get(), std::move(request)).code();
  };
  constexpr auto kRefused = StatusCode::kInvalidArgument;
  EXPECT_EQ(refused([](LeafInput* leaf) { leaf->payloads.pop_back(); }), kRefused);
  EXPECT_EQ(refused([](LeafInput* leaf) { leaf->record.chunk_shape = {0, 1000}; }), kRefused);
  EXPECT_EQ(refused([](LeafInput* leaf) { leaf->record.chunk_shape = {300}; }), kRefused);
  EXPECT_EQ(refused([](LeafInput* leaf) { leaf->codec = CodecId::kLz4Frame; }), kRefused);
  EXPECT_EQ(refused([](LeafInput* leaf) { leaf->payloads[0] = leaf->payloads[0].first(3); }),
            kRefused);
  EXPECT_EQ(StepNumbers(store.get()), std::vector<uint64_t>{});
  EXPECT_EQ(refused([](LeafInput*) {}), StatusCode::kOk);
}

}  // namespace
}  // namespace stepwell::db
