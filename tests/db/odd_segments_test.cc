// SPDX-License-Identifier: Apache-2.0
// Files among the segments that are none, or are another's: what recovery takes them for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "db/layout.h"
#include "db/log/recovery.h"
#include "db/log/segment_scan.h"
#include "db/log/slot_file.h"
#include "format/frame.h"
#include "tests/db/support/stopping_file_system.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {
namespace {

using format::FrameHeader;
using format::FrameKind;

constexpr size_t kBlock = 4096;
constexpr format::Id128 kNonce{7};

// Bytes of a segment's file: one block-aligned frame after the other.
class Crafted {
 public:
  explicit Crafted(uint64_t segment) : segment_(segment) {}

  format::FramePlace Add(FrameKind kind, uint64_t commit, const std::string& payload) {
    FrameHeader header;
    header.kind = kind;
    header.nonce = kNonce;
    header.epoch = 1;
    header.commit = commit;
    format::FramePlace place;
    place.segment = segment_;
    place.offset_bytes = bytes_.size();
    place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
    bytes_ += format::EncodeFrame(header, payload, kBlock, &place.crc);
    last_ = place;
    return place;
  }
  void AddHeader() {
    format::SegmentHeader header;
    header.segment = segment_;
    header.nonce = kNonce;
    Add(FrameKind::kSegmentHeader, 0, format::EncodeSegmentHeader(header));
  }
  // A copy of that frame behind the last one, in the zeros up to the end of its block.
  void CopyBehind(const format::FramePlace& place) {
    const format::FrameCopy copy{place, bytes_.substr(place.offset_bytes, place.length_bytes)};
    const size_t at = AlignUp(last_.offset_bytes + last_.length_bytes, format::kCopyAlignment);
    std::vector<std::byte> encoded(format::FrameCopySpace(copy.bytes.size()));
    format::EncodeFrameCopy(copy, kNonce, encoded);
    ASSERT_LE(at + encoded.size(), bytes_.size());
    std::memcpy(bytes_.data() + at, encoded.data(), encoded.size());
  }
  SegmentInfo WriteTo(const SegmentFiles& files) const {
    std::ofstream(files.PathOf(segment_), std::ios::binary) << bytes_;
    SegmentInfo info;
    info.segment = segment_;
    info.nonce = kNonce;
    info.length_bytes = bytes_.size();
    return info;
  }

 private:
  const uint64_t segment_;
  std::string bytes_;
  format::FramePlace last_;
};

// Fails to read any segment.
class UnreadableFileSystem final : public StoppingFileSystem {
 public:
  UnreadableFileSystem() : StoppingFileSystem([] {}) {}
  Result<std::unique_ptr<io::File>> Open(const std::string& path,
                                         const io::FileOpenOptions& options) override {
    STEPWELL_ASSIGN_OR_RETURN(auto file, io::LocalFileSystem()->Open(path, options));
    if (!path.ends_with(".seg")) return file;
    return std::unique_ptr<io::File>(std::make_unique<Unreadable>(std::move(file)));
  }

 private:
  class Unreadable final : public StoppingFile {
   public:
    explicit Unreadable(std::unique_ptr<io::File> file)
        : StoppingFile(std::move(file), kNothing, /*reserves=*/true) {}
    Result<size_t> ReadAt(uint64_t, MutableBytes) override { return ErrnoStatus(EIO, path()); }
  };
  static inline const std::function<void()> kNothing = [] {};
};

class OddSegmentsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = Store::Open(path_, {});
    ASSERT_OK(store.status());
    for (uint64_t step = 0; step < 4; ++step) {
      ASSERT_OK(SaveSeeded(store->get(), step, step, SmallState())->Wait());
    }
    ASSERT_OK((*store)->Close());
    const auto slot_file = SlotFile::Open(io::LocalFileSystem(), path_, /*write=*/false, nullptr);
    slot_ = (*slot_file)->Read().value();
  }

  TempDir directory_;
  const std::string path_ = directory_ / "store";
  SegmentFiles files_{io::LocalFileSystem(), path_};
  format::StoreSlot slot_;
};

TEST_F(OddSegmentsTest, ADirectoryWithASegmentsNameIsNone) {
  std::filesystem::create_directory(files_.PathOf(77));
  EXPECT_EQ(ListFrames(files_, 77).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadSegmentEdges(files_, 77).status().code(), StatusCode::kNotFound);
  std::filesystem::remove(path_ + "/STEPWELL");
  EXPECT_EQ(SlotFromLog(io::LocalFileSystem(), path_)->store_id, slot_.store_id);
}

TEST_F(OddSegmentsTest, AMissingOneIsNamed) {
  SegmentInfo info;
  info.segment = 78;
  info.length_bytes = 2 * kBlock;
  SegmentScan scan;
  for (const Status& status :
       {ReadTrailer(info, files_).status(), FindCatalog(info, files_).status(),
        ScanSegment(info, files_, &scan), ListFrames(files_, 78).status(),
        ReadSegmentEdges(files_, 78).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_THAT(status.message(), ::testing::HasSubstr(files_.PathOf(78)));
  }
}

TEST_F(OddSegmentsTest, AFileThatBeginsWithAnotherFrameHasNoHeader) {
  Crafted file(79);
  file.Add(FrameKind::kEpoch, 5, format::EncodeEpoch({}));
  file.Add(FrameKind::kEpoch, 6, format::EncodeEpoch({}));
  const SegmentInfo info = file.WriteTo(files_);
  EXPECT_FALSE(ListFrames(files_, 79).ok());
  EXPECT_EQ(ReadSegmentEdges(files_, 79).status().code(), StatusCode::kNotFound);
  const auto listed = ListSegments(io::LocalFileSystem(), path_, slot_, files_);
  ASSERT_OK(listed.status());
  EXPECT_FALSE(listed->back().header_ok);
  EXPECT_EQ(ReadTrailer(info, files_).status().code(), StatusCode::kNotFound);
  // Nothing of it counts, and the store goes on.
  const auto store = Store::Open(path_, {});
  ASSERT_OK(store.status());
  EXPECT_EQ(StepNumbers(store->get()), (std::vector<uint64_t>{0, 1, 2, 3}));
}

// The header is lost, and what lies behind a later frame says that it was an epoch.
TEST_F(OddSegmentsTest, ACopyOfAnotherFrameIsNoHeader) {
  Crafted file(82);
  const format::FramePlace first = file.Add(FrameKind::kEpoch, 5, format::EncodeEpoch({}));
  file.Add(FrameKind::kEpoch, 6, format::EncodeEpoch({}));
  file.CopyBehind(first);
  file.WriteTo(files_);
  EXPECT_FALSE(ListFrames(files_, 82).ok());
}

TEST_F(OddSegmentsTest, AHeaderOfAnotherSegmentSaysNothingOfTheStore) {
  std::ofstream(path_ + "/segments/junk").close();
  format::SegmentHeader header;
  header.segment = 5;
  header.store_id = kNonce;
  header.nonce = kNonce;
  Crafted file(98);
  file.Add(FrameKind::kSegmentHeader, 0, format::EncodeSegmentHeader(header));
  file.WriteTo(files_);
  std::filesystem::remove(path_ + "/STEPWELL");
  EXPECT_EQ(SlotFromLog(io::LocalFileSystem(), path_)->store_id, slot_.store_id);
  UnreadableFileSystem unreadable;
  EXPECT_EQ(SlotFromLog(&unreadable, path_).status().os_error(), EIO);
}

TEST_F(OddSegmentsTest, AFooterOfAnotherSegmentIsRefused) {
  Crafted file(80);
  file.AddHeader();
  format::FramePlace elsewhere = file.Add(FrameKind::kFooter, 0, format::EncodeFooter({}));
  elsewhere.segment = 1;
  file.Add(FrameKind::kTrailer, 0, format::EncodeTrailer({elsewhere, 5, 6}));
  const SegmentInfo info = file.WriteTo(files_);
  SegmentScan scan;
  const Status status = ReadSealed(info, 0, files_, &scan);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
}

TEST_F(OddSegmentsTest, AFooterThatNamesAFrameTwiceGivesItOnce) {
  Crafted file(81);
  file.AddHeader();
  const format::FramePlace frame = file.Add(FrameKind::kEpoch, 5, format::EncodeEpoch({}));
  format::FramePlace elsewhere = frame;
  elsewhere.segment = 1;
  const auto kind = static_cast<uint16_t>(FrameKind::kEpoch);
  const format::Footer footer{{{kind, 5, frame}, {kind, 5, frame}, {kind, 5, elsewhere}}};
  const format::FramePlace end = file.Add(FrameKind::kFooter, 0, format::EncodeFooter(footer));
  file.Add(FrameKind::kTrailer, 0, format::EncodeTrailer({end, 5, 5}));
  SegmentScan scan;
  ASSERT_OK(ReadSealed(file.WriteTo(files_), 0, files_, &scan));
  EXPECT_EQ(scan.frames.size(), 1U);
}

// A reader goes on from what it knows. When that is of another log, or of one that was cut, it
// begins with the catalog.
TEST_F(OddSegmentsTest, WhatIsKnownOfAnotherLogIsNotBelieved) {
  const auto plain = RecoverByMarks(slot_, files_, nullptr);
  ASSERT_OK(plain.status());
  const auto check = [&](LogState known) {
    const auto state = RecoverByMarks(slot_, files_, &known);
    ASSERT_OK(state.status());
    EXPECT_EQ(state->tip_place, plain->tip_place);
    ASSERT_EQ(state->live.size(), 4U);
  };
  check(*plain);
  LogState known;
  known.tip_commit = slot_.durable_commit - 1;
  known.tip_place = plain->tip_place;  // of another frame than that commit's
  check(known);
  known.tip_commit = slot_.durable_commit + 1;
  check(known);
  known.tip_commit = 0;
  check(known);
}

}  // namespace
}  // namespace stepwell::db
