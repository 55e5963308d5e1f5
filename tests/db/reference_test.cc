// SPDX-License-Identifier: Apache-2.0
// Unchanged chunks: a save refers to those that the commit before it has already.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "db/layout.h"
#include "db/save/encode.h"
#include "format/hash.h"
#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 1.2 MB of eight chunks that does not change, beside a leaf that does.
const std::vector<LeafSpec> kTuned = {{"frozen", {300'000}, true, false, 1000, 0, 150'000},
                                      {"tuned", {1000}, false, false}};
constexpr uint64_t kFrozenBytes = 1'200'000;

class ReferenceTest : public ReclaimTest {
 protected:
  static void SaveTuned(Store* store, uint64_t step, IfExists if_exists = IfExists::kError) {
    const auto handle = SaveSeeded(store, step, step, kTuned, if_exists);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  static format::StepRecord RecordOf(Store* store, uint64_t step) {
    const auto steps = store->Steps();
    EXPECT_OK(steps.status());
    const auto found = std::find_if(steps->begin(), steps->end(),
                                    [step](const auto& record) { return record.step == step; });
    EXPECT_NE(found, steps->end());
    return *found;
  }
  static uint64_t Owned(Store* store, uint64_t step) {
    const format::StepRecord record = RecordOf(store, step);
    return record.stored_bytes - record.referenced_bytes;
  }
  static std::vector<format::ChunkRecord> ChunksOf(Store* store, uint64_t step) {
    const auto reader = store->Read(step);
    EXPECT_OK(reader.status());
    const auto leaf = (*reader)->Find(KeyOf("state", "frozen"));
    EXPECT_OK(leaf.status());
    return (*leaf)->chunks;
  }
  static std::vector<bool> Referenced(Store* store, uint64_t step) {
    std::vector<bool> referenced;
    for (const auto& chunk : ChunksOf(store, step)) referenced.push_back(chunk.referenced);
    return referenced;
  }
};

TEST_F(ReferenceTest, EqualContentIsWrittenOnce) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 4; ++step) SaveTuned(store.get(), step);
  EXPECT_GE(Owned(store.get(), 1), kFrozenBytes);
  for (uint64_t step = 2; step <= 4; ++step) {
    EXPECT_LT(Owned(store.get(), step), 10'000U);
    EXPECT_THAT(Referenced(store.get(), step), Each(true));
    EXPECT_GE(RecordOf(store.get(), step).stored_bytes, kFrozenBytes);
    EXPECT_OK(CheckSeeded(&**store->Read(step), step, kTuned));
  }
  const auto report = store->Verify({});
  ASSERT_OK(report.status());
  EXPECT_THAT(report->problems, IsEmpty());
}

// An array that the tree has twice, in other steps elsewhere.
TEST_F(ReferenceTest, AnArrayOfTwoLeavesIsWrittenOnce) {
  const LeafSpec one = {"one", {300'000}, true, false, 1, 0, 150'000};
  LeafSpec two = one;
  two.name = "two";
  LeafSpec twin = two;
  twin.same_as = "one";
  for (const bool hold : {true, false}) {
    for (const bool delta : {false, true}) {
      SCOPED_TRACE(StrCat(hold, delta));
      StoreOptions options = Options();
      options.delta = delta;
      const auto store = Store::Open(dir_ / StrCat("twins", hold, delta), options);
      ASSERT_OK(store.status());
      const auto save = [&](uint64_t step, LeafSpec second, uint64_t seed) {
        LeafSpec first = one;
        first.hold = second.hold = hold;
        const auto handle = SaveSeeded(store->get(), step, seed, {first, second});
        ASSERT_OK(handle.status());
        ASSERT_OK(handle->Wait());
        EXPECT_OK(CheckSeeded(store->get(), step, seed, {first, second}));
      };
      save(1, twin, 1);
      EXPECT_LT(RecordOf(store->get(), 1).stored_bytes, kFrozenBytes + 10'000);
      EXPECT_EQ(Owned(store->get(), 1), RecordOf(store->get(), 1).stored_bytes);
      save(2, twin, 1);  // unchanged
      EXPECT_LT(Owned(store->get(), 2), 10'000U);
      save(3, two, 1);  // now they are two
      EXPECT_GE(Owned(store->get(), 3), kFrozenBytes);
      EXPECT_GE(RecordOf(store->get(), 3).stored_bytes, 2 * kFrozenBytes);
      save(4, twin, 1);  // and one again
      EXPECT_LT(RecordOf(store->get(), 4).stored_bytes, kFrozenBytes + 10'000);
      EXPECT_LT(Owned(store->get(), 4), 10'000U);
      save(5, twin, 2);
      EXPECT_LT(RecordOf(store->get(), 5).stored_bytes, 2 * kFrozenBytes);
      ASSERT_OK((*store)->Delete(std::array<uint64_t, 3>{1, 2, 3}));
      ASSERT_OK((*store)->Reclaim().status());
      const auto report = (*store)->Verify({});
      ASSERT_OK(report.status());
      EXPECT_THAT(report->problems, IsEmpty());
      EXPECT_LT((*store)->Stats().space.live_bytes, 3 * kFrozenBytes);
    }
  }
}

TEST_F(ReferenceTest, TheFirstSaveOfASessionRefersToTheLastOne) {
  for (uint64_t step = 1; step <= 3; ++step) {
    const auto store = Open(Options());
    SaveTuned(store.get(), step);
    ASSERT_OK(store->Close());
  }
  const auto store = Open(Options());
  EXPECT_LT(Owned(store.get(), 2), 10'000U);
  EXPECT_LT(Owned(store.get(), 3), 10'000U);
}

// What rotted since an earlier session is written anew, not referred to: the new step is whole.
TEST_F(ReferenceTest, WhatRottedSinceTheLastSessionIsNotReferredTo) {
  {
    const auto store = Open(Options());
    SaveTuned(store.get(), 1);
    const auto chunk = ChunksOf(store.get(), 1)[3];
    ASSERT_OK(store->Close());
    std::fstream file(SegmentPath(path_, chunk.segment),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(chunk.offset_bytes + 1000));
    file.put('\x55');
    file.put('\xaa');
  }
  const auto store = Open(Options());
  EXPECT_EQ(CheckSeeded(&**store->Read(1), 1, kTuned).code(), StatusCode::kDataLoss);
  SaveTuned(store.get(), 2);
  EXPECT_THAT(Referenced(store.get(), 2),
              ElementsAre(true, true, true, false, true, true, true, true));
  EXPECT_OK(CheckSeeded(&**store->Read(2), 2, kTuned));
}

// A chunk that rotted while the store is open is damage of each step that refers to it; a chunk
// that is good is read once for all of them.
TEST_F(ReferenceTest, VerifyNamesEachStepThatRefersToDamage) {
  const auto store = Open(Options());
  for (const uint64_t step : {1U, 2U, 3U}) SaveTuned(store.get(), step);
  const auto whole = store->Verify({});
  ASSERT_OK(whole.status());
  EXPECT_THAT(whole->problems, IsEmpty());
  EXPECT_GE(whole->bytes, 3 * kFrozenBytes);
  const auto chunk = ChunksOf(store.get(), 1)[3];
  std::fstream file(SegmentPath(path_, chunk.segment),
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(chunk.offset_bytes + 1000));
  file.put('\x55');
  file.put('\xaa');
  file.close();
  const auto report = store->Verify({});
  ASSERT_OK(report.status());
  std::vector<uint64_t> steps;
  for (const auto& problem : report->problems) steps.push_back(*problem.step);
  EXPECT_THAT(steps, ElementsAre(1, 2, 3));
}

TEST_F(ReferenceTest, AStepThatReplacesAnEqualOneOwnsLittle) {
  const auto store = Open(Options());
  SaveTuned(store.get(), 1);
  SaveTuned(store.get(), 1, IfExists::kReplace);
  EXPECT_LT(Owned(store.get(), 1), 10'000U);
  ASSERT_OK(store->Reclaim().status());
  EXPECT_OK(CheckSeeded(&**store->Read(1), 1, kTuned));
}

TEST_F(ReferenceTest, WhoOwnsNothingKeepsWhatItRefersTo) {
  const auto store = Open(Options());
  for (uint64_t step = 1; step <= 40; ++step) SaveTuned(store.get(), step);
  for (uint64_t step = 1; step < 40; ++step) {
    const std::vector<uint64_t> steps = {step};
    ASSERT_OK(store->Delete(steps));
  }
  ASSERT_OK(store->Reclaim().status());
  EXPECT_OK(CheckSeeded(&**store->Read(40), 40, kTuned));
  const SpaceStats space = store->Stats().space;
  EXPECT_LE(space.live_bytes + space.padding_bytes + space.dead_bytes, kFrozenBytes + 200'000);
  const std::vector<uint64_t> last = {40};
  ASSERT_OK(store->Delete(last));
  ASSERT_OK(store->Reclaim().status());
  EXPECT_LT(store->Stats().space.live_bytes + store->Stats().space.dead_bytes, 200'000U);
}

TEST_F(ReferenceTest, UnderRetentionASteadyStateTakesTheSpaceOfOne) {
  StoreOptions options = Options();
  options.keep = {{.kind = KeepRule::Kind::kLatest, .count = 1}};
  const auto store = Open(options);
  for (uint64_t step = 1; step <= 200; ++step) SaveTuned(store.get(), step);
  EXPECT_LT(Owned(store.get(), 200), 10'000U);
  ASSERT_OK(store->Reclaim().status());
  EXPECT_LT(DiskUse(path_), 3 * kFrozenBytes);
  EXPECT_OK(CheckSeeded(&**store->Read(200), 200, kTuned));
}

// What the caller says of a leaf counts only for a commit since then: else its bytes are read.
TEST_F(ReferenceTest, ALeafThatIsSaidToBeUnchangedIsNotRead) {
  const auto store = Open(Options());
  std::vector<float> data(100'000);
  std::iota(data.begin(), data.end(), 0.0F);
  const auto save = [&](uint64_t step, uint64_t ticket, uint64_t unchanged_since) {
    std::vector<std::vector<float>> scratch;
    SaveRequest request = MakeRequest(step, step, {}, &scratch);
    request.ticket = ticket;
    LeafInput leaf;
    leaf.record.key = KeyOf("state", "w");
    leaf.record.kind = format::LeafKind::kArray;
    leaf.record.dtype = format::DType::kFloat32;
    leaf.record.shape = {data.size()};
    leaf.data = reinterpret_cast<const std::byte*>(data.data());
    leaf.unchanged_since = unchanged_since;
    request.items[0].leaves.push_back(std::move(leaf));
    auto handle = store->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  };
  const auto first_of = [&](uint64_t step) {
    const auto reader = store->Read(step);
    const auto leaf = (*reader)->Find(KeyOf("state", "w"));
    std::vector<float> out(data.size());
    LoadRequest request;
    request.leaf = &**leaf;
    request.box = format::WholeArray((*leaf)->shape);
    request.out = reinterpret_cast<std::byte*>(out.data());
    EXPECT_OK((*reader)->Load({&request, 1}).status());
    return out.front();
  };
  save(1, /*ticket=*/1, /*unchanged_since=*/0);
  data.front() = 7;  // which would be a broken promise of the caller
  save(2, 2, 1);
  EXPECT_EQ(first_of(2), 0.0F);
  save(3, 3, 3);  // not since the commit that it refers to
  EXPECT_EQ(first_of(3), 7.0F);
  data.front() = 8;
  save(4, 4, 0);
  EXPECT_EQ(first_of(4), 8.0F);
  // The step of that save is gone: nothing is known of the one before.
  const std::vector<uint64_t> gone = {4};
  ASSERT_OK(store->Delete(gone));
  data.front() = 9;
  save(5, 5, 4);
  EXPECT_EQ(first_of(5), 9.0F);
}

// Two threads save at once: of a commit that came with a later ticket the caller knew nothing.
TEST_F(ReferenceTest, WhatTheCallerKnowsEndsWithItsOwnTicket) {
  auto records = std::make_shared<BaseRecords>();
  records->leaves.push_back({.key = "a", .grid = {}, .chunks = {}});
  const auto said = [&](uint64_t base_ticket, uint64_t ticket, uint64_t since) {
    records->ticket = base_ticket;
    SaveBase base(records, nullptr, nullptr);
    std::vector<PlannedLeaf> leaves(2);
    leaves[0].input.record.key = "a";
    leaves[1].input.record.key = "b";
    for (PlannedLeaf& leaf : leaves) leaf.input.unchanged_since = since;
    ReferTo(&base, ticket, leaves);
    EXPECT_EQ(leaves[0].base, &records->leaves[0]);
    EXPECT_EQ(leaves[1].base, nullptr);
    EXPECT_FALSE(leaves[1].said_unchanged);
    return leaves[0].said_unchanged;
  };
  EXPECT_TRUE(said(/*base_ticket=*/4, /*ticket=*/5, /*since=*/4));
  EXPECT_TRUE(said(4, 5, 2));
  EXPECT_FALSE(said(4, 5, 5));
  EXPECT_FALSE(said(6, 5, 4));
  EXPECT_FALSE(said(4, 5, 0));
  EXPECT_FALSE(said(0, 5, 1));  // of an earlier session, or of no caller
}

// Equal hashes of different content, as a collision would have them: length and CRC must agree,
// too.
TEST_F(ReferenceTest, ACollisionOfHashesIsNotTakenForEqualContent) {
  std::vector<float> data(1000, 1.0F);
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data.data()), 4000);
  auto records = std::make_shared<BaseRecords>();
  BaseLeaf& there = records->leaves.emplace_back();
  there.key = KeyOf("state", "w");
  format::ChunkRecord& chunk = there.chunks.emplace_back();
  chunk.logical_bytes = 4000;
  chunk.stored_bytes = 4004;
  chunk.hash = format::HashOf(bytes);
  chunk.crc = 12345;
  records->of_session = true;
  SaveBase base(records, nullptr, nullptr);
  PlannedLeaf leaf;
  leaf.input.record.key = there.key;
  leaf.input.record.kind = format::LeafKind::kArray;
  leaf.dtype = format::FindDType(format::DType::kFloat32);
  leaf.base = &there;
  leaf.base_step = &base;
  std::vector<std::byte> out(8192);
  std::vector<std::byte> scratch;
  const ChunkTask task{.leaf = 0, .logical_bytes = 4000};
  const auto other = EncodeChunk(leaf, task, bytes, &scratch, out);
  ASSERT_OK(other.status());
  EXPECT_FALSE(other->same);
  chunk.crc = other->crc;
  EXPECT_TRUE(EncodeChunk(leaf, task, bytes, &scratch, out)->same);
  // Each other difference counts, too.
  chunk.codec = format::CodecId::kBloscLz4;
  EXPECT_FALSE(EncodeChunk(leaf, task, bytes, &scratch, out)->same);
  chunk.codec = format::CodecId::kRaw;
  chunk.hash = {};
  EXPECT_FALSE(EncodeChunk(leaf, task, bytes, &scratch, out)->same);
}

// A save gives up what it could refer to where a full disk needs the space, unless it has begun to.
TEST_F(ReferenceTest, ABaseIsDroppedOnceOrNotAtAll) {
  auto records = std::make_shared<BaseRecords>();
  SaveBase used(records, nullptr, nullptr);
  EXPECT_TRUE(used.Refer());
  EXPECT_FALSE(used.Drop());
  EXPECT_TRUE(used.Refer());
  SaveBase unused(records, nullptr, nullptr);
  EXPECT_TRUE(unused.Drop());
  EXPECT_FALSE(unused.Drop());
  EXPECT_FALSE(unused.Refer());
}

// Chunk by chunk, and where the grid or the type is another one not at all.
TEST_F(ReferenceTest, OnlyEqualChunksOfTheSameGridAreReferredTo) {
  const auto store = Open(Options());
  const LeafSpec half = {"frozen", {300'000}, true, false, 1000, 600'000, 150'000};
  for (const uint64_t step : {1U, 2U}) {
    const auto handle = SaveSeeded(store.get(), step, step, {half});
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  EXPECT_THAT(Referenced(store.get(), 1), Each(false));
  EXPECT_THAT(Referenced(store.get(), 2),
              ElementsAre(true, true, true, true, false, false, false, false));
  LeafSpec other_grid = half;
  other_grid.chunk_bytes_max = 300'000;
  const auto handle = SaveSeeded(store.get(), 3, 2, {other_grid});
  ASSERT_OK(handle.status());
  ASSERT_OK(handle->Wait());
  EXPECT_THAT(Referenced(store.get(), 3), Each(false));
}

// A step that loses an item keeps what it refers to, and a move of its own chunks leaves it.
TEST_F(ReferenceTest, RewrittenStepsKeepTheirReferences) {
  const auto store = Open(Options());
  for (const uint64_t step : {1U, 2U}) {
    std::vector<std::vector<float>> scratch;
    scratch.reserve(4);
    SaveRequest request = MakeRequest(step, step, kTuned, &scratch);
    ItemInput extra;
    extra.name = "extra";
    LeafInput value;
    value.record.key = KeyOf("extra", "v");
    value.record.kind = format::LeafKind::kValue;
    value.record.value_type = format::ValueType::kStr;
    value.value = "x";
    extra.leaves.push_back(std::move(value));
    request.items.push_back(std::move(extra));
    auto handle = store->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  const std::vector<std::string> extra = {"extra"};
  ASSERT_OK(store->DeleteItems(2, extra));
  const std::vector<uint64_t> first = {1};
  ASSERT_OK(store->Delete(first));
  ASSERT_OK(store->Reclaim().status());
  EXPECT_THAT(Referenced(store.get(), 2), Each(true));
  EXPECT_OK(CheckSeeded(&**store->Read(2), 2, kTuned));
}

}  // namespace
}  // namespace stepwell::db
