// SPDX-License-Identifier: Apache-2.0
// Files of every released format version decode for ever, to what they were made from.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/format/support/examples.h"

namespace stepwell::format {
namespace {

std::string ReadGolden(const std::string& name, const std::string& version = "v1") {
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

TEST(GoldenTest, IndexValuesDecode) {
  const auto read = [](const char* name) { return ReadGolden(name); };
  ExpectDecodes(DecodeStepRecord(AsBytes(read("step_record"))), ExampleStep(), "step_record");
  for (const auto& [name, example] : {std::pair{"leaf_array", ExampleArray()},
                                      {"leaf_value", ExampleValue()},
                                      {"leaf_node", ExampleNode()}}) {
    LeafRecord expected = example;
    expected.chunks.clear();
    ExpectDecodes(DecodeLeafValue(expected.key, AsBytes(read(name))), expected, name);
  }
  ExpectDecodes(DecodeChunkRecord(AsBytes(read("chunk_record"))), ExampleChunk(), "chunk_record");
  ExpectDecodes(DecodeChunkRecord(AsBytes(read("chunk_record_hash"))), ExampleArray().chunks[1],
                "chunk_record_hash");
}

TEST(GoldenTest, FramePayloadsDecode) {
  const auto read = [](const char* name) { return ReadGolden(name); };
  ExpectDecodes(DecodeSegmentHeader(AsBytes(read("segment_header"))), ExampleSegmentHeader(),
                "segment_header");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog"))), ExampleCatalog(), "catalog");
  ExpectDecodes(DecodeEpoch(AsBytes(read("epoch"))), ExampleEpoch(), "epoch");
  ExpectDecodes(DecodeRecords(AsBytes(read("records"))), ExampleCommit().records, "records");
  ExpectDecodes(DecodeCommit(AsBytes(read("commit"))), ExampleCommit(), "commit");
  ExpectDecodes(DecodeDelete(AsBytes(read("delete"))), ExampleDelete(), "delete");
  ExpectDecodes(DecodeMeta(AsBytes(read("meta"))), ExampleMeta(), "meta");
  ExpectDecodes(DecodeFooter(AsBytes(read("footer"))), ExampleFooter(), "footer");
  ExpectDecodes(DecodeTrailer(AsBytes(read("trailer"))), ExampleTrailer(), "trailer");
  ExpectDecodes(DecodeSlot(AsBytes(read("slot"))), ExampleSlot(), "slot");
}

TEST(GoldenTest, VariablesDecode) {
  ExpectDecodes(DecodeLeafValue(ExampleVariable().key, AsBytes(ReadGolden("leaf_variable", "v3"))),
                ExampleVariable(), "variable");
}

TEST(GoldenTest, PartsOfGroupsDecode) {
  const auto read = [](const char* name) { return ReadGolden(name, "v2"); };
  LeafRecord partial = ExamplePartial();
  partial.chunks.clear();
  ExpectDecodes(DecodeLeafValue(partial.key, AsBytes(read("leaf_partial"))), partial, "partial");
  ExpectDecodes(DecodeCommit(AsBytes(read("prepared"))), ExamplePrepared(), "prepared");
  ExpectDecodes(DecodeDecided(AsBytes(read("decided"))), ExampleDecided(), "decided");
  ExpectDecodes(DecodeSlot(AsBytes(read("slot_part"))), ExamplePartSlot(), "slot_part");
}

TEST(GoldenTest, CatalogsOfChangesDecode) {
  const auto read = [](const char* name) { return ReadGolden(name, "v3"); };
  ExpectDecodes(DecodeSegmentHeader(AsBytes(read("segment_header_of_part"))), ExamplePartHeader(),
                "segment_header_of_part");
  ExpectDecodes(DecodeLoss(AsBytes(read("loss"))), ExampleLoss(), "loss");
  ExpectDecodes(DecodeSlot(AsBytes(read("slot_tip"))), ExampleTipSlot(), "slot_tip");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_base"))), ExampleCatalog(), "catalog_base");
  ExpectDecodes(DecodeCatalog(AsBytes(read("catalog_change"))), ExampleCatalogChange(),
                "catalog_change");
  ExpectDecodes(DecodeCatalogPage(AsBytes(read("catalog_page"))), ExampleCatalogEntries(),
                "catalog_page");
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
  for (const auto& [name, codec] : {std::pair{"payload_raw", CodecId::kRaw},
                                    {"payload_blosc_lz4", CodecId::kBloscLz4},
                                    {"payload_lz4_frame", CodecId::kLz4Frame}}) {
    const std::string payload = ReadGolden(name);
    std::string logical(ExampleLogical().size(), '\0');
    const MutableBytes out(reinterpret_cast<std::byte*>(logical.data()), logical.size());
    EXPECT_TRUE(DecodePayload(codec, AsBytes(payload), out).ok()) << name;
    EXPECT_TRUE(logical == ExampleLogical()) << name;
  }
}

TEST(GoldenTest, KeysDecode) {
  const Result<LeafKey> leaf = DecodeLeafKey(ReadGolden("leaf_key"));
  ASSERT_TRUE(leaf.ok());
  EXPECT_EQ(leaf->item, "params");
  EXPECT_TRUE(leaf->path == ExamplePath());
  const Result<LeafKey> literal = DecodeLeafKey(ReadGolden("leaf_key_literal", "v3"));
  ASSERT_TRUE(literal.ok());
  EXPECT_TRUE(literal->path == ExampleLiteralPath());
  const Result<ChunkKey> chunk = DecodeChunkKey(ReadGolden("chunk_key"));
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(chunk->step, 12000U);
  EXPECT_EQ(chunk->chunk_index, 5U);
  EXPECT_EQ(chunk->leaf_key, ReadGolden("leaf_key"));
}

}  // namespace
}  // namespace stepwell::format
