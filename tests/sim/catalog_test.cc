// SPDX-License-Identifier: Apache-2.0
// Catalogs of stores with many live steps: bases, what follows them, and what recovery makes of
// both. On a simulated machine, whose small segments give a catalog every few dozen steps.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "db/layout.h"
#include "db/log/catalog.h"
#include "db/log/recovery.h"
#include "db/log/slot_file.h"
#include "tests/db/support/store_support.h"
#include "tests/prng.h"
#include "tests/sim/support/sim_file_system.h"
#include "tests/sim/support/store_machine.h"

namespace stepwell::sim {
namespace {

using db::CatalogNote;
using db::LogState;
using format::Catalog;
using format::FrameKind;
using format::FramePlace;

Result<SaveHandle> SaveSmall(db::Store* store, uint64_t step, const std::string& item_name = "s",
                             db::IfExists if_exists = db::IfExists::kError) {
  db::SaveRequest request;
  request.step = step;
  request.if_exists = if_exists;
  db::ItemInput item;
  item.name = item_name;
  db::LeafInput leaf;
  leaf.record.key = db::KeyOf(item_name, "n");
  leaf.record.kind = format::LeafKind::kValue;
  leaf.record.value_type = format::ValueType::kStr;
  leaf.value = StrCat(step);
  item.leaves.push_back(std::move(leaf));
  request.items.push_back(std::move(item));
  return store->Save(std::move(request));
}

uint64_t SegmentBytes(const SimWorld& world) {
  uint64_t bytes = 0;
  for (const auto& [path, size] : world.Files()) {
    if (path.find("/segments/") != std::string::npos) bytes += size;
  }
  return bytes;
}

// PinnedSteps and their pins.
using PinnedSteps = std::map<uint64_t, bool>;

PinnedSteps StepsOf(db::Store* store) {
  PinnedSteps steps;
  const auto all = store->Steps();
  EXPECT_TRUE(all.ok()) << all.status().ToString();
  if (!all.ok()) return steps;
  for (const auto& step : *all) steps[step.step] = step.pinned;
  return steps;
}

// A machine's files, and the log of its store as recovery sees it.
struct CatalogDisk {
  explicit CatalogDisk(const std::shared_ptr<SimWorld>& world) : files(world) {}
  Result<LogState> ByMarks() {
    STEPWELL_ASSIGN_OR_RETURN(const auto slot_file,
                              db::SlotFile::Open(&files, kStorePath, /*write=*/false, nullptr));
    STEPWELL_ASSIGN_OR_RETURN(const format::StoreSlot slot, slot_file->Read());
    return db::RecoverByMarks(slot, segments, nullptr);
  }

  SimFileSystem files;
  db::SegmentFiles segments{&files, kStorePath};
};

// Saves `count` small steps, one deep, in segments of `segment_bytes`; closes the store.
std::shared_ptr<SimWorld> WorldOf(uint64_t count, uint64_t segment_bytes) {
  auto world = SimWorld::Make({1, kUnlimitedBytes});
  StoreMachine machine(world, 1);
  auto store = machine.Open({.segment_bytes = segment_bytes});
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  for (uint64_t step = 0; step < count; ++step) {
    const auto handle = SaveSmall(store->get(), step);
    EXPECT_TRUE(handle.ok() && handle->Wait().ok()) << step;
  }
  EXPECT_OK((*store)->Close());
  return world;
}

TEST(CatalogTest, ManyLiveStepsFitAndTakeTheirOwnSpace) {
  constexpr uint64_t kSteps = 5000;
  const auto world = SimWorld::Make({1, kUnlimitedBytes});
  StoreMachine machine(world, 1);
  auto store = machine.Open({.segment_bytes = 512 << 10});
  ASSERT_OK(store.status());
  uint64_t bytes_at_half = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const auto handle = SaveSmall(store->get(), step);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    if (step == kSteps / 2) bytes_at_half = SegmentBytes(*world);
  }
  const auto killed = world->CrashImageProcessKill(2);
  ASSERT_OK((*store)->Close());
  // A step is one frame in one block; segments are small, and catalogs are written twice.
  EXPECT_LE(SegmentBytes(*world), kSteps * 4096 * 125 / 100);
  EXPECT_LE(SegmentBytes(*world), bytes_at_half * 22 / 10);
  for (const auto& image : {world, killed}) {
    StoreMachine again(image, 2);
    const auto reopened = again.Open({.segment_bytes = 512 << 10});
    ASSERT_OK(reopened.status());
    EXPECT_EQ(StepsOf(reopened->get()).size(), kSteps);
    ASSERT_OK(SaveSmall(reopened->get(), kSteps)->Wait());
    EXPECT_EQ(StepsOf(reopened->get()).size(), kSteps + 1);
  }
}

TEST(CatalogTest, LongNamesOfItemsFit) {
  constexpr uint64_t kSteps = 80;
  const auto world = SimWorld::Make({1, kUnlimitedBytes});
  StoreMachine machine(world, 1);
  auto store = machine.Open({.segment_bytes = 4 << 20});
  ASSERT_OK(store.status());
  for (uint64_t step = 0; step < kSteps; ++step) {
    Prng prng(step);
    std::string name(200'000, ' ');
    for (char& c : name) c = static_cast<char>('a' + prng.Below(26));
    const auto handle = SaveSmall(store->get(), step, name);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
  }
  ASSERT_OK((*store)->Close());
  store = machine.Open({.segment_bytes = 4 << 20});
  ASSERT_OK(store.status());
  const auto steps = (*store)->Steps();
  ASSERT_OK(steps.status());
  ASSERT_EQ(steps->size(), kSteps);
  EXPECT_EQ(steps->back().items.front().name.size(), 200'000U);
}

TEST(CatalogTest, SessionsGoOnWithTheLineage) {
  const auto world = WorldOf(300, 64 << 10);
  size_t deltas = 0;
  for (uint64_t step = 300; step < 320; ++step) {
    StoreMachine machine(world, step);
    auto store = machine.Open({.segment_bytes = 64 << 10});
    ASSERT_OK(store.status());
    ASSERT_OK(SaveSmall(store->get(), step)->Wait());
    ASSERT_OK((*store)->Close());
    const auto state = CatalogDisk(world).ByMarks();
    ASSERT_OK(state.status());
    EXPECT_EQ(state->live.size(), step + 1);
    deltas += state->catalogs.size() > 1 ? 1 : 0;
  }
  EXPECT_GE(deltas, 15U) << "an open writes what changed, not everything";
}

// A base of what is live needs more than is free; what changed does not.
TEST(CatalogTest, AFullDiskTakesADelete) {
  const auto world = WorldOf(600, 64 << 10);
  for (int round = 0; round < 12; ++round) {
    StoreMachine machine(world, static_cast<uint64_t>(round));
    world->SetCapacity(world->UsedBytes() + (24 << 10));
    auto store = machine.Open({.segment_bytes = 64 << 10});
    ASSERT_OK(store.status());
    const std::vector<uint64_t> first{StepsOf(store->get()).begin()->first};
    ASSERT_OK((*store)->Delete(first));
    ASSERT_OK((*store)->Close());
  }
}

// PinnedSteps that come, go, are replaced and pinned at random, with crashes and reclaim: at each
// open the store has what the model has.
TEST(CatalogTest, FollowsChangesThroughCrashesAndReclaim) {
  size_t longest = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Prng prng(seed);
    auto world = SimWorld::Make({seed, kUnlimitedBytes});
    PinnedSteps model;
    uint64_t next = 0;
    for (int session = 0; session < 6; ++session) {
      StoreMachine machine(world, seed * 100 + static_cast<uint64_t>(session));
      auto store = machine.Open({.segment_bytes = 48 << 10});
      ASSERT_OK(store.status());
      EXPECT_TRUE((*store)->recovery().problems.empty());
      ASSERT_EQ(StepsOf(store->get()), model) << "seed " << seed << " session " << session;
      const auto any = [&] {
        auto it = model.lower_bound(prng.Below(next + 1));
        return it == model.end() ? model.begin() : it;
      };
      for (int action = 0; action < 80; ++action) {
        const uint64_t what = prng.Below(20);
        if (what < 12 || model.size() < 40) {
          ASSERT_OK(SaveSmall(store->get(), next)->Wait());
          model[next++] = false;
        } else if (what < 14) {
          const auto it = any();
          const bool pinned = it->second;
          const auto handle = SaveSmall(store->get(), it->first, "t", db::IfExists::kReplace);
          EXPECT_EQ(handle.ok() && handle->Wait().ok(), !pinned);
        } else if (what < 17) {
          std::vector<uint64_t> gone;
          for (uint64_t i = prng.Below(12); i > 0; --i) {
            const auto it = any();
            if (it == model.end() || it->second) continue;
            gone.push_back(it->first);
            model.erase(it);
          }
          if (!gone.empty()) ASSERT_OK((*store)->Delete(gone));
        } else {
          const auto it = any();
          it->second = !it->second;
          ASSERT_OK((*store)->SetPinned({&it->first, 1}, it->second));
        }
      }
      if (prng.OneIn(2)) ASSERT_OK((*store)->Reclaim().status());
      ASSERT_EQ(StepsOf(store->get()), model);
      if (session % 3 == 2) {
        const auto report = (*store)->Verify({});
        ASSERT_OK(report.status());
        EXPECT_TRUE(report->problems.empty());
        ASSERT_OK((*store)->Close());
        const auto state = CatalogDisk(world).ByMarks();
        ASSERT_OK(state.status());
        longest = std::max(longest, state->catalogs.size());
      } else {
        auto image = ImageOf(*world, prng.Next() % 1'000'000);
        store->reset();
        world = std::move(image);
      }
    }
  }
  EXPECT_GE(longest, 2U) << "no catalog followed another";
}

class DamagedCatalogTest : public ::testing::Test {
 protected:
  DamagedCatalogTest() : world_(WorldOf(steps_, 64 << 10)), disk_(world_) {
    while (catalogs_.size() < 3) {
      StoreMachine machine(world_, steps_);
      const auto store = machine.Open({.segment_bytes = 64 << 10});
      EXPECT_OK(SaveSmall(store->get(), steps_++)->Wait());
      EXPECT_OK((*store)->Close());
      catalogs_ = disk_.ByMarks()->catalogs;
    }
  }

  void Flip(const CatalogNote& note, uint64_t offset) {
    ASSERT_TRUE(world_->FlipBit(db::SegmentPath(kStorePath, note.place.segment), offset, 3));
  }
  void ExpectAllThere() {
    StoreMachine machine(world_, 7);
    const auto store = machine.Open({.segment_bytes = 64 << 10});
    ASSERT_OK(store.status());
    EXPECT_EQ(StepsOf(store->get()).size(), steps_);
  }

  uint64_t steps_ = 300;
  std::shared_ptr<SimWorld> world_;
  CatalogDisk disk_;
  std::vector<CatalogNote> catalogs_;
};

// Both the newest catalog and the one before have a second copy.
TEST_F(DamagedCatalogTest, TheNewestIsReplacedByItsCopy) {
  Flip(catalogs_.back(), catalogs_.back().place.offset_bytes + 200);
  EXPECT_OK(disk_.ByMarks().status());
  ExpectAllThere();
}

TEST_F(DamagedCatalogTest, APageOfTheBaseIsReplacedByItsCopy) {
  const CatalogNote& base = catalogs_.front();
  ASSERT_GT(base.bytes, 8192U) << "it has pages";
  Flip(base, base.place.offset_bytes + 4096 + 150);
  EXPECT_OK(disk_.ByMarks().status());
  ExpectAllThere();
}

TEST_F(DamagedCatalogTest, AFailedReadIsNoDamage) {
  LogState state;
  ASSERT_OK(db::LoadCatalog(catalogs_.back().place, disk_.segments, &state));
  EXPECT_EQ(state.catalogs.size(), catalogs_.size());
  // A place of the same frame with another checksum: damage, and the state stays as it was.
  FramePlace wrong = catalogs_.back().place;
  wrong.crc ^= 1;
  EXPECT_EQ(db::LoadCatalog(wrong, disk_.segments, &state).code(), StatusCode::kDataLoss);
  EXPECT_EQ(state.catalogs.size(), catalogs_.size());
}

// Catalogs that a writer of ours never writes.
class HostileCatalogTest : public ::testing::Test {
 protected:
  HostileCatalogTest() : disk_(SimWorld::Make({1, kUnlimitedBytes})) {
    EXPECT_OK(disk_.files.CreateDirectory(kStorePath));
    EXPECT_OK(disk_.files.CreateDirectory(db::SegmentsPath(kStorePath)));
  }

  FramePlace Write(uint64_t segment, uint64_t offset, FrameKind kind, const std::string& payload) {
    FramePlace place;
    place.segment = segment;
    place.offset_bytes = offset;
    place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
    format::FrameHeader header;
    header.kind = kind;
    const std::string bytes = format::EncodeFrame(header, payload, 4096, &place.crc);
    auto file =
        disk_.files.Open(db::SegmentPath(kStorePath, segment), {.write = true, .create = true});
    EXPECT_TRUE(file.ok());
    EXPECT_OK((*file)->WriteAt(offset, AsBytes(bytes)));
    return place;
  }
  FramePlace Write(uint64_t segment, uint64_t offset, const Catalog& catalog) {
    return Write(segment, offset, FrameKind::kCatalog, format::EncodeCatalog(catalog));
  }
  Status Load(const FramePlace& place) {
    LogState state;
    return db::LoadCatalog(place, disk_.segments, &state);
  }
  static Catalog Base(uint64_t steps) {
    Catalog catalog;
    catalog.last_commit = steps;
    catalog.live_count = steps;
    for (uint64_t i = 1; i <= steps; ++i) {
      format::LiveCommit live;
      live.step.step = live.step.commit = i;
      live.place.length_bytes = 200;
      catalog.live.push_back(live);
    }
    return catalog;
  }

  CatalogDisk disk_;
};

TEST_F(HostileCatalogTest, LineagesThatMakeNoSenseAreDamage) {
  const FramePlace base = Write(5, 4096, Base(3));
  ASSERT_OK(Load(base));
  Catalog delta;
  delta.last_commit = 4;
  delta.live_count = 2;
  delta.previous = base;
  delta.gone = {2};
  ASSERT_OK(Load(Write(6, 4096, delta)));
  EXPECT_EQ(Load(Write(5, 8192, delta)).code(), StatusCode::kDataLoss) << "not a lower segment";
  EXPECT_EQ(Load(Write(4, 4096, delta)).code(), StatusCode::kDataLoss);
  delta.live_count = 3;
  EXPECT_EQ(Load(Write(7, 4096, delta)).code(), StatusCode::kDataLoss) << "one is missing";
  delta.live_count = 2;
  delta.last_commit = 2;
  EXPECT_EQ(Load(Write(8, 4096, delta)).code(), StatusCode::kDataLoss) << "older than its base";
  delta.last_commit = 4;
  delta.previous.segment = 3;
  EXPECT_EQ(Load(Write(9, 4096, delta)).code(), StatusCode::kNotFound);
}

TEST_F(HostileCatalogTest, PagesLieBehindTheirRootAndCountOnce) {
  Catalog entries = Base(3);
  entries.last_commit = entries.live_count = 0;
  const auto page = format::EncodeCatalogPage(entries);
  ASSERT_OK(page.status());
  const FramePlace place = Write(5, 8192, FrameKind::kCatalogPage, *page);
  const FramePlace elsewhere = Write(6, 8192, FrameKind::kCatalogPage, *page);
  Catalog root;
  root.last_commit = 3;
  root.live_count = 3;
  root.pages = {place};
  ASSERT_OK(Load(Write(5, 4096, root)));
  root.pages = {place, place};
  EXPECT_EQ(Load(Write(5, 4096, root)).code(), StatusCode::kDataLoss);
  root.pages = {elsewhere};
  EXPECT_EQ(Load(Write(5, 4096, root)).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace stepwell::sim
