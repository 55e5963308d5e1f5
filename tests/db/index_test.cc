// SPDX-License-Identifier: Apache-2.0
// The index is a cache of the log, so the one thing it must never do is lie: after any crash or
// damage it is a whole prefix of what was applied, or it says that it is bad.
#include <gtest/gtest.h>

#include "tests/db/support/index_support.h"

namespace stepwell::db::index_tests {
namespace {

TEST(IndexTest, NewOneIsEmpty) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  EXPECT_EQ(opened.index->applied_commit(), 0u);
  EXPECT_TRUE(opened.index->Steps().value().empty());
  EXPECT_FALSE(opened.index->Read(1, 1, 1, format::KeysBelow("")).value().has_value());
  EXPECT_EQ(opened.index->unflushed_bytes(), 0u);
  EXPECT_TRUE(opened.index->Flush().ok());
}

TEST(IndexTest, EveryBatchIsSeenAtOnce) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (uint64_t commit = 1; commit <= 20; ++commit) {
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit).ok());
    EXPECT_EQ(opened.index->applied_commit(), commit);
    EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
    EXPECT_GT(opened.index->unflushed_bytes(), 0u);
    if (commit % 3 != 0) continue;
    ASSERT_TRUE(opened.index->Flush().ok());
    EXPECT_EQ(opened.index->unflushed_bytes(), 0u);
    EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
  }
}

TEST(IndexTest, PrefixSelectsASubtree) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const StepData data = MakeStep(7, 1);
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  ASSERT_TRUE(ApplyStep(opened.index.get(), MakeStep(8, 2)).ok());
  for (const std::string& prefix :
       {std::string(), format::EncodeItem("params"), format::EncodeItem("opt"),
        Key("params", {"a"}), Key("params", {"ab"}), Key("params", {"a", "b"}),
        Key("params", {"none"}), format::EncodeItem("none")}) {
    std::vector<LeafRecord> expected;
    for (const LeafRecord& leaf : data.leaves) {
      if (leaf.key.starts_with(prefix)) expected.push_back(leaf);
    }
    const auto read = opened.index->Read(7, 1, data.frame_crc, format::KeysBelow(prefix));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ASSERT_TRUE(read->has_value());
    EXPECT_EQ(**read, expected);
  }
}

TEST(IndexTest, OnlyTheCommitAskedForIsRead) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const StepData data = MakeStep(7, 3);
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  EXPECT_TRUE(opened.index->Read(7, 3, data.frame_crc, format::KeysBelow("")).value().has_value());
  EXPECT_FALSE(opened.index->Read(7, 4, data.frame_crc, format::KeysBelow("")).value().has_value());
  EXPECT_FALSE(
      opened.index->Read(7, 3, data.frame_crc + 1, format::KeysBelow("")).value().has_value());
  EXPECT_FALSE(opened.index->Read(6, 3, data.frame_crc, format::KeysBelow("")).value().has_value());
}

TEST(IndexTest, ReplacedStepLeavesNothingOfItself) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (const uint64_t step : {uint64_t{0}, uint64_t{5}, UINT64_MAX}) {
    ASSERT_TRUE(ApplyStep(opened.index.get(), MakeStep(step, 1, 20)).ok());
    StepData data = MakeStep(step, 2, 5);
    data.leaves.resize(2);
    ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());  // does not say that it replaces
    EXPECT_EQ(opened.index->Read(step, 2, data.frame_crc, format::KeysBelow("")).value(),
              data.leaves);
    IndexBatch removal;
    removal.removed_steps = {step};
    removal.through_commit = 3;
    ASSERT_TRUE(opened.index->Apply(removal).ok());
    EXPECT_TRUE(opened.index->Steps().value().empty());
    data.leaves.resize(1);
    ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
    EXPECT_EQ(opened.index->Read(step, 2, data.frame_crc, format::KeysBelow("")).value(),
              data.leaves);
    ASSERT_TRUE(opened.index->Apply(removal).ok());
  }
}

TEST(IndexTest, LeafThatGoesOnInAnotherRecord) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  StepData whole = MakeStep(1, 1, 10);
  StepData parts = whole;
  LeafRecord& first = parts.leaves.front();
  LeafRecord rest;
  rest.key = first.key;
  rest.chunk_count = first.chunk_count;
  rest.first_chunk = 4;
  rest.chunks.assign(first.chunks.begin() + 4, first.chunks.end());
  first.chunks.resize(4);
  parts.leaves.insert(parts.leaves.begin() + 1, rest);
  ASSERT_TRUE(ApplyStep(opened.index.get(), parts).ok());
  EXPECT_EQ(opened.index->Read(1, 1, whole.frame_crc, format::KeysBelow("")).value(), whole.leaves);
}

// A row says what a step's frame says, and its pin; the meta row whether none is left out.
TEST(IndexTest, PinsTextsAndWhetherItIsComplete) {
  const auto world = NewWorld();
  sim::SimFileSystem files(world);
  {
    const Opened opened = Open(&files);
    EXPECT_FALSE(opened.index->complete());
    const StepData data = MakeStep(5, 1);
    IndexBatch batch;
    batch.added.push_back({&data.record, data.frame_crc, &data.leaves});
    batch.through_commit = 1;
    batch.complete = true;
    ASSERT_TRUE(opened.index->Apply(batch).ok());
    EXPECT_TRUE(opened.index->complete());
    IndexBatch pins;
    pins.pins = {{5, true}, {6, true}};  // and one that is not there
    pins.through_commit = 2;
    pins.complete = true;
    ASSERT_TRUE(opened.index->Apply(pins).ok());
    ASSERT_TRUE(opened.index->Flush().ok());
    pins.complete = false;
    ASSERT_TRUE(opened.index->Apply(pins).ok());
    EXPECT_FALSE(opened.index->complete());
  }
  const StepData data = MakeStep(5, 1);
  const auto image = world->Crash({.seed = 1, .odds = std::nullopt, .names = std::nullopt});
  sim::SimFileSystem after(image);
  const Opened opened = Open(&after);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  const auto steps = opened.index->Steps();
  ASSERT_EQ(steps->size(), 1U);
  EXPECT_TRUE(steps->front().pinned);
  EXPECT_FALSE(steps->front().of_group);
  const auto record = opened.index->ReadStep(5, 1, data.frame_crc);
  ASSERT_TRUE(record.ok() && record->has_value());
  format::StepRecord expected = data.record;
  expected.pinned = true;
  EXPECT_EQ(**record, expected);
  EXPECT_FALSE(opened.index->ReadStep(5, 2, data.frame_crc)->has_value());
  EXPECT_FALSE(opened.index->ReadStep(5, 1, data.frame_crc + 1)->has_value());
  EXPECT_FALSE(opened.index->ReadStep(6, 1, data.frame_crc)->has_value());
}

TEST(IndexTest, MissingChunksAreDataLoss) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  StepData data = MakeStep(1, 1, 10);
  data.leaves.front().chunks.pop_back();
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  EXPECT_EQ(opened.index->Read(1, 1, data.frame_crc, format::KeysBelow("")).status().code(),
            StatusCode::kDataLoss);
}

TEST(IndexTest, ReopeningKeepsWhatWasFlushed) {
  sim::SimFileSystem files(NewWorld());
  for (uint64_t commit = 1; commit <= 9; commit += 3) {
    const Opened opened = Open(&files);
    ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
    EXPECT_EQ(opened.index->applied_commit(), commit - 1);
    EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
    for (uint64_t next = commit; next < commit + 3; ++next) {
      ASSERT_TRUE(ApplyCommit(opened.index.get(), next).ok());
    }
    ASSERT_TRUE(opened.index->Flush().ok());
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit + 3).ok());  // lost: only the tail
  }
}

TEST(IndexTest, IndexOfAnotherStoreIsRefused) {
  sim::SimFileSystem files(NewWorld());
  {
    const Opened opened = Open(&files);
    Fill(opened.index.get());
  }
  EXPECT_EQ(Open(&files, kPath, format::Id128{}).status.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Open(&files).status.ok());
}

// Many flushes must not pile up tables: compaction runs, on this thread.
TEST(IndexTest, TablesAreCompacted) {
  const auto world = NewWorld();
  sim::SimFileSystem files(world);
  const Opened opened = Open(&files);
  for (uint64_t commit = 1; commit <= 60; ++commit) {
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit).ok());
    ASSERT_TRUE(opened.index->Flush().ok());
  }
  size_t tables = 0;
  const std::vector<std::string> names = files.List(kPath).value();
  for (const std::string& name : names) tables += name.ends_with(".sst") ? 1 : 0;
  EXPECT_LT(tables, 4u * 8u);
  EXPECT_TRUE(CheckPrefix(opened.index.get()).ok());
}

TEST(IndexTest, ReadersBesideTheWriter) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const StepData data = MakeStep(1000, 1, 50);
  ASSERT_TRUE(ApplyStep(opened.index.get(), data).ok());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const auto leaves = opened.index->Read(1000, 1, data.frame_crc, format::KeysBelow(""));
      ASSERT_TRUE(leaves.ok() && leaves->has_value());
      ASSERT_EQ(**leaves, data.leaves);
    }
  });
  EXPECT_EQ(Fill(opened.index.get()), kBatches);
  stop = true;
  reader.join();
}

// The machine's disk stops at the n-th operation, for every n.
TEST(IndexTest, FreezeAtEachOperation) {
  uint64_t operations = 0;
  {
    const auto world = NewWorld();
    sim::SimFileSystem files(world);
    {
      const Opened opened = Open(&files);
      ASSERT_EQ(Fill(opened.index.get()), kBatches);
    }
    operations = world->mutating_ops();
  }
  ASSERT_GT(operations, 30u);
  uint64_t reopened = 0;
  for (uint64_t stop = 1; stop <= operations; ++stop) {
    SCOPED_TRACE(stop);
    const auto world = NewWorld();
    world->FreezeAt(stop);
    sim::SimFileSystem files(world);
    uint64_t durable = 0;
    {
      const Opened opened = Open(&files);
      if (opened.index) {
        durable = Fill(opened.index.get());
        if (opened.freeze->frozen()) {
          EXPECT_EQ(opened.index->Flush().code(), StatusCode::kAborted);
          EXPECT_EQ(ApplyCommit(opened.index.get(), 99).code(), StatusCode::kAborted);
        }
      }
    }
    const auto image = world->Crash({stop, {}, {}});
    sim::SimFileSystem after(image);
    {
      const Opened opened = Open(&after);
      if (opened.index) {
        ++reopened;
        EXPECT_GE(opened.index->applied_commit(), durable);
        const Status status = CheckPrefix(opened.index.get());
        EXPECT_TRUE(status.ok()) << status.ToString();
      }
    }
    ExpectRebuilds(&after);
  }
  EXPECT_GT(reopened, operations / 2);
}

}  // namespace
}  // namespace stepwell::db::index_tests
