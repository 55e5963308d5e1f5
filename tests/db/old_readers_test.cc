// SPDX-License-Identifier: Apache-2.0
// Readers of all ages beside a writer that gives space back: each keeps what it saw, and no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/db/support/reclaim_support.h"

namespace stepwell::db {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A reader keeps what was live when it looked, not what was born since: space does not grow while
// it stays.
class OldReadersTest : public ReclaimTest {
 protected:
  std::unique_ptr<Store> OpenKeeping(uint64_t steps) {
    StoreOptions options = Options();
    options.keep = {{.count = steps}};
    return Open(options);
  }
  std::unique_ptr<Store> OpenToRead() {
    StoreOptions options = Options();
    options.read_only = true;
    return Open(options);
  }
  uint64_t SegmentBytes() const { return DiskUse(path_ + "/segments"); }
};

TEST_F(OldReadersTest, AStoreThatOnlyListedKeepsNothing) {
  auto store = OpenKeeping(2);
  for (uint64_t step = 0; step < 20; ++step) Save(store.get(), step);
  ASSERT_TRUE(store->Reclaim().ok());
  const auto beside = OpenToRead();
  EXPECT_EQ(StepNumbers(beside.get()), (std::vector<uint64_t>{18, 19}));
  const uint64_t before = SegmentBytes();
  for (uint64_t step = 20; step < 140; ++step) {
    Save(store.get(), step);
    ASSERT_LE(SegmentBytes(), before + (uint64_t{16} << 20)) << "after step " << step;
  }
  const auto report = store->Reclaim();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->bytes_pinned_by_readers, 0U);
  EXPECT_THAT(store->Stats().old_pins, IsEmpty());
  EXPECT_EQ(StepNumbers(beside.get()), (std::vector<uint64_t>{138, 139}));
  EXPECT_OK(CheckSeeded(beside.get(), 139, 139, kState));
}

TEST_F(OldReadersTest, ReadersOfAllAgesKeepWhatEachOfThemSaw) {
  auto store = OpenKeeping(2);
  std::vector<std::unique_ptr<Store>> readers;
  std::vector<std::shared_ptr<StepReader>> held;
  std::vector<std::shared_ptr<const StoreSnapshot>> snapshots;
  for (uint64_t step = 0; step < 160; ++step) {
    Save(store.get(), step);
    if (step >= 20 && step < 80 && step % 10 == 0) {
      readers.push_back(OpenToRead());
      Store* const from = step % 20 == 0 ? store.get() : readers.back().get();
      for (const uint64_t number : StepNumbers(from)) {
        auto reader = from->Read(number);
        ASSERT_TRUE(reader.ok()) << reader.status().ToString();
        held.push_back(std::move(*reader));
      }
    }
    if (step == 85) {
      auto snapshot = store->Snapshot();
      ASSERT_TRUE(snapshot.ok());
      snapshots.push_back(std::move(*snapshot));
    }
    // Eight steps of 0.8 MB live or to come, two of each reader, and room to settle.
    ASSERT_LE(SegmentBytes(), uint64_t{56} << 20) << "after step " << step;
  }
  ASSERT_EQ(held.size(), 12U);
  const auto report = store->Reclaim();
  ASSERT_TRUE(report.ok());
  // Nothing remains for the pins that are older than the readers' own.
  EXPECT_GE(report->bytes_pinned_by_readers, 14 * uint64_t{800000});
  EXPECT_LT(report->bytes_pinned_by_readers, 15 * uint64_t{800000} + (uint64_t{1} << 20));
  EXPECT_EQ(store->Stats().old_pins.size(), 3U);
  EXPECT_LT(SegmentBytes(), uint64_t{24} << 20) << "punched between what readers keep";
  CheckSpace(store.get());
  for (const auto& reader : held) CheckRead(reader.get());
  held.clear();
  snapshots.clear();
  const auto after = store->Reclaim();
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->bytes_pinned_by_readers, 0U);
  EXPECT_THAT(store->Stats().old_pins, IsEmpty());
  EXPECT_LT(SegmentBytes(), uint64_t{12} << 20);
  Check(store.get());
}

TEST_F(OldReadersTest, AReaderFromBeforeKeepsSegmentsFromBeforeOnly) {
  auto store = OpenKeeping(2);
  for (uint64_t step = 0; step < 20; ++step) Save(store.get(), step);
  ASSERT_OK(store->Close());
  const auto beside = OpenToRead();
  const auto reader = beside->Read(19);
  ASSERT_TRUE(reader.ok());
  uint64_t most = 0;
  for (uint64_t session = 0; session < 12; ++session) {
    store = OpenKeeping(2);
    for (uint64_t step = 0; step < 12; ++step) Save(store.get(), 100 + session * 12 + step);
    ASSERT_TRUE(store->Reclaim().ok());
    if (session == 2) most = SegmentBytes();
    if (session > 2) {
      ASSERT_LE(SegmentBytes(), most + (uint64_t{8} << 20)) << session;
    }
    ASSERT_OK(store->Close());
  }
  CheckRead(reader->get());
}

// After a power cut the slot may be older than the log, of which a reader sees all.
TEST_F(OldReadersTest, BehindAnOlderSlotAReaderKeepsWhatItSaw) {
  const std::string killed = dir_ / "killed";
  std::vector<uint64_t> steps = {0};
  {
    auto store = Open(Options());
    Save(store.get(), 0);
    fs::copy_file(path_ + "/STEPWELL", dir_ / "older");
    for (uint64_t step = 1; step < 10; ++step) {
      Save(store.get(), step);
      steps.push_back(step);
    }
    CopyLiveStore(path_, killed);
    fs::copy_file(dir_ / "older", killed + "/STEPWELL", fs::copy_options::overwrite_existing);
  }
  StoreOptions read_only = Options();
  read_only.read_only = true;
  const auto beside = Store::Open(killed, read_only);
  ASSERT_OK(beside.status());
  ASSERT_EQ(StepNumbers(beside->get()), steps);
  const auto reader = (*beside)->Read(8);
  ASSERT_OK(reader.status());
  auto store = Store::Open(killed, Options());
  ASSERT_OK(store.status());
  ASSERT_OK((*store)->Delete(steps));
  for (uint64_t step = 20; step < 40; ++step) {
    Save(store->get(), step);
    ASSERT_OK((*store)->Delete(std::vector<uint64_t>{step}));
  }
  ASSERT_OK((*store)->Reclaim().status());
  CheckRead(reader->get());
}

}  // namespace
}  // namespace stepwell::db
