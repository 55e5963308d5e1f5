// SPDX-License-Identifier: Apache-2.0
// Exports of steps whose parts lie on disks of several machines: what the processes do for each
// other, and what becomes of it when one does it wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "db/export/orbax/parts.h"
#include "tests/db/support/export_support.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint32_t kPartCount = 3;
constexpr uint64_t kPartsStep = 4;
constexpr uint64_t kEights = 5000;

class PartsExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stores = GroupStores::Open(dir_ / "run", kPartCount);
    ASSERT_OK(stores.status());
    group_ = std::move(*stores);
    Save();
    for (uint32_t part = 0; part < kPartCount; ++part) {
      auto share = group_.part(part)->ReadShare(kPartsStep);
      ASSERT_OK(share.status());
      shares_.push_back(*share);
      auto records = RecordsOfShare(*shares_[part], "");
      ASSERT_OK(records.status());
      if (part != 0) records_[part] = *records;
    }
    fs::create_directory(dir_ / "out");
  }

  // Each part has a leaf; of part 2 "eight" has a type that Orbax lacks.
  void Save() {
    const std::vector<std::byte> eights(kEights, std::byte{0x38});
    for (uint32_t part = 0; part < kPartCount; ++part) {
      std::vector<std::vector<float>> scratch;
      SaveRequest request = MakeRequest(kPartsStep, kPartsStep, PartState(part), &scratch);
      if (part != 0) request.items[0].leaves.pop_back();
      if (part == 2) {
        LeafInput& eight = request.items[0].leaves.emplace_back();
        eight.record.key = KeyOf("state", "eight");
        eight.record.dtype = format::DType::kFloat8E4M3;
        eight.record.shape = {kEights};
        eight.data = eights.data();
      }
      request.group = GroupSave{SaveId(kPartsStep), group_.parts};
      const auto handle = group_.part(part)->Save(std::move(request));
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
    }
    ASSERT_OK(group_.DecideAll(Commit(kPartsStep, kPartsStep)).status());
  }

  Result<std::unique_ptr<PartsExport>> Begin() {
    return PartsExport::Begin(*group_.part(0), shares_[0], records_, dir_ / "out/x", options_);
  }
  static std::vector<PartFile> FilesOf(const PartsExport& made, uint32_t part) {
    std::vector<PartFile> files = made.files();
    std::erase_if(files, [part](const PartFile& file) { return file.part != part; });
    return files;
  }
  Result<bool> Copy(uint32_t part, const std::vector<PartFile>& files) {
    PartCopyOptions options;
    options.mode = ExportMode::kCopy;
    return CopyPartFiles(*group_.part(part), *shares_[part], files, options);
  }
  void CopyAll(const PartsExport& made, uint32_t parts) {
    for (uint32_t part = 0; part < parts; ++part) {
      const auto cloned = Copy(part, FilesOf(made, part));
      ASSERT_OK(cloned.status());
      EXPECT_FALSE(*cloned);
    }
  }
  // The records of a part, to be changed.
  std::vector<format::LeafRecord> Records(uint32_t part) {
    auto records = format::DecodeRecords(AsBytes(records_[part]));
    EXPECT_OK(records.status());
    return records.ok() ? *records : std::vector<format::LeafRecord>();
  }
  static format::LeafRecord& LeafOf(std::vector<format::LeafRecord>& records,
                                    const std::string& name) {
    for (format::LeafRecord& leaf : records) {
      if (leaf.key == KeyOf("state", name)) return leaf;
    }
    ADD_FAILURE() << name;
    return records.front();
  }
  void ExpectRefused(StatusCode code, const std::string& one, const std::string& other) {
    const Status status = Begin().status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_THAT(status.message(), AllOf(HasSubstr(one), HasSubstr(other)));
    EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre());
  }

  TempDir dir_{"/var/tmp"};
  GroupStores group_;
  std::vector<std::shared_ptr<StepReader>> shares_;
  std::map<uint32_t, std::string> records_;
  ExportOptions options_{[] {
    ExportOptions options;
    options.on_unsupported = OnUnsupported::kWiden;
    return options;
  }()};
};

TEST_F(PartsExportTest, EachPartCopiesItsOwn) {
  const auto made = Begin();
  ASSERT_OK(made.status());
  EXPECT_TRUE(fs::is_directory((*made)->mark()));
  EXPECT_FALSE(fs::exists(dir_ / "out/x"));
  CopyAll(**made, kPartCount);
  const auto report = (*made)->Finish(/*cloned=*/false, nullptr);
  ASSERT_OK(report.status());
  EXPECT_EQ(report->mode, ExportMode::kCopy);
  EXPECT_THAT(report->widened, SizeIs(1));
  EXPECT_EQ(report->apparent_bytes, report->written_bytes);
  uint64_t bytes = 0;
  for (const auto& [name, content] : FilesBelow(dir_ / "out/x")) bytes += content.size();
  EXPECT_EQ(report->written_bytes, bytes);
  EXPECT_THAT(NamesIn(dir_ / "out/x/state/d"),
              ElementsAre("chunks", "chunks-part-1", "chunks-part-2", "nodes", "rewritten"));
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre("x"));
  EXPECT_THAT(NamesIn(dir_ / "out/x"),
              ElementsAre("_CHECKPOINT_METADATA", "commit_success.txt", "metrics",
                          "orbax.checkpoint", "state", "stepwell-digests"));
  EXPECT_EQ(fs::file_size(dir_ / "out/x/state/d/rewritten"), 2 * kEights + format::kCrcBytes);
}

TEST_F(PartsExportTest, WithoutWhatOrbaxLacksItIsAsAnyOther) {
  options_.on_unsupported = OnUnsupported::kSkip;
  const auto made = Begin();
  ASSERT_OK(made.status());
  CopyAll(**made, kPartCount);
  ASSERT_OK((*made)->Finish(/*cloned=*/false, nullptr).status());
  std::vector<LeafSpec> specs;
  for (uint32_t part = 0; part < kPartCount; ++part) specs.push_back(PartState(part).front());
  EXPECT_OK(CheckExported(io::LocalFileSystem(), dir_ / "out/x", kPartsStep, specs));
}

TEST_F(PartsExportTest, RecordsThatDoNotFitAreRefused) {
  const auto good = records_;
  records_.erase(2);
  ExpectRefused(StatusCode::kDataLoss, "part 2", "missing");
  records_ = good;
  records_[1].resize(records_[1].size() / 2);
  ExpectRefused(StatusCode::kDataLoss, "part 1", "records");

  records_ = good;
  auto changed = Records(1);
  LeafOf(changed, "w1").chunks.front().segment = 0;
  records_[1] = format::EncodeRecords(changed);
  ExpectRefused(StatusCode::kDataLoss, "part 1", "state/w1");

  changed = Records(2);
  LeafOf(changed, "eight").chunks.pop_back();
  records_ = good;
  records_[2] = format::EncodeRecords(changed);
  ExpectRefused(StatusCode::kDataLoss, "state/eight", "chunks");

  // The same box of an array from two parts; and one that nobody has.
  records_ = good;
  changed = Records(1);
  format::LeafRecord leaf = LeafOf(changed, "w1");
  leaf.partial = true;
  leaf.pieces = {{format::Shape(leaf.shape.size(), 0), leaf.shape, leaf.chunk_shape, 0}};
  records_[1] = records_[2] = format::EncodeRecords({&leaf, 1});
  ExpectRefused(StatusCode::kDataLoss, "state/w1", "");
  leaf.shape[0] += leaf.chunk_shape[0];
  records_[1] = format::EncodeRecords({&leaf, 1});
  records_[2] = format::EncodeRecords({});
  ExpectRefused(StatusCode::kDataLoss, "state/w1", "");
}

TEST_F(PartsExportTest, WhatIsNotCopiedIsMissed) {
  {
    const auto made = Begin();
    ASSERT_OK(made.status());
    CopyAll(**made, kPartCount - 1);
    const Status status = (*made)->Finish(/*cloned=*/false, nullptr).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("part 2"));
  }
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre());
  const auto made = Begin();
  ASSERT_OK(made.status());
  CopyAll(**made, kPartCount);
  fs::resize_file(FilesOf(**made, 1).front().path, 100);
  const Status status = (*made)->Finish(/*cloned=*/false, nullptr).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("part 1"), HasSubstr("100 bytes")));
}

TEST_F(PartsExportTest, WhatAPartDoesNotHaveIsNotCopied) {
  const auto made = Begin();
  ASSERT_OK(made.status());
  std::vector<PartFile> files = FilesOf(**made, 1);
  ASSERT_FALSE(files.empty());
  files.front().runs.front().from += uint64_t{1} << 40;
  EXPECT_EQ(Copy(1, files).status().code(), StatusCode::kDataLoss);
  files.front().runs.front().segment = 77;
  EXPECT_EQ(Copy(1, files).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(fs::exists(files.front().path));
  ASSERT_OK(Copy(1, FilesOf(**made, 1)).status());
  // An existing file is not written over.
  EXPECT_FALSE(Copy(1, FilesOf(**made, 1)).ok());
}

TEST_F(PartsExportTest, OneThatIsGivenUpLeavesNothing) {
  options_.layout = ExportLayout::kV0;
  {
    const auto made = Begin();
    ASSERT_OK(made.status());
    EXPECT_EQ(Begin().status().code(), StatusCode::kUnavailable) << "it is being made";
    CopyAll(**made, kPartCount);
  }
  EXPECT_THAT(NamesIn(dir_ / "out"), ElementsAre()) << "the manager's root goes, too";
  options_.mode = ExportMode::kLink;
  EXPECT_EQ(Begin().status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace stepwell::db
