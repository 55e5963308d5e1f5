// SPDX-License-Identifier: Apache-2.0
// A step of several processes is read through part 0 as if one had saved it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "db/environment.h"
#include "db/read/part_merge.h"
#include "format/piece.h"
#include "tests/db/support/group_support.h"

namespace stepwell::db {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<LeafSpec> AllParts(uint32_t count) {
  std::vector<LeafSpec> specs;
  for (uint32_t part = 0; part < count; ++part) specs.push_back(PartState(part).front());
  return specs;
}

class GroupReadTest : public ::testing::Test {
 protected:
  GroupStores Open(uint32_t count, StoreOptions options = {}) {
    auto stores = GroupStores::Open(root_, count, std::move(options));
    EXPECT_TRUE(stores.ok()) << stores.status().ToString();
    return stores.ok() ? std::move(*stores) : GroupStores();
  }
  std::unique_ptr<Store> OpenToRead() {
    StoreOptions options;
    options.read_only = true;
    auto store = Store::Open(root_, options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? std::move(*store) : nullptr;
  }

  TempDir dir_;
  const std::string root_ = dir_ / "run";
};

TEST_F(GroupReadTest, AStepIsWholeAsSoonAsPart0HasDecided) {
  const GroupStores group = Open(3);
  ASSERT_OK(group.PrepareAll(4, 1));
  const auto reader = OpenToRead();
  EXPECT_EQ(reader->Read(4).status().code(), StatusCode::kNotFound);
  const auto decided = group.part(0)->Decide(Commit(4, 1));
  ASSERT_OK(decided.status());
  for (Store* store : {group.part(0), reader.get()}) {
    EXPECT_OK(CheckSeeded(store, 4, 1, AllParts(3)));
    const auto step = store->Read(4);
    ASSERT_OK(step.status());
    const auto leaf = (*step)->Find(KeyOf("state", PartLeaf(2)));
    ASSERT_OK(leaf.status());
    ASSERT_TRUE(leaf->has_value());
    EXPECT_EQ((*leaf)->chunks.front().part, 2U);
    EXPECT_EQ((*step)->step().stored_bytes,
              group.part(0)->Steps()->front().stored_bytes +
                  group.part(1)->Group()->prepared.front().stored_bytes +
                  group.part(2)->Group()->prepared.front().stored_bytes);
  }
  for (uint32_t part = 1; part < 3; ++part) {
    ASSERT_OK(group.part(part)->Decide(PassOn(Commit(4, 1), *decided)).status());
  }
  EXPECT_OK(CheckSeeded(reader.get(), 4, 1, AllParts(3)));
  const auto report = reader->Verify({});
  ASSERT_OK(report.status());
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_EQ(report->steps, 1U);
}

// A reader that is open keeps the bytes of all parts, whatever happens to the step.
TEST_F(GroupReadTest, WhatIsBeingReadStaysOnAllParts) {
  StoreOptions options;
  options.segment_bytes = uint64_t{1} << 20;
  const GroupStores group = Open(2, options);
  ASSERT_OK(group.SaveAll(1, 1));
  const auto reader = OpenToRead();
  const auto step = reader->Read(1);
  ASSERT_OK(step.status());
  const uint64_t one = 1;
  for (const auto& store : group.stores) ASSERT_OK(store->Delete({&one, 1}));
  for (uint64_t next = 2; next < 8; ++next) ASSERT_OK(group.SaveAll(next, next));
  for (const auto& store : group.stores) ASSERT_OK(store->Reclaim().status());
  const auto leaves = (*step)->Leaves("");
  ASSERT_OK(leaves.status());
  for (const auto& leaf : *leaves) {
    if (leaf.kind != format::LeafKind::kArray) continue;
    std::vector<std::byte> out(leaf.logical_bytes);
    const LoadRequest request{&leaf, format::WholeArray(leaf.shape), out.data(), {}};
    EXPECT_OK((*step)->Load({&request, 1}).status());
  }
}

// A step that is saved while the parts are being pinned is kept on all of them, too.
TEST_F(GroupReadTest, ASnapshotKeepsEveryShareThatItNames) {
  StoreOptions options;
  options.segment_bytes = uint64_t{1} << 20;
  const GroupStores group = Open(2, options);
  ASSERT_OK(group.SaveAll(1, 1));
  auto environment = MakeEnvironment({});
  ASSERT_OK(environment.status());
  SegmentFiles files(environment->file_system, root_);
  PartStores parts(root_, *environment, &files);
  int calls = 0;
  const auto own = [&]() -> Result<StoreSnapshot> {
    if (++calls == 2) {
      EXPECT_OK(group.SaveAll(2, 2));  // part 1 is pinned as it was before
    }
    StoreSnapshot snapshot;
    const auto steps = group.part(0)->Steps();
    EXPECT_OK(steps.status());
    for (const auto& step : *steps) snapshot.steps.push_back(BriefOf(step));
    return snapshot;
  };
  const auto snapshot = SnapshotWithParts(parts, own);
  ASSERT_OK(snapshot.status());
  ASSERT_EQ((*snapshot)->steps.size(), 2U);
  uint64_t stored = 0;
  const auto shares = group.part(1)->Steps();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*snapshot)->steps[i].shares[1], (*shares)[i].commit);
    stored += (*shares)[i].stored_bytes;
  }
  const auto reader = OpenToRead();
  {
    const auto step = reader->Read(2);
    ASSERT_OK(step.status());
    EXPECT_TRUE(IsReadAs(**step, (*snapshot)->steps[1]));
    EXPECT_FALSE(IsReadAs(**step, (*snapshot)->steps[0]));
    StoreSnapshot::Step moved = (*snapshot)->steps[1];
    moved.shares[1] += 1;
    EXPECT_FALSE(IsReadAs(**step, moved));
  }
  const std::vector<uint64_t> both{1, 2};
  for (const auto& store : group.stores) ASSERT_OK(store->Delete(both));
  for (uint64_t next = 3; next < 9; ++next) ASSERT_OK(group.SaveAll(next, next));
  const auto report = group.part(1)->Reclaim();
  ASSERT_OK(report.status());
  EXPECT_EQ(report->bytes_pinned_by_readers, stored);
}

TEST_F(GroupReadTest, AShareIsReadWithoutTheOtherParts) {
  const GroupStores group = Open(2);
  ASSERT_OK(group.SaveAll(4, 1));
  const auto has = [&](uint32_t part, uint32_t leaf) {
    const auto share = group.part(part)->ReadShare(4);
    EXPECT_OK(share.status());
    const auto found = (*share)->Find(KeyOf("state", PartLeaf(leaf)));
    EXPECT_OK(found.status());
    return found->has_value();
  };
  EXPECT_TRUE(has(0, 0));
  EXPECT_FALSE(has(0, 1));
  EXPECT_TRUE(has(1, 1));
  EXPECT_FALSE(has(1, 0));
  const auto own = group.part(0)->VerifyShare({});
  ASSERT_OK(own.status());
  EXPECT_THAT(own->problems, IsEmpty());
  EXPECT_EQ(own->steps, 1U);
  const auto all = group.part(0)->Verify({});
  ASSERT_OK(all.status());
  EXPECT_LT(own->chunks, all->chunks);
  const auto reader = OpenToRead();
  const auto share = reader->ReadShare(4);
  ASSERT_OK(share.status());
  EXPECT_EQ((*share)->Find(KeyOf("state", PartLeaf(1)))->has_value(), false);
  EXPECT_EQ(reader->VerifyShare({})->chunks, own->chunks);
}

TEST_F(GroupReadTest, APartThatIsMissingIsNamed) {
  {
    const GroupStores group = Open(3);
    ASSERT_OK(group.SaveAll(4, 1));
    ASSERT_OK(group.Close());
  }
  const std::string part = PartPath(root_, 2);
  const auto message = [&] {
    const auto reader = OpenToRead();
    const auto step = reader->Read(4);
    EXPECT_EQ(step.status().code(), StatusCode::kDataLoss);
    const auto report = reader->Verify({});
    EXPECT_OK(report.status());
    EXPECT_EQ(report->problems.size(), 1U);
    return step.status().message();
  };
  std::filesystem::rename(part, part + "-away");
  EXPECT_THAT(message(),
              AllOf(HasSubstr("parts 0, 1, 2"), HasSubstr("part 2 is missing"), HasSubstr(part)));
  // Another part in its place.
  std::filesystem::copy(PartPath(root_, 1), part, std::filesystem::copy_options::recursive);
  EXPECT_THAT(message(), HasSubstr("of another store (part 1)"));
  std::filesystem::remove_all(part);
  // One of the same group without the step.
  {
    StoreOptions options;
    options.group = StoreGroup{OpenToRead()->id(), 2};
    const auto fresh = Store::Open(part, options);
    ASSERT_OK(fresh.status());
    ASSERT_OK((*fresh)->Close());
  }
  EXPECT_THAT(message(), HasSubstr("does not have it"));
  std::filesystem::remove_all(part);
  std::filesystem::rename(part + "-away", part);
  EXPECT_OK(CheckSeeded(OpenToRead().get(), 4, 1, AllParts(3)));
}

TEST_F(GroupReadTest, DamageNamesTheFileOfItsPart) {
  {
    const GroupStores group = Open(2);
    ASSERT_OK(group.SaveAll(4, 1));
    ASSERT_OK(group.Close());
  }
  const auto reader = OpenToRead();
  const auto step = reader->Read(4);
  ASSERT_OK(step.status());
  const auto leaf = (*step)->Find(KeyOf("state", PartLeaf(1)));
  ASSERT_OK(leaf.status());
  const format::ChunkRecord& chunk = (*leaf)->chunks.front();
  const std::string path = PartPath(root_, 1) + "/segments/0000000001.seg";
  ASSERT_EQ(chunk.segment, 1U);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(chunk.offset_bytes + 5));
    file.put('\x7f');
  }
  const Status status = CheckSeeded(reader.get(), 4, 1, AllParts(2));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr(path));
  const auto report = reader->Verify({});
  ASSERT_OK(report.status());
  ASSERT_EQ(report->problems.size(), 1U);
  EXPECT_EQ(report->problems.front().file, path);
}

TEST_F(GroupReadTest, ItemsGoOnPart0AndChangesStay) {
  const GroupStores group = Open(2);
  std::vector<std::vector<float>> scratch;
  scratch.reserve(8);
  for (uint32_t part = 0; part < 2; ++part) {
    SaveRequest request = MakeRequest(3, 1, PartState(part), &scratch);
    if (part != 0) request.items[0].leaves.pop_back();
    ItemInput extra{.name = "extra", .kind = format::ItemKind::kTree, .leaves = {}};
    LeafInput leaf;
    leaf.record.key = KeyOf("extra", PartLeaf(part));
    leaf.record.kind = format::LeafKind::kValue;
    leaf.record.value_type = format::ValueType::kStr;
    leaf.value = "x";
    extra.leaves.push_back(std::move(leaf));
    request.items.push_back(std::move(extra));
    request.group = GroupSave{SaveId(1), {0, 1}};
    const auto handle = group.part(part)->Save(std::move(request));
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  ASSERT_OK(group.DecideAll(Commit(3, 1)).status());
  const auto count = [&] { return (*group.part(0)->Read(3))->Leaves("")->size(); };
  EXPECT_EQ(count(), 5U);
  const std::vector<std::string> extra = {"extra"};
  ASSERT_OK(group.part(0)->DeleteItems(3, extra));
  EXPECT_EQ(count(), 3U);
  EXPECT_OK(CheckSeeded(group.part(0), 3, 1, AllParts(2)));
  ASSERT_OK(group.part(1)->DeleteItems(3, extra));
  EXPECT_OK(CheckSeeded(group.part(0), 3, 1, AllParts(2)));
  ASSERT_OK(group.Close());
  EXPECT_OK(CheckSeeded(OpenToRead().get(), 3, 1, AllParts(2)));
}

// ---- leaves in pieces ------------------------------------------------------------------------

format::LeafRecord PartialLeaf(format::Shape shape, format::Shape chunk_shape) {
  format::LeafRecord leaf;
  leaf.key = KeyOf("state", "w");
  leaf.dtype = format::DType::kFloat32;
  leaf.shape = std::move(shape);
  leaf.chunk_shape = std::move(chunk_shape);
  leaf.partial = true;
  return leaf;
}
// Chunks of it have `mark`, counting up, as their offset.
void AddPiece(format::Shape origin, format::Shape shape, const format::Shape& chunk_shape,
              uint64_t mark, format::LeafRecord* leaf) {
  format::PieceRecord piece{std::move(origin), std::move(shape), chunk_shape, leaf->chunk_count};
  const uint64_t count = format::ChunkCount(piece.shape, chunk_shape);
  leaf->pieces.push_back(std::move(piece));
  for (uint64_t i = 0; i < count; ++i) {
    format::ChunkRecord chunk;
    chunk.segment = 1;
    chunk.offset_bytes = mark + i;
    leaf->chunks.push_back(chunk);
  }
  leaf->chunk_count += count;
}
std::vector<uint64_t> Marks(const format::LeafRecord& leaf) {
  std::vector<uint64_t> marks;
  for (const auto& chunk : leaf.chunks) marks.push_back(chunk.offset_bytes);
  return marks;
}

TEST(MergeLeafTest, PiecesOnTheGridBecomeOneArray) {
  // 5 x 4 in chunks of 2 x 2: the last row of chunks is half out of the array.
  format::LeafRecord a = PartialLeaf({5, 4}, {2, 2});
  AddPiece({0, 2}, {5, 2}, {2, 2}, 10, &a);
  format::LeafRecord b = PartialLeaf({5, 4}, {2, 2});
  AddPiece({4, 0}, {1, 2}, {2, 2}, 20, &b);
  AddPiece({0, 0}, {4, 2}, {2, 2}, 30, &b);
  format::LeafRecord none = PartialLeaf({5, 4}, {5, 4});
  const auto leaf = MergeLeaf({none, a, b});
  ASSERT_OK(leaf.status());
  EXPECT_FALSE(leaf->partial);
  EXPECT_THAT(leaf->pieces, IsEmpty());
  EXPECT_THAT(leaf->chunk_shape, ElementsAre(2, 2));
  EXPECT_THAT(Marks(*leaf), ElementsAre(30, 10, 31, 11, 20, 12));
}

TEST(MergeLeafTest, PiecesWithGridsOfTheirOwnStay) {
  format::LeafRecord a = PartialLeaf({7}, {4});
  AddPiece({0}, {4}, {4}, 1, &a);
  format::LeafRecord b = PartialLeaf({7}, {4});
  AddPiece({4}, {3}, {2}, 2, &b);
  const auto leaf = MergeLeaf({a, b});
  ASSERT_OK(leaf.status());
  EXPECT_TRUE(leaf->partial);
  ASSERT_EQ(leaf->pieces.size(), 2U);
  EXPECT_EQ(leaf->pieces[1].first_chunk, 1U);
  EXPECT_EQ(leaf->chunk_count, 3U);
}

TEST(MergeLeafTest, WhatDoesNotFitIsRefused) {
  format::LeafRecord a = PartialLeaf({8}, {4});
  AddPiece({0}, {4}, {4}, 1, &a);
  format::LeafRecord b = PartialLeaf({8}, {4});
  AddPiece({4}, {4}, {4}, 2, &b);
  ASSERT_OK(MergeLeaf({a, b}).status());
  const auto refused = [](std::vector<format::LeafRecord> records, const char* why) {
    const Status status = MergeLeaf(std::move(records)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << why;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("state/w"), HasSubstr(why)));
  };
  refused({a}, "1 chunks of 2");
  refused({a, a}, "overlap");
  refused({a, b, b}, "3 chunks of 2");
  auto other = b;
  other.shape = {9};
  refused({a, other}, "type or shape");
  other = b;
  other.chunk_shape = {2};
  refused({a, other}, "its chunks");
  other = b;
  other.partial = false;
  other.pieces.clear();
  refused({other, a}, "all of it");
  other = b;
  other.pieces[0].origin = {6};
  refused({a, other}, "not in the array");
  other = b;
  other.pieces[0] = {{4}, {4}, {3}, 0};
  other.chunk_count = 2;
  other.chunks.resize(2);
  ASSERT_OK(MergeLeaf({a, other}).status());  // a grid of its own
  other.pieces[0] = {{3}, {4}, {3}, 0};
  refused({a, other}, "overlap");
  other.pieces[0] = {{5}, {3}, {2}, 0};
  refused({a, other}, "7 elements of 8");
}

}  // namespace
}  // namespace stepwell::db
