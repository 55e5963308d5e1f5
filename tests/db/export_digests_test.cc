// SPDX-License-Identifier: Apache-2.0
// The checksums that exports carry: every flipped byte of an export is found and named, by
// verifying it and by importing it.
#include "db/export/orbax/digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "format/crc32c.h"
#include "tests/db/support/export_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<LeafSpec> DigestState() {
  return {{"a", {7}}, {"b", {30, 1000}}, {"e", {40000}, true, true}};
}

void Flip(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
}

struct DigestCase {
  ExportMode mode;
  int zarr;
};

class ExportDigestsTest : public ::testing::TestWithParam<DigestCase> {
 protected:
  ExportDigestsTest() {
    auto store = Store::Open(dir_ / "store", {});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
    EXPECT_OK(SaveSeeded(store_.get(), 1, 1, DigestState())->Wait());
    ExportOptions options;
    options.mode = GetParam().mode;
    options.zarr_format = GetParam().zarr;
    EXPECT_OK(Export(*store_, 1, dir_ / "x", options).status());
  }
  VerifyReport Verify() {
    const auto report = VerifyExport(io::LocalFileSystem(), dir_ / "x", nullptr);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
    return report.ok() ? *report : VerifyReport();
  }
  Status Import() { return CheckExported(io::LocalFileSystem(), dir_ / "x", 1, DigestState()); }

  TempDir dir_{"/var/tmp"};
  std::unique_ptr<Store> store_;
};

TEST_P(ExportDigestsTest, EveryFlipIsFoundAndNamed) {
  const VerifyReport whole = Verify();
  EXPECT_THAT(whole.problems, IsEmpty());
  EXPECT_GT(whole.chunks, 2U);
  EXPECT_OK(Import());
  const auto digests = ReadDigests(io::LocalFileSystem(), dir_ / "x");
  ASSERT_TRUE(digests.ok() && digests->has_value()) << digests.status().ToString();
  size_t files = 1;  // the digests themselves
  for (const FileDigest& file : (*digests)->files) {
    ++files;
    const std::string path = dir_ / "x/" + file.name;
    for (uint64_t offset = 0; offset < file.bytes; offset += 1 + file.bytes / 50) {
      SCOPED_TRACE(StrCat(file.name, " at ", offset));
      Flip(path, offset);
      const VerifyReport report = Verify();
      ASSERT_EQ(report.problems.size(), 1U);
      EXPECT_EQ(report.problems[0].file, path);
      EXPECT_FALSE(Import().ok());
      Flip(path, offset);
    }
  }
  for (const DataDigest& data : (*digests)->data) {
    ++files;
    const std::string path = dir_ / "x/" + data.name;
    fs::permissions(path, fs::perms::owner_write, fs::perm_options::add);
    for (const ChunkDigest& chunk : data.chunks) {
      for (uint64_t at = 0; at < chunk.stored_bytes; at += 1 + chunk.stored_bytes / 5) {
        SCOPED_TRACE(StrCat(data.name, " at ", chunk.offset_bytes + at));
        Flip(path, chunk.offset_bytes + at);
        const VerifyReport report = Verify();
        ASSERT_EQ(report.problems.size(), 1U);
        EXPECT_EQ(report.problems[0].file, path);
        EXPECT_EQ(report.problems[0].offset_bytes, chunk.offset_bytes);
        // In zarr 2 the checksum behind a chunk is not a part of it.
        const bool is_value = GetParam().zarr == 3 || at + format::kCrcBytes < chunk.stored_bytes;
        EXPECT_EQ(Import().ok(), !is_value);
        Flip(path, chunk.offset_bytes + at);
      }
    }
  }
  size_t there = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir_ / "x")) {
    // It names the place.
    if (entry.path().filename() == "commit_success.txt") continue;
    there += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, there) << "every file has a digest";
  EXPECT_OK(Import());
}

TEST_P(ExportDigestsTest, WhatIsMissingOrLonger) {
  fs::rename(dir_ / "x/state/_strings.json", dir_ / "strings");
  VerifyReport report = Verify();
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_THAT(report.problems[0].message, HasSubstr("missing"));
  EXPECT_FALSE(Import().ok());
  fs::rename(dir_ / "strings", dir_ / "x/state/_strings.json");
  std::ofstream(dir_ / "x/state/_METADATA", std::ios::app) << "\n";
  report = Verify();
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_THAT(report.problems[0].message, HasSubstr("bytes, expected"));
}

TEST_P(ExportDigestsTest, DamagedDigestsAndNone) {
  Flip(dir_ / "x/stepwell-digests", 40);
  EXPECT_EQ(VerifyExport(io::LocalFileSystem(), dir_ / "x", nullptr).status().code(),
            StatusCode::kDataLoss);
  EXPECT_EQ(Import().code(), StatusCode::kDataLoss);
  fs::remove(dir_ / "x/stepwell-digests");
  EXPECT_EQ(VerifyExport(io::LocalFileSystem(), dir_ / "x", nullptr).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_OK(Import());
}

INSTANTIATE_TEST_SUITE_P(Modes, ExportDigestsTest,
                         ::testing::Values(DigestCase{ExportMode::kLink, 3},
                                           DigestCase{ExportMode::kCopy, 2}));

TEST(DigestsTest, TheyAreReadAsTheyWereWritten) {
  ExportDigests digests;
  digests.step = 900;
  digests.file_items = {"c", "a \"b\""};
  digests.files = {{"state/_METADATA", 12, 0xabc, 7}, {"a \"b\"\n\xc3\xa9/c", 0, 0, 0}};
  digests.data = {{"state/d/chunks", 5000, {{0, 4, 1}, {4096, 100, 0xffffffff}}}, {"none", 3, {}}};
  const std::string text = EncodeDigests(digests);
  const auto decoded = DecodeDigests("x", text);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, digests);
  digests.step = std::nullopt;  // as version 1 had them
  const std::string old = EncodeDigests(digests);
  EXPECT_TRUE(old.starts_with("stepwell digests 1 crc32c\nitem files \"c\"\n")) << old;
  const auto of_old = DecodeDigests("x", old);
  ASSERT_TRUE(of_old.ok()) << of_old.status().ToString();
  EXPECT_EQ(*of_old, digests);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_EQ(DecodeDigests("x", damaged).status().code(), StatusCode::kDataLoss) << i;
    EXPECT_EQ(DecodeDigests("x", text.substr(0, i)).status().code(), StatusCode::kDataLoss) << i;
  }
}

// Those of OCDBT do, and so the CRC-32C of all of one is that of all of any other.
TEST(DigestsTest, FilesThatEndInTheirOwnChecksumAreToldApart) {
  const auto file = [](std::string text) {
    uint32_t crc = format::Crc32c(AsBytes(text));
    for (int i = 0; i < 4; ++i, crc >>= 8) text.push_back(static_cast<char>(crc & 0xff));
    return DigestOf("x", text);
  };
  EXPECT_EQ(file("one"), file("one"));
  EXPECT_NE(file("one"), file("two"));
}

// With a checksum that is right.
TEST(DigestsTest, WhatNoExportWrites) {
  ExportDigests digests;
  for (const std::string name : {"../x", "/etc/passwd", "a/../../b", ""}) {
    digests.files = {{name, 1, 1, 1}};
    EXPECT_FALSE(DecodeDigests("x", EncodeDigests(digests)).ok()) << name;
    digests.files.clear();
    digests.file_items = {name};
    EXPECT_FALSE(DecodeDigests("x", EncodeDigests(digests)).ok()) << name;
    digests.file_items.clear();
  }
  digests.step = uint64_t{1} << 63;
  EXPECT_FALSE(DecodeDigests("x", EncodeDigests(digests)).ok());
  digests.step = std::nullopt;
  for (const std::vector<ChunkDigest>& chunks : std::vector<std::vector<ChunkDigest>>{
           {{0, 3, 1}}, {{90, 11, 1}}, {{UINT64_MAX, 8, 1}}, {{10, 8, 1}, {12, 8, 1}}}) {
    digests.data = {{"d", 100, chunks}};
    EXPECT_FALSE(DecodeDigests("x", EncodeDigests(digests)).ok());
  }
}

}  // namespace
}  // namespace stepwell::db
