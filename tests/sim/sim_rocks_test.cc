// SPDX-License-Identifier: Apache-2.0
// RocksDB runs on the simulated machine, survives any crash of it, and reopens with a prefix of
// what was written: put k, flush, and so on, without a WAL, as the index does.
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include "io/rocks_file_system.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::sim {
namespace {

constexpr int kRounds = 6;
constexpr int kKeysPerRound = 10;

struct RocksIndex {
  explicit RocksIndex(const std::shared_ptr<SimWorld>& world) : files(world) {
    freeze = std::make_shared<io::Freeze>();
    env = rocksdb::NewCompositeEnv(io::MakeRocksFileSystem(&files, freeze));
    rocksdb::Options options;
    options.create_if_missing = true;
    options.env = env.get();
    options.info_log_level = rocksdb::InfoLogLevel::FATAL_LEVEL;
    options.max_bgerror_resume_count = 0;
    options.max_background_jobs = 1;
    rocksdb::DB* raw = nullptr;
    status = rocksdb::DB::Open(options, "/index", &raw);
    db.reset(raw);
  }

  SimFileSystem files;
  std::shared_ptr<io::Freeze> freeze;
  std::unique_ptr<rocksdb::Env> env;
  rocksdb::Status status;
  std::unique_ptr<rocksdb::DB> db;
};

std::string Key(int i) {
  const std::string digits = std::to_string(i);
  return std::string(6 - digits.size(), '0') + digits;
}

// Returns the number of keys that were durable when their flush returned without a freeze.
int Fill(RocksIndex* index) {
  int durable = 0;
  rocksdb::WriteOptions no_wal;
  no_wal.disableWAL = true;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kKeysPerRound; ++i) {
      const int number = round * kKeysPerRound + i;
      if (!index->db->Put(no_wal, Key(number), std::string(500, 'v')).ok()) return durable;
    }
    const bool flushed = index->db->Flush(rocksdb::FlushOptions()).ok();
    if (!flushed || index->freeze->frozen()) return durable;
    durable = (round + 1) * kKeysPerRound;
  }
  return durable;
}

// The number of keys, which must be the first ones; -1 when the index cannot be opened or read
// (it is then rebuilt from the log).
int CountPrefix(const std::shared_ptr<SimWorld>& image) {
  RocksIndex index(image);
  if (!index.status.ok()) return -1;
  int count = 0;
  const std::unique_ptr<rocksdb::Iterator> it(index.db->NewIterator(rocksdb::ReadOptions()));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    EXPECT_EQ(it->key().ToString(), Key(count));
    ++count;
  }
  return it->status().ok() ? count : -1;
}

std::shared_ptr<SimWorld> NewWorld(uint64_t seed) {
  auto world = SimWorld::Make({seed, uint64_t{1} << 30});
  SimFileSystem files(world);
  EXPECT_TRUE(files.CreateDirectory("/index").ok());
  EXPECT_TRUE(files.SyncDirectory("/").ok());
  return world;
}

TEST(SimRocksTest, AnIndexLivesOnTheSimulatedDisk) {
  const auto world = NewWorld(1);
  {
    RocksIndex index(world);
    ASSERT_TRUE(index.status.ok()) << index.status.ToString();
    EXPECT_EQ(Fill(&index), kRounds * kKeysPerRound);
  }
  EXPECT_EQ(CountPrefix(world), kRounds * kKeysPerRound);
  EXPECT_EQ(CountPrefix(world->Crash({1, SectorOdds{0, 1, 0, 0}, NameLoss::kPrefix})),
            kRounds * kKeysPerRound);
}

// The canary: on a disk whose syncs do nothing, the checks of this file must fail.
TEST(SimRocksTest, ADiskThatNeverSyncsLosesWhatWasFlushed) {
  const auto world = NewWorld(1);
  world->AddFault({OpKind::kSync, 1, true, EIO, Fault::Effect::kLose, {}});
  RocksIndex index(world);
  ASSERT_TRUE(index.status.ok()) << index.status.ToString();
  EXPECT_EQ(Fill(&index), kRounds * kKeysPerRound);
  EXPECT_LT(CountPrefix(world->Crash({1, SectorOdds{0, 1, 0, 0}, NameLoss::kPrefix})),
            kRounds * kKeysPerRound);
}

TEST(SimRocksTest, EveryCrashLeavesAPrefixWithAllThatWasFlushed) {
  uint64_t total = 0;
  {
    const auto world = NewWorld(1);
    RocksIndex index(world);
    Fill(&index);
    index.db.reset();
    total = world->mutating_ops();
  }
  ASSERT_GT(total, 50u);
  int opened = 0;
  int images = 0;
  for (uint64_t stop = 3; stop <= total; stop += 4) {
    const auto world = NewWorld(stop);
    world->FreezeAt(stop);
    int durable = 0;
    {
      RocksIndex index(world);
      if (index.status.ok()) durable = Fill(&index);
    }
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const int count = CountPrefix(world->Crash({seed, {}, {}}));
      // A crash within DB::Open may leave an index that cannot be opened; later ones must not lose
      // what a flush reported while the machine was running.
      if (durable > 0) {
        EXPECT_GE(count, durable) << "stop " << stop << " seed " << seed;
      }
      EXPECT_EQ(count < 0 ? 0 : count % kKeysPerRound, 0) << "stop " << stop << " seed " << seed;
      opened += count >= 0 ? 1 : 0;
      ++images;
    }
  }
  EXPECT_GT(opened, images / 2);  // the rest: crashes within the first DB::Open
}

}  // namespace
}  // namespace stepwell::sim
