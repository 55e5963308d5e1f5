// SPDX-License-Identifier: Apache-2.0
// The index repeats what the log says, so the one thing it must never do is lie: after any crash or
// damage it is a whole prefix of what was applied, or it says that it is bad.
#include <gtest/gtest.h>

#include "tests/db/support/index_support.h"

namespace stepwell::db::index_tests {
namespace {

TEST(IndexTest, NewOneIsEmpty) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
  EXPECT_TRUE(RowsOf(opened.index.get()).value().empty());
  EXPECT_EQ(opened.index->unflushed_bytes(), 0u);
  EXPECT_TRUE(opened.index->Flush().ok());
}

TEST(IndexTest, EveryBatchIsSeenAtOnce) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (uint64_t commit = 1; commit <= 20; ++commit) {
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit).ok());
    EXPECT_EQ(CheckPrefix(opened.index.get()).value(), commit);
    EXPECT_GT(opened.index->unflushed_bytes(), 0u);
    EXPECT_GT(opened.index->unflushed_rows(), 0u);
    if (commit % 3 != 0) continue;
    ASSERT_TRUE(opened.index->Flush().ok());
    EXPECT_EQ(opened.index->unflushed_bytes(), 0u);
    EXPECT_EQ(opened.index->unflushed_rows(), 0u);
    EXPECT_EQ(CheckPrefix(opened.index.get()).value(), commit);
  }
}

TEST(IndexTest, AScanBeginsWhereItIsAskedToAndEndsWhenItIsTold) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (const uint64_t step : {uint64_t{0}, uint64_t{5}, uint64_t{6}, UINT64_MAX}) {
    ASSERT_TRUE(ApplyRow(opened.index.get(), MakeRow(step, 1)).ok());
  }
  EXPECT_EQ(RowsOf(opened.index.get(), 0).value().size(), 4U);
  EXPECT_EQ(RowsOf(opened.index.get(), 1).value().size(), 3U);
  EXPECT_EQ(RowsOf(opened.index.get(), 6).value().size(), 2U);
  EXPECT_EQ(RowsOf(opened.index.get(), UINT64_MAX).value().size(), 1U);
  size_t seen = 0;
  ASSERT_TRUE(opened.index->Scan(0, [&](const IndexRow&) { return ++seen < 2; }).ok());
  EXPECT_EQ(seen, 2U);
}

TEST(IndexTest, ARowTakesThePlaceOfTheOneBefore) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  for (const uint64_t step : {uint64_t{0}, uint64_t{5}, UINT64_MAX}) {
    ASSERT_TRUE(ApplyRow(opened.index.get(), MakeRow(step, 1)).ok());
    ASSERT_TRUE(ApplyRow(opened.index.get(), MakeRow(step, 5)).ok());
    EXPECT_EQ(RowsOf(opened.index.get()).value(), (Model{{step, MakeRow(step, 5)}}));
    ASSERT_TRUE(opened.index->Apply({{step}, {}}).ok());
    EXPECT_TRUE(RowsOf(opened.index.get()).value().empty());
  }
}

TEST(IndexTest, ReopeningKeepsWhatWasFlushed) {
  sim::SimFileSystem files(NewWorld());
  for (uint64_t commit = 1; commit <= 9; commit += 3) {
    const Opened opened = Open(&files);
    ASSERT_TRUE(opened.status.ok()) << opened.status.ToString();
    EXPECT_EQ(CheckPrefix(opened.index.get()).value(), commit - 1);
    for (uint64_t next = commit; next < commit + 3; ++next) {
      ASSERT_TRUE(ApplyCommit(opened.index.get(), next).ok());
    }
    ASSERT_TRUE(opened.index->Flush().ok());
    ASSERT_TRUE(ApplyCommit(opened.index.get(), commit + 3).ok());  // lost: only the tail
  }
}

// Another process sees what was flushed when it opened, and writes nothing.
TEST(IndexTest, OpenToReadBesideTheWriter) {
  const auto world = NewWorld();
  sim::SimFileSystem files(world);
  EXPECT_FALSE(Open(&files, kPath, kStoreId, /*to_read=*/true).status.ok()) << "there is none";
  const Opened writer = Open(&files);
  uint64_t flushed = 0;
  for (uint64_t commit = 1; commit <= 30; ++commit) {
    ASSERT_TRUE(ApplyCommit(writer.index.get(), commit).ok());
    if (commit % 4 == 0) {
      ASSERT_TRUE(writer.index->Flush().ok());
      flushed = commit;
    }
    const uint64_t before = world->mutating_ops();
    const Opened reader = Open(&files, kPath, kStoreId, /*to_read=*/true);
    ASSERT_TRUE(reader.status.ok()) << reader.status.ToString();
    EXPECT_EQ(CheckPrefix(reader.index.get()).value(), flushed);
    EXPECT_EQ(world->mutating_ops(), before);
  }
  EXPECT_FALSE(Open(&files, kPath, format::Id128{}, /*to_read=*/true).status.ok());
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
  EXPECT_LT(tables, 2u * 8u);
  EXPECT_EQ(CheckPrefix(opened.index.get()).value(), 60u);
}

TEST(IndexTest, ReadersBesideTheWriter) {
  sim::SimFileSystem files(NewWorld());
  const Opened opened = Open(&files);
  const Row row = MakeRow(1000, 1);
  ASSERT_TRUE(ApplyRow(opened.index.get(), row).ok());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) ASSERT_EQ(RowsOf(opened.index.get(), 1000).value(), (Model{{1000, row}}));
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
        const auto prefix = CheckPrefix(opened.index.get());
        ASSERT_TRUE(prefix.ok()) << prefix.status().ToString();
        EXPECT_GE(*prefix, durable);
      }
    }
    ExpectRebuilds(&after);
  }
  EXPECT_GT(reopened, operations / 2);
}

}  // namespace
}  // namespace stepwell::db::index_tests
