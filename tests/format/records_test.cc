// SPDX-License-Identifier: Apache-2.0
// Round trips beyond the golden examples, and what decoders refuse.
#include "format/records.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/format/support/examples.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

std::string RandomText(Prng& prng) {
  std::string text;
  for (uint64_t i = prng.Below(20); i > 0; --i) text.push_back(static_cast<char>(prng.Below(256)));
  return text;
}

StepRecord RandomStep(Prng& prng) {
  StepRecord step;
  step.step = prng.Next();
  step.commit = 1 + prng.Below(1000);
  step.time_ns = static_cast<int64_t>(prng.Next());
  step.save_ns = static_cast<int64_t>(prng.Next());
  step.pinned = prng.Below(2) == 0;
  step.taint = RandomText(prng);
  step.verified = prng.Below(2) == 0;
  step.metadata_json = RandomText(prng);
  step.metrics_json = RandomText(prng);
  for (uint64_t i = prng.Below(4); i > 0; --i) {
    step.items.push_back({RandomText(prng), static_cast<ItemKind>(1 + prng.Below(3)), prng.Next(),
                          prng.Next(), prng.Next()});
  }
  step.leaf_count = prng.Next();
  step.chunk_count = prng.Next();
  step.logical_bytes = prng.Next();
  step.stored_bytes = prng.Next();
  step.referenced_bytes = prng.Next();
  for (uint64_t i = prng.Below(3); i > 0; --i) {
    step.extents.push_back({prng.Next(),
                            prng.Next(),
                            prng.Next(),
                            prng.Next(),
                            prng.Next(),
                            prng.Next(),
                            {prng.Next(), prng.Next()}});
  }
  if (prng.Below(2) == 0) {
    GroupRecord& group = step.group.emplace();
    group.group_id = ExampleId(static_cast<uint8_t>(prng.Next()));
    group.state = prng.Below(2) == 0 ? GroupState::kPrepared : GroupState::kDecided;
    group.save_id = ExampleId(static_cast<uint8_t>(prng.Next()));
    group.parts = {0};
    for (uint64_t i = prng.Below(4); i > 0; --i) {
      group.parts.push_back(group.parts.back() + 1 + static_cast<uint32_t>(prng.Below(1000)));
    }
    group.part = group.parts[prng.Below(group.parts.size())];
    group.decision_number = prng.Next();
  }
  return step;
}

FramePlace RandomPlace(Prng& prng) {
  return {prng.Next(), prng.Next(), static_cast<uint32_t>(prng.Next() | 1),
          static_cast<uint32_t>(prng.Next())};
}

LeafRecord RandomLeaf(Prng& prng) {
  LeafRecord leaf;
  leaf.key = EncodeItem(RandomText(prng));
  leaf.kind = static_cast<LeafKind>(1 + prng.Below(3));
  leaf.value_type = static_cast<ValueType>(prng.Below(11));
  leaf.container = static_cast<ContainerKind>(prng.Below(6));
  leaf.type_name = RandomText(prng);
  leaf.variable_types = RandomText(prng);
  leaf.child_count = prng.Next();
  leaf.weak_type = prng.Below(2) == 0;
  leaf.prng_impl = RandomText(prng);
  leaf.sharding_json = RandomText(prng);
  leaf.inline_value = RandomText(prng);
  leaf.logical_bytes = prng.Next();
  uint64_t chunk_bytes = prng.Below(1000);
  leaf.chunk_count = prng.Below(5);
  if (leaf.kind == LeafKind::kArray) {
    const DTypeInfo& dtype = AllDTypes()[prng.Below(AllDTypes().size())];
    leaf.dtype = dtype.dtype;
    for (uint64_t i = prng.Below(4); i > 0; --i) {
      leaf.shape.push_back(prng.Below(10));
      leaf.chunk_shape.push_back(1 + prng.Below(10));
    }
    if (prng.Below(2) == 0) leaf.shard_shape = leaf.chunk_shape;
    leaf.chunk_count = ChunkCount(leaf.shape, leaf.chunk_shape);
    leaf.partial = prng.Below(4) == 0;
    if (leaf.partial) {
      leaf.chunk_count = 0;
      const bool has_elements = ElementCount(leaf.shape, 1).value() > 0;
      for (uint64_t k = has_elements ? prng.Below(4) : 0; k > 0; --k) {
        PieceRecord& piece = leaf.pieces.emplace_back();
        for (const uint64_t extent : leaf.shape) {
          piece.origin.push_back(prng.Below(extent));
          piece.shape.push_back(1 + prng.Below(extent - piece.origin.back()));
        }
        piece.chunk_shape = leaf.chunk_shape;
        piece.first_chunk = leaf.chunk_count;
        leaf.chunk_count += ChunkCount(piece.shape, piece.chunk_shape);
      }
    }
    chunk_bytes = ChunkBytes(leaf.chunk_shape, dtype.item_bytes);
  }
  if (leaf.kind == LeafKind::kValue) {
    leaf.logical_bytes = leaf.inline_value.size() + leaf.chunk_count * kPayloadLogicalMax;
  }
  for (uint64_t i = 0; i < leaf.chunk_count; ++i) {
    ChunkRecord& chunk = leaf.chunks.emplace_back();
    const auto place = [&prng](StoredPayload* payload) {
      payload->segment = prng.Next();
      payload->offset_bytes = prng.Next() >> 1;
      payload->stored_bytes = static_cast<uint32_t>(4 + prng.Below(1000));
      payload->crc = static_cast<uint32_t>(prng.Next());
    };
    place(&chunk);
    chunk.logical_bytes = static_cast<uint32_t>(chunk_bytes);
    chunk.codec = static_cast<CodecId>(prng.Below(6));  // newer ones, too
    chunk.referenced = prng.Below(2) == 0;
    chunk.hash = {prng.Next(), prng.Next()};
    if (chunk.codec == CodecId::kDelta) {
      for (uint64_t k = 1 + prng.Below(5); k > 0; --k) {
        place(&chunk.bases.emplace_back());
        if (chunk.bases.size() > 1) chunk.bases.back().codec = CodecId::kDelta;
      }
    }
  }
  return leaf;
}

TEST(RecordsTest, RandomCommitsRoundTrip) {
  Prng prng(1);
  for (int i = 0; i < 1000; ++i) {
    Commit commit;
    commit.step = RandomStep(prng);
    for (uint64_t k = prng.Below(4); k > 0; --k) commit.kills.push_back(prng.Next());
    for (uint64_t k = prng.Below(4); k > 0; --k) {
      commit.blocks.push_back({RandomPlace(prng), RandomText(prng), prng.Next()});
    }
    for (uint64_t k = prng.Below(6); k > 0; --k) commit.records.push_back(RandomLeaf(prng));
    const Result<Commit> decoded = DecodeCommit(AsBytes(EncodeCommit(commit)));
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    ASSERT_TRUE(*decoded == commit);
    const Result<std::vector<LeafRecord>> records =
        DecodeRecords(AsBytes(EncodeRecords(commit.records)));
    ASSERT_TRUE(records.ok()) << records.status().ToString();
    ASSERT_TRUE(*records == commit.records);
    Catalog catalog;
    catalog.epoch = prng.Next();
    catalog.last_commit = prng.Next();
    catalog.last_place = RandomPlace(prng);
    commit.step.pinned = true;
    catalog.live.push_back({commit.step, RandomPlace(prng)});
    catalog.segments.push_back({prng.Next(), ExampleId(5), prng.Next()});
    ASSERT_TRUE(DecodeCatalog(AsBytes(EncodeCatalog(catalog))).value() == catalog);
    Catalog entries;
    entries.live = catalog.live;
    entries.segments = catalog.segments;
    ASSERT_TRUE(DecodeCatalogPage(AsBytes(EncodeCatalogPage(entries).value())).value() == entries);
    catalog.previous = RandomPlace(prng);
    catalog.previous.length_bytes |= 1;
    for (uint64_t k = prng.Below(4); k > 0; --k) {
      catalog.gone.push_back(prng.Next());
      catalog.segments_gone.push_back(prng.Next());
      catalog.pages.push_back(catalog.previous);
    }
    catalog.live_count = prng.Next();
    ASSERT_TRUE(DecodeCatalog(AsBytes(EncodeCatalog(catalog))).value() == catalog);
  }
}

// A search looks at the same key more than once, which is not what a limit on copies is for.
TEST(RecordsTest, AKeyThatIsMostOfAMessageIsFound) {
  Commit commit = ExampleCommit();
  LeafRecord leaf = ExampleNode();
  commit.records.clear();
  for (const std::string& name : {std::string("a"), std::string(900'000, 'b'), std::string("c")}) {
    leaf.key = EncodeItem(name);
    commit.records.push_back(leaf);
  }
  for (const LeafRecord& wanted : commit.records) {
    const std::vector<LeafRecord> expected = {wanted};
    for (const KeyRange& range : {KeysBelow(wanted.key), KeyAlone(wanted.key)}) {
      const auto of_commit = DecodeCommitRecordsIn(AsBytes(EncodeCommit(commit)), range);
      ASSERT_TRUE(of_commit.ok()) << of_commit.status().ToString();
      EXPECT_TRUE(*of_commit == expected);
      const auto of_block = DecodeRecordsIn(AsBytes(EncodeRecords(commit.records)), range);
      ASSERT_TRUE(of_block.ok()) << of_block.status().ToString();
      EXPECT_TRUE(*of_block == expected);
    }
  }
}

TEST(RecordsTest, RangesOfRecordsAreWhatFilteringGives) {
  Prng prng(2);
  for (int i = 0; i < 300; ++i) {
    Commit commit = ExampleCommit();
    std::map<std::string, LeafRecord> sorted;
    for (uint64_t k = prng.Below(12); k > 0; --k) {
      LeafRecord leaf = RandomLeaf(prng);
      leaf.key = EncodeItem(std::string(prng.Below(3), 'a'));
      for (uint64_t deep = prng.Below(3); deep > 0; --deep) {
        leaf.key += EncodePath({{PathComponent::Type::kIndex, 1, ""}}).value();
      }
      sorted[leaf.key] = std::move(leaf);
    }
    commit.records.clear();
    for (auto& [key, leaf] : sorted) commit.records.push_back(leaf);
    const std::string key = EncodeItem(std::string(prng.Below(3), 'a'));
    for (const KeyRange& range : {KeysBelow(""), KeysBelow(key), KeyAlone(key)}) {
      std::vector<LeafRecord> expected;
      for (const LeafRecord& leaf : commit.records) {
        if (leaf.key >= range.first && (range.end.empty() || leaf.key < range.end)) {
          expected.push_back(leaf);
        }
      }
      EXPECT_TRUE(DecodeCommitRecordsIn(AsBytes(EncodeCommit(commit)), range).value() == expected);
      EXPECT_TRUE(DecodeRecordsIn(AsBytes(EncodeRecords(commit.records)), range).value() ==
                  expected);
    }
    EXPECT_LE(DecodeRecordsIn(AsBytes(EncodeRecords(commit.records)), KeyAlone(key))->size(), 1U);
    const CommitHead head = DecodeCommitHead(AsBytes(EncodeCommit(commit))).value();
    EXPECT_EQ(head.first_key, commit.records.empty() ? "" : commit.records.front().key);
    commit.records.clear();
    EXPECT_TRUE(head.commit == commit);
  }
}

// Whatever differs between the arrays of a state: paths, places and checksums.
std::vector<LeafRecord> ArraysOfAState(Prng& prng, int count) {
  std::vector<LeafRecord> leaves;
  for (int layer = 100; layer < 100 + count; ++layer) {
    LeafRecord leaf = ExampleArray();
    leaf.key = EncodeLeafKey("params", {{PathComponent::Type::kKey, 0, StrCat("layer_", layer)},
                                        {PathComponent::Type::kKey, 0, "kernel"}})
                   .value();
    for (ChunkRecord& chunk : leaf.chunks) {
      chunk.offset_bytes = prng.Below(1 << 30);
      chunk.crc = static_cast<uint32_t>(prng.Next());
      chunk.hash = {prng.Next(), prng.Next()};
    }
    leaves.push_back(leaf);
  }
  return leaves;
}

TEST(RecordsTest, PackedLeavesTakeAFifthOrLess) {
  Prng prng(7);
  const std::vector<LeafRecord> leaves = ArraysOfAState(prng, 150);
  size_t plain_bytes = 0;  // one alone is not packed
  for (const LeafRecord& leaf : leaves) plain_bytes += EncodeRecords(std::span(&leaf, 1)).size();
  EXPECT_LE(EncodeRecords(leaves).size(), plain_bytes / 5);
}

TEST(RecordsTest, ACommitIsAsLongWithOtherNumbers) {
  Prng prng(8);
  Commit commit = ExampleCommit();
  commit.records = ArraysOfAState(prng, 50);
  const CommitEncoder encoder(commit.records);
  const std::string once = encoder.Encode(commit);
  EXPECT_EQ(once, EncodeCommit(commit));
  commit.step.extents.front().end_bytes = prng.Next();
  commit.step.extents.front().frame_bytes = prng.Next();
  const std::string again = encoder.Encode(commit);
  EXPECT_EQ(again.size(), once.size());
  EXPECT_TRUE(DecodeCommit(AsBytes(again)).value() == commit);
}

TEST(RecordsTest, EmptyListsRoundTrip) {
  EXPECT_TRUE(DecodeRecords(AsBytes(EncodeRecords({}))).value().empty());
  EXPECT_TRUE(DecodeCatalog(AsBytes(EncodeCatalog({}))).value() == Catalog{});
  EXPECT_TRUE(DecodeDelete(AsBytes(EncodeDelete({}))).value() == Delete{});
  EXPECT_TRUE(DecodeFooter(AsBytes(EncodeFooter({}))).value() == Footer{});
  EXPECT_TRUE(DecodeTrailer(AsBytes(EncodeTrailer({}))).value() == Trailer{});
  EXPECT_TRUE(DecodeEpoch(AsBytes(EncodeEpoch({}))).value() == EpochRecord{});
}

TEST(RecordsTest, UnalignedBytesDecode) {
  const std::string commit = EncodeCommit(ExampleCommit());
  for (size_t shift = 0; shift < 8; ++shift) {
    const std::string moved = std::string(shift, 'x') + commit;
    EXPECT_TRUE(DecodeCommit(AsBytes(moved).subspan(shift)).value() == ExampleCommit());
  }
}

TEST(RecordsTest, LeavesThatGoOnCarryOnlyChunks) {
  LeafRecord leaf;
  leaf.key = "k";
  leaf.first_chunk = 7;
  leaf.chunks = {ExampleChunk()};
  EXPECT_TRUE(DecodeRecords(AsBytes(EncodeRecords(std::vector{leaf}))).value().front() == leaf);
}

void ExpectRefused(LeafRecord leaf, const std::string& why) {
  const Status status =
      DecodeRecords(AsBytes(EncodeRecords(std::vector{std::move(leaf)}))).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "bad records: " + why);
}

TEST(RecordsTest, InconsistentLeavesAreRefused) {
  const auto with = [](auto change) {
    LeafRecord leaf = ExampleArray();
    change(leaf);
    return leaf;
  };
  ExpectRefused(with([](auto& leaf) { leaf.key.clear(); }), "leaf without a key");
  ExpectRefused(with([](auto& leaf) { leaf.kind = static_cast<LeafKind>(9); }),
                "unknown leaf kind");
  ExpectRefused(with([](auto& leaf) { leaf.dtype = static_cast<DType>(99); }), "unknown dtype");
  ExpectRefused(with([](auto& leaf) { leaf.chunk_shape.pop_back(); }),
                "chunk shape of another rank");
  ExpectRefused(with([](auto& leaf) { leaf.chunk_shape[0] = 0; }), "chunk extent 0");
  ExpectRefused(with([](auto& leaf) { leaf.shape[0] = UINT64_MAX; }), "shape too large");
  ExpectRefused(with([](auto& leaf) { leaf.chunk_shape[0] = uint64_t{1} << 40; }),
                "chunk too large");
  ExpectRefused(with([](auto& leaf) { leaf.chunk_count = 4; }),
                "chunk count does not match the grid");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[0].logical_bytes = 5; }),
                "chunk of another size than the grid's");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[0].stored_bytes = 3; }),
                "payload shorter than its CRC");
  ExpectRefused(with([](auto& leaf) { leaf.chunks.push_back(ExampleChunk()); }),
                "more chunks than counted");
  ExpectRefused(with([](auto& leaf) { leaf.inline_value.assign(1025, 'x'); }),
                "inline value too long");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[2].bases.clear(); }),
                "bases that the codec does not ask for");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[0].bases = leaf.chunks[2].bases; }),
                "bases that the codec does not ask for");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[2].bases[0].codec = CodecId::kDelta; }),
                "a difference without a keyframe");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[2].bases[1].codec = CodecId::kRaw; }),
                "a difference without a keyframe");
  ExpectRefused(with([](auto& leaf) { leaf.chunks[2].bases[1].stored_bytes = 0; }),
                "payload shorter than its CRC");
  ExpectRefused(
      with([](auto& leaf) { leaf.chunks[2].bases.resize(kBasesMax + 1, leaf.chunks[2].bases[1]); }),
      "too many bases");
  // Readers take memory for a value before they read its chunks.
  LeafRecord value = ExampleValue();
  value.logical_bytes = uint64_t{1} << 60;
  ExpectRefused(value, "value longer than its chunks");
  value.chunk_count = uint64_t{1} << 60;
  ExpectRefused(value, "chunk count out of range");
}

TEST(RecordsTest, AMillionChunksRoundTrip) {
  LeafRecord leaf = ExampleArray();
  leaf.shape = {64'000'000, 16};
  leaf.chunk_count = 1'000'000;
  leaf.chunks.assign(leaf.chunk_count, ExampleChunk());
  const std::string bytes = EncodeRecords(std::vector{leaf});
  EXPECT_LT(bytes.size(), size_t{64} << 20);
  EXPECT_TRUE(DecodeRecords(AsBytes(bytes)).value().front() == leaf);
}

}  // namespace
}  // namespace stepwell::format
