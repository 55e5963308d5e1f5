// SPDX-License-Identifier: Apache-2.0
// Space comes back: removal, recycling, punching, evacuation; never what is still needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

TEST_F(ReclaimTest, ExplicitReclaimPunchesBetweenSurvivors) {
  auto store = Open(Options());
  for (uint64_t step = 0; step < 40; ++step) Save(store.get(), step);
  std::vector<uint64_t> dead;
  for (uint64_t step = 0; step < 40; ++step) {
    if (step % 4 != 1) dead.push_back(step);
  }
  CheckSpace(store.get());
  ASSERT_OK(store->Delete(dead));
  CheckSpace(store.get());
  const auto report = store->Reclaim();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GT(report->bytes_punched, uint64_t{10} << 20) << log_;
  EXPECT_LT(report->bytes_after, report->bytes_before / 2);
  Check(store.get());
  CheckSpace(store.get());  // the ballast may still shrink
  const SpaceStats space = store->Stats().space;
  EXPECT_GE(space.live_bytes, uint64_t{10} * 800000);
  EXPECT_LT(space.dead_bytes, space.live_bytes);
  // Nothing died since: nothing is done.
  const auto again = store->Reclaim();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->bytes_punched + again->bytes_moved + again->segments_removed, 0U);
  ASSERT_OK(store->Close());
  store = Open(Options());
  EXPECT_EQ(StepNumbers(store.get()).size(), 10U);
  Check(store.get());
}

TEST_F(ReclaimTest, EverythingDeletedGivesEverythingBack) {
  auto store = Open(Options());
  for (uint64_t step = 0; step < 20; ++step) Save(store.get(), step);
  ASSERT_OK(store->Delete(StepNumbers(store.get())));
  const auto report = store->Reclaim();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const SpaceStats space = store->Stats().space;
  EXPECT_EQ(space.live_bytes, 0U);
  EXPECT_LT(space.dead_bytes, uint64_t{200} << 10) << log_;
  CheckSpace(store.get());
  Save(store.get(), 100);
  Check(store.get());
}

// The catalogs of its segments have died long before its steps do: that settles nothing.
TEST_F(ReclaimTest, UnderALongRetentionSegmentsAreUsedAgain) {
  StoreOptions options = Options();
  options.keep = {{.count = 100}};
  auto store = Open(options);
  for (uint64_t step = 0; step < 180; ++step) Save(store.get(), step);
  EXPECT_GT(store->Stats().segments_recycled, 0U);
  EXPECT_EQ(store->Stats().bytes_punched, 0U);
  Check(store.get());
}

TEST_F(ReclaimTest, UnderRetentionSpaceIsFlatAndSegmentsAreUsedAgain) {
  StoreOptions options = Options();
  options.keep = {{.count = 5}};
  auto store = Open(options);
  uint64_t most = 0;
  uint64_t early = 0;
  for (uint64_t step = 0; step < 240; ++step) {
    Save(store.get(), step);
    const uint64_t bytes = store->Stats().space.total_bytes;
    (step < 60 ? early : most) = std::max(step < 60 ? early : most, bytes);
  }
  EXPECT_LE(most, early + (uint64_t{8} << 20));
  EXPECT_GT(store->Stats().segments_recycled, 10U);
  EXPECT_EQ(store->Stats().bytes_punched, 0U) << "under latest-N whole segments die";
  Check(store.get());
  ASSERT_OK(store->Close());
  store = Open(options);
  Check(store.get());
}

TEST_F(ReclaimTest, SpaceIsFlatWhereSomeStepsStay) {
  StoreOptions options = Options();
  options.keep = {{.count = 3}, {.kind = KeepRule::Kind::kEvery, .count = 16}};
  auto store = Open(options);
  for (uint64_t step = 0; step < 200; ++step) Save(store.get(), step);
  // These bytes stay, or are not settled yet.
  const SpaceStats space = store->Stats().space;
  EXPECT_LT(space.dead_bytes, uint64_t{28} << 20);
  EXPECT_GT(store->Stats().bytes_punched, uint64_t{10} << 20);
  Check(store.get());
}

TEST_F(ReclaimTest, ALinkedSegmentIsNeverChangedAndItsStepsMoveOut) {
  auto store = Open(Options());
  for (uint64_t step = 0; step < 24; ++step) Save(store.get(), step);
  const std::string linked = dir_ / "linked";
  fs::create_directory(linked);
  std::map<std::string, std::string> bytes;
  std::vector<fs::path> segments;
  for (const auto& entry : fs::directory_iterator(path_ + "/segments")) {
    if (entry.path().extension() == ".seg") segments.push_back(entry.path());
  }
  std::sort(segments.begin(), segments.end());
  segments.resize(segments.size() - 2);  // those that may still be written
  for (const fs::path& segment : segments) {
    const fs::path link = fs::path(linked) / segment.filename();
    fs::create_hard_link(segment, link);
    bytes[link] = Bytes(link);
  }
  std::vector<uint64_t> dead;
  for (uint64_t step = 0; step < 24; ++step) {
    if (step % 5 != 1) dead.push_back(step);
  }
  ASSERT_OK(store->Delete(dead));
  const auto report = store->Reclaim();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_GT(report->bytes_moved, uint64_t{1} << 20) << log_;
  for (const auto& [link, before] : bytes) EXPECT_TRUE(Bytes(link) == before) << link;
  Check(store.get());
  EXPECT_EQ(store->Stats().space.linked_bytes, 0U) << "all of them were left";
  for (int i = 0; i < 40; ++i) Save(store.get(), 1000 + static_cast<uint64_t>(i));
  for (const auto& [link, before] : bytes) EXPECT_TRUE(Bytes(link) == before) << link;
  ASSERT_OK(store->Close());
  store = Open(Options());
  Check(store.get());
}

// No pin of this process stands in for the one in readers/; and a reader that has not looked for a
// while finds its way although the frames since then are gone.
TEST_F(ReclaimTest, AReadersPinFileAloneKeepsItsSteps) {
  auto store = Open(Options());
  for (uint64_t step = 0; step < 16; ++step) Save(store.get(), step);
  StoreOptions read_only = Options();
  read_only.read_only = true;
  auto beside = Open(read_only);
  const auto reader = beside->Read(3);
  ASSERT_TRUE(reader.ok());
  ASSERT_OK(store->Delete(StepNumbers(store.get())));
  for (uint64_t step = 16; step < 80; ++step) {
    Save(store.get(), step);
    const std::vector<uint64_t> one{step};
    if (step < 78) {
      ASSERT_OK(store->Delete(one));
    }
    if (step % 8 == 0) {
      ASSERT_TRUE(store->Reclaim().ok());
    }
  }
  EXPECT_GT(store->Reclaim()->bytes_pinned_by_readers, 0U);
  CheckRead(reader->get());
  EXPECT_EQ(StepNumbers(beside.get()), (std::vector<uint64_t>{78, 79}));
}

TEST_F(ReclaimTest, AStepThatIsReadIsNotReclaimed) {
  auto store = Open(Options());
  for (uint64_t step = 0; step < 16; ++step) Save(store.get(), step);
  StoreOptions read_only = Options();
  read_only.read_only = true;
  auto beside = Open(read_only);
  auto own = store->Read(2);
  auto other = beside->Read(3);
  ASSERT_TRUE(own.ok() && other.ok());
  ASSERT_OK(store->Delete(StepNumbers(store.get())));
  auto report = store->Reclaim();
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->bytes_pinned_by_readers, 0U);
  EXPECT_FALSE(store->Stats().old_pins.empty());
  CheckSpace(store.get());
  CheckSpace(beside.get());
  EXPECT_EQ(store->Stats().space.pinned_by_readers_bytes, report->bytes_pinned_by_readers);
  EXPECT_GE(store->Stats().space.dead_bytes, report->bytes_pinned_by_readers);
  for (auto* reader : {&*own, &*other}) {
    CheckRead(reader->get());
  }
  const auto given_back = [&] {
    const StoreStats stats = store->Stats();
    return stats.segments_removed + stats.segments_recycled;
  };
  const uint64_t before = given_back();
  own->reset();  // from here on a pass may come by itself
  other->reset();
  ASSERT_OK(beside->Close());
  report = store->Reclaim();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->bytes_pinned_by_readers, 0U);
  EXPECT_GT(given_back(), before) << log_;
  EXPECT_THAT(store->Stats().old_pins, IsEmpty());
  CheckSpace(store.get());
}

// Tiny payloads lie at multiples of 64 bytes and their records take more room than they do: where
// all of a segment is needed, a move gives nothing back. All steps but each n-th are deleted
// before.
class TinyLeavesTest : public ReclaimTest, public ::testing::WithParamInterface<uint64_t> {};

TEST_P(TinyLeavesTest, AfterOneCallNothingMoves) {
  std::vector<LeafSpec> tiny;
  for (int i = 0; i < 1000; ++i) tiny.push_back({StrCat("layer", i), {8}, false, false});
  auto store = Open(Options());
  std::vector<uint64_t> dead;
  for (uint64_t step = 0; step < 16; ++step) {
    const auto handle = SaveSeeded(store.get(), step, step, tiny);
    ASSERT_TRUE(handle.ok());
    ASSERT_OK(handle->Wait());
    if (GetParam() > 0 && step % GetParam() != 0) dead.push_back(step);
  }
  if (!dead.empty()) ASSERT_OK(store->Delete(dead));
  ASSERT_TRUE(store->Reclaim().ok());
  ASSERT_TRUE(store->Reclaim().ok());  // what the first one's moves left
  const uint64_t bytes = DiskUse(path_);
  for (int call = 0; call < 2; ++call) {
    const auto report = store->Reclaim();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->bytes_moved + report->bytes_punched + report->segments_removed +
                  report->segments_recycled,
              0U);
    EXPECT_EQ(report->bytes_after, report->bytes_before);
  }
  EXPECT_LE(DiskUse(path_ + "/segments"), bytes);
  const auto report = store->Verify({});
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->problems, IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(Deleting, TinyLeavesTest, ::testing::Values(0, 2, 5));

TEST_F(ReclaimTest, AReaderFollowsWhileTheWriterSavesDeletesAndReclaims) {
  StoreOptions options = Options();
  options.keep = {{.count = 2}};
  auto store = Open(options);
  Save(store.get(), 0);
  StoreOptions read_only = Options();
  read_only.read_only = true;
  auto beside = Open(read_only);
  std::atomic<bool> stop{false};
  std::atomic<int> loads{0};
  std::string wrong;
  std::thread reader([&] {
    while (!stop.load() && wrong.empty()) {
      const auto steps = beside->Steps();
      if (!steps.ok() || steps->empty()) {
        wrong = steps.ok() ? "no step" : steps.status().ToString();
        return;
      }
      const uint64_t step = steps->back().step;
      const Status status = CheckSeeded(beside.get(), step, step, kState);
      // It may be gone between the two calls; never damaged.
      if (!status.ok() && status.code() != StatusCode::kNotFound) wrong = status.ToString();
      if (status.ok()) ++loads;
    }
  });
  for (uint64_t step = 1; step < 80; ++step) {
    Save(store.get(), step);
    if (step % 10 == 0) {
      EXPECT_TRUE(store->Reclaim().ok());
    }
  }
  while (loads.load() == 0 && wrong.empty()) std::this_thread::yield();
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, "");
  Check(store.get());
}

TEST_F(ReclaimTest, ForeignFilesAreLeftAlone) {
  {
    auto store = Open(Options());
    for (uint64_t step = 0; step < 10; ++step) Save(store.get(), step);
    ASSERT_OK(store->Close());
  }
  const std::string foreign = dir_ / "other";
  {
    auto other = Store::Open(foreign, Options());
    ASSERT_TRUE(other.ok());
    Save(other->get(), 1);
    ASSERT_OK((*other)->Close());
  }
  const std::string name = path_ + "/segments/0000000099.seg";
  fs::copy_file(foreign + "/segments/0000000001.seg", name);
  const std::string bytes = Bytes(name);
  auto store = Open(Options());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(StepNumbers(store.get()).size(), 10U);
  for (uint64_t step = 20; step < 40; ++step) Save(store.get(), step);
  ASSERT_OK(store->Delete(StepNumbers(store.get())));
  ASSERT_TRUE(store->Reclaim().ok());
  EXPECT_TRUE(Bytes(name) == bytes);
}

TEST_F(ReclaimTest, SparesOfAnEarlierSessionAreUsedAndNonsenseIsRemoved) {
  StoreOptions options = Options();
  options.keep = {{.count = 2}};
  {
    auto store = Open(options);
    for (uint64_t step = 0; step < 60; ++step) Save(store.get(), step);
    ASSERT_OK(store->Close());
  }
  std::ofstream(path_ + "/segments/0000000000.spare").close();  // empty
  auto store = Open(options);
  EXPECT_FALSE(fs::exists(path_ + "/segments/0000000000.spare"));
  for (uint64_t step = 60; step < 90; ++step) Save(store.get(), step);
  size_t spares = 0;
  for (const auto& entry : fs::directory_iterator(path_ + "/segments")) {
    spares += entry.path().extension() == ".spare" ? 1 : 0;
  }
  EXPECT_LE(spares, 4U);
  Check(store.get());
}

std::vector<std::string> SparesOf(const std::string& path) {
  std::vector<std::string> spares;
  for (const auto& entry : fs::directory_iterator(path + "/segments")) {
    if (entry.path().extension() == ".spare") spares.push_back(entry.path().string());
  }
  return spares;
}

TEST_F(ReclaimTest, ASpareWithAnotherNameIsNotWrittenTo) {
  StoreOptions options = Options();
  options.keep = {{.count = 2}};
  auto store = Open(options);
  uint64_t step = 0;
  while (SparesOf(path_).empty() && step < 200) Save(store.get(), step++);
  const std::vector<std::string> spares = SparesOf(path_);  // only a save takes one
  ASSERT_FALSE(spares.empty());
  std::map<std::string, std::string> linked;
  for (const std::string& spare : spares) {
    const std::string other = dir_ / fs::path(spare).filename().string();
    fs::create_hard_link(spare, other);
    std::ifstream file(other, std::ios::binary);
    linked[other] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  for (const uint64_t end = step + 30; step < end;) Save(store.get(), step++);
  for (const auto& [other, bytes] : linked) {
    std::ifstream file(other, std::ios::binary);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), bytes) << other;
    EXPECT_EQ(fs::hard_link_count(other), 1U) << "it is still a spare";
  }
  Check(store.get());
}

TEST_F(ReclaimTest, SparesOfLargeStatesGoWhenStatesBecomeSmall) {
  StoreOptions options = Options();
  options.segment_bytes = 32 << 20;
  options.keep = {{.count = 2}};
  auto store = Open(options);
  const std::vector<LeafSpec> large = {{"w", {2000, 1000}, true, false}};
  const auto save = [&](uint64_t step, const std::vector<LeafSpec>& state) {
    ASSERT_OK(SaveSeeded(store.get(), step, step, state)->Wait());
  };
  const auto spare_bytes = [&] {
    uint64_t bytes = 0;
    for (const std::string& spare : SparesOf(path_)) bytes += fs::file_size(spare);
    return bytes;
  };
  uint64_t step = 0;
  while (spare_bytes() < (16U << 20) && step < 300) save(step++, large);
  ASSERT_GE(spare_bytes(), 16U << 20);
  const std::vector<LeafSpec> small = {{"w", {10}, true, false}};
  for (const uint64_t end = step + 2000; step < end && spare_bytes() >= (16U << 20);) {
    save(step++, small);
    // Small steps fill no segment for long, and a pass is due when one is full.
    if (step % 100 == 0) ASSERT_OK(store->Reclaim().status());
  }
  EXPECT_LT(spare_bytes(), 16U << 20);
}

}  // namespace
}  // namespace stepwell::db
