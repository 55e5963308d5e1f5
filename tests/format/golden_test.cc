// SPDX-License-Identifier: Apache-2.0
// Files of every released format version decode for ever, to what they were made from.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/format/support/examples.h"

namespace stepwell::format {
namespace {

std::string ReadGolden(const std::string& name, const std::string& version = "v4") {
  std::ifstream file(std::string(STEPWELL_GOLDEN_DIR) + "/" + version + "/" + name + ".bin",
                     std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename T>
void ExpectDecodes(Result<T> decoded, const T& expected, const char* name) {
  ASSERT_TRUE(decoded.ok()) << name << ": " << decoded.status().ToString();
  EXPECT_TRUE(*decoded == expected) << name;
}

TEST(GoldenTest, CanonicalEncodingsAreStable) {
  for (const Golden& golden : MakeGolden()) {
    if (golden.canonical) {
      EXPECT_TRUE(ReadGolden(golden.name, golden.version) == golden.bytes) << golden.name;
    }
  }
}

TEST(GoldenTest, LeavesDecode) {
  for (const auto& [name, example] : {std::pair{"leaf_array", ExampleArray()},
                                      {"leaf_value", ExampleValue()},
                                      {"leaf_node", ExampleNode()},
                                      {"leaf_variable", ExampleVariable()},
                                      {"leaf_partial", ExamplePartial()},
                                      {"leaf_statistics", ExampleStatistics()}}) {
    LeafRecord expected = example;
    expected.chunks.clear();
    ExpectDecodes(DecodeLeafValue(expected.key, AsBytes(ReadGolden(name))), expected, name);
  }
}

TEST(GoldenTest, FramePayloadsDecode) {
  const auto read = [](const char* name) { return ReadGolden(name); };
  ExpectDecodes(DecodeSegmentHeader(AsBytes(read("segment_header"))), ExampleSegmentHeader(),
                "segment_header");
  ExpectDecodes(DecodeSegmentHeader(AsBytes(read("segment_header_of_part"))), ExamplePartHeader(),
                "segment_header_of_part");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_base"))), ExampleCatalog(), "catalog_base");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_change"))), ExampleCatalogChange(),
                "catalog_change");
  ExpectDecodes(DecodeCatalogPage(AsBytes(read("catalog_page"))), ExampleCatalogEntries(),
                "catalog_page");
  ExpectDecodes(DecodeEpoch(AsBytes(read("epoch"))), ExampleEpoch(), "epoch");
  ExpectDecodes(DecodeRecords(AsBytes(read("records"))), ExampleCommit().records, "records");
  ExpectDecodes(DecodeCommit(AsBytes(read("commit"))), ExampleCommit(), "commit");
  ExpectDecodes(DecodeCommit(AsBytes(read("prepared"))), ExamplePrepared(), "prepared");
  ExpectDecodes(DecodeCommit(AsBytes(read("commit_statistics"))), ExampleStatisticsCommit(),
                "commit_statistics");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_statistics"))), ExampleStatisticsCatalog(),
                "catalog_statistics");
  ExpectDecodes(DecodeDecided(AsBytes(read("decided"))), ExampleDecided(), "decided");
  ExpectDecodes(DecodeDelete(AsBytes(read("delete"))), ExampleDelete(), "delete");
  ExpectDecodes(DecodeMeta(AsBytes(read("meta"))), ExampleMeta(), "meta");
  ExpectDecodes(DecodeMeta(AsBytes(read("meta_taint"))), ExampleTaintMeta(), "meta_taint");
  ExpectDecodes(DecodeCommit(AsBytes(read("commit_taint"))), ExampleTaintedCommit(),
                "commit_taint");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_taint"))), ExampleTaintedCatalog(),
                "catalog_taint");
  ExpectDecodes(DecodeMeta(AsBytes(read("meta_verified"))), ExampleVerifiedMeta(), "meta_verified");
  ExpectDecodes(DecodeCommit(AsBytes(read("commit_verified"))), ExampleVerifiedCommit(),
                "commit_verified");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_verified"))), ExampleVerifiedCatalog(),
                "catalog_verified");
  ExpectDecodes(DecodeCommit(AsBytes(read("commit_timed"))), ExampleTimedCommit(), "commit_timed");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_timed"))), ExampleTimedCatalog(),
                "catalog_timed");
  ExpectDecodes(DecodeLoss(AsBytes(read("loss"))), ExampleLoss(), "loss");
  ExpectDecodes(DecodeFooter(AsBytes(read("footer"))), ExampleFooter(), "footer");
  ExpectDecodes(DecodeTrailer(AsBytes(read("trailer"))), ExampleTrailer(), "trailer");
  ExpectDecodes(DecodeSlot(AsBytes(read("slot"))), ExampleSlot(), "slot");
  ExpectDecodes(DecodeSlot(AsBytes(read("slot_part"))), ExamplePartSlot(), "slot_part");
  ExpectDecodes(DecodeSlot(AsBytes(read("slot_tip"))), ExampleTipSlot(), "slot_tip");
}

TEST(GoldenTest, PackedLeavesDecode) {
  const Commit commit = ExamplePackedCommit();
  const std::string frame = ReadGolden("commit_packed", "v5");
  ExpectDecodes(DecodeCommit(AsBytes(frame)), commit, "commit_packed");
  ExpectDecodes(DecodeRecords(AsBytes(ReadGolden("records_packed", "v5"))), commit.records,
                "records_packed");
  ExpectDecodes(DecodeSlot(AsBytes(ReadGolden("slot", "v5"))), ExampleSlot5(), "slot");
}

TEST(GoldenTest, PushedRunsDecode) {
  const PushedStep pushed = ExamplePushedStep();
  ExpectDecodes(DecodePushedStep(AsBytes(ReadGolden("pushed_step"))), pushed, "pushed_step");
  ExpectDecodes(DecodePushedStep(AsBytes(ReadGolden("pushed_step_taint"))), ExampleTaintedPush(),
                "pushed_step_taint");
  ExpectDecodes(DecodePushedStep(AsBytes(ReadGolden("pushed_step_timed"))), ExampleTimedPush(),
                "pushed_step_timed");
  PushedHead marker;
  marker.objects = pushed.objects;
  ExpectDecodes(DecodePushedHead(AsBytes(ReadGolden("push_marker"))), marker, "push_marker");
}

TEST(GoldenTest, TheCopyBehindRecordsDecodes) {
  const std::string run = ReadGolden("records_with_copy");
  const Result<FrameHeader> header = DecodeFrameHeader(AsBytes(run));
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  const size_t length = kFrameHeaderBytes + header->payload_bytes;
  const size_t at = AlignUp(length, kCopyAlignment);
  const Result<FrameCopyHeader> copy =
      DecodeFrameCopyHeader(AsBytes(run).subspan(at), header->nonce);
  ASSERT_TRUE(copy.ok()) << copy.status().ToString();
  EXPECT_EQ(copy->length_bytes, length);
  EXPECT_EQ(run.substr(at + kCopyHeaderBytes, length), run.substr(0, length));
}

TEST(GoldenTest, FrameDecodes) {
  const std::string frame = ReadGolden("frame");
  const Result<FrameHeader> header = DecodeFrameHeader(AsBytes(frame));
  ASSERT_TRUE(header.ok()) << header.status().ToString();
  FrameHeader expected = ExampleFrameHeader();
  expected.payload_bytes = header->payload_bytes;
  expected.payload_crc = header->payload_crc;
  expected.crc = header->crc;
  EXPECT_TRUE(*header == expected);
  const ConstBytes payload = AsBytes(frame).subspan(kFrameHeaderBytes, header->payload_bytes);
  EXPECT_TRUE(CheckFramePayload(*header, payload).ok());
  ExpectDecodes(DecodeDelete(payload), ExampleDelete(), "frame");
}

TEST(GoldenTest, PayloadsDecode) {
  for (const CodecInfo& codec : Codecs()) {
    const std::string name = StrCat("payload_", codec.name);
    const std::string payload = ReadGolden(name);
    std::string logical = ExampleBase();
    const MutableBytes out(reinterpret_cast<std::byte*>(logical.data()), logical.size());
    EXPECT_TRUE(DecodePayload(codec.id, AsBytes(payload), out).ok()) << name;
    EXPECT_TRUE(logical == ExampleLogical()) << name;
  }
}

TEST(GoldenTest, KeysDecode) {
  const Result<LeafKey> leaf = DecodeLeafKey(ReadGolden("leaf_key"));
  ASSERT_TRUE(leaf.ok());
  EXPECT_EQ(leaf->item, "params");
  EXPECT_TRUE(leaf->path == ExamplePath());
  const Result<LeafKey> literal = DecodeLeafKey(ReadGolden("leaf_key_literal"));
  ASSERT_TRUE(literal.ok());
  EXPECT_TRUE(literal->path == ExampleLiteralPath());
}

}  // namespace
}  // namespace stepwell::format
