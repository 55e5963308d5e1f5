// SPDX-License-Identifier: Apache-2.0
// Frames with right checksums and other contents than the engine writes: one field of one frame
// after the other. Such a store may be refused, and may give what was saved once; it gives no value
// that was never saved, and it ends, without a crash. (Who can compute a CRC can forge a store.)
//
// STEPWELL_SIM_SEED chooses other values.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>

#include "format/frame.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

using format::FrameHeader;
using format::FrameKind;

constexpr uint64_t kFrameBlock = 4096;
constexpr uint64_t kFar = uint64_t{1} << 32;
constexpr FrameKind kKinds[] = {
    FrameKind::kSegmentHeader, FrameKind::kCatalog, FrameKind::kEpoch,    FrameKind::kRecords,
    FrameKind::kCommit,        FrameKind::kDelete,  FrameKind::kMeta,     FrameKind::kFooter,
    FrameKind::kTrailer,       FrameKind::kDecided, FrameKind::kPrepared, FrameKind::kCatalogPage,
    FrameKind::kLoss};

struct FoundFrame {
  std::string path;
  uint64_t offset = 0;
  FrameHeader header;
  std::string payload;
};

// A small store of several segments, with steps replaced, deleted and pinned; not closed.
std::shared_ptr<SimWorld> MakeStore(bool closed, uint64_t segment_bytes = uint64_t{48} << 10) {
  const auto world = SimWorld::Make({11, kUnlimitedBytes});
  StoreMachine machine(world, 11);
  auto store = *machine.Open({.segment_bytes = segment_bytes});
  for (uint64_t step = 0; step < 12; ++step) {
    EXPECT_TRUE(SaveStep(store.get(), step, step % 3 == 0 ? step : kTiny | step)->Wait().ok());
  }
  EXPECT_TRUE(SaveStep(store.get(), 3, kTiny | 50, db::IfExists::kReplace)->Wait().ok());
  EXPECT_TRUE(store->Delete(std::vector<uint64_t>{1, 4}).ok());
  EXPECT_TRUE(store->SetPinned(std::vector<uint64_t>{2}, true).ok());
  if (closed) {
    EXPECT_TRUE(store->Close().ok());
  }
  return world->CrashImageProcessKill(1);
}

std::vector<FoundFrame> FramesOf(const SimWorld& world) {
  std::vector<FoundFrame> frames;
  for (const auto& [path, size] : world.Files()) {
    if (!path.ends_with(".seg")) continue;
    const std::string bytes = *world.Contents(path);
    for (uint64_t at = 0; at + kFrameBlock <= bytes.size(); at += kFrameBlock) {
      const auto header =
          format::DecodeFrameHeader(AsBytes(bytes).subspan(at, format::kFrameHeaderBytes));
      if (!header.ok()) continue;
      const std::string payload =
          bytes.substr(at + format::kFrameHeaderBytes, header->payload_bytes);
      frames.push_back({path, at, *header, payload});
    }
  }
  return frames;
}

const std::string kSlotPath = "/store/STEPWELL";

format::StoreSlot NewestSlot(const SimWorld& world) {
  const std::string bytes = *world.Contents(kSlotPath);
  format::StoreSlot newest;
  for (size_t i = 0; i < format::kSlotCount; ++i) {
    const auto slot =
        format::DecodeSlot(AsBytes(bytes).subspan(i * format::kSlotBytes, format::kSlotBytes));
    if (slot.ok() && slot->sequence > newest.sequence) newest = *slot;
  }
  return newest;
}

void PokeSlots(SimWorld* world, format::StoreSlot slot) {
  slot.tip.clear();
  for (size_t i = 0; i < format::kSlotCount; ++i) {
    ++slot.sequence;
    world->Poke(kSlotPath, i * format::kSlotBytes, format::EncodeSlot(slot));
  }
}

format::FramePlace PlaceOf(const FoundFrame& found, const FrameHeader& header,
                           const std::string& payload) {
  format::FramePlace place;
  place.segment = std::stoull(found.path.substr(found.path.rfind('/') + 1));
  place.offset_bytes = found.offset;
  place.length_bytes = static_cast<uint32_t>(format::kFrameHeaderBytes + payload.size());
  format::EncodeFrame(header, payload, kFrameBlock, &place.crc);
  return place;
}

// Other contents in a frame, and all that names it made right again: the frames behind it, and the
// slots.
void Forge(SimWorld* world, const FoundFrame& found, const std::string& payload) {
  std::map<uint64_t, FoundFrame> chain;  // by commit
  for (const FoundFrame& frame : FramesOf(*world)) {
    if (format::IsChainFrame(frame.header.kind)) chain.emplace(frame.header.commit, frame);
  }
  format::StoreSlot slot = NewestSlot(*world);
  format::FramePlace place;
  for (auto it = chain.find(found.header.commit); it != chain.end(); ++it) {
    FoundFrame& frame = it->second;
    if (place.length_bytes == 0) frame.payload = payload;
    if (place.length_bytes != 0) frame.header.previous = place;
    place = PlaceOf(frame, frame.header, frame.payload);
    uint32_t crc = 0;
    world->Poke(frame.path, frame.offset,
                AsBytes(format::EncodeFrame(frame.header, frame.payload, kFrameBlock, &crc)));
    if (it->first == slot.durable_commit) slot.durable_place = place;
  }
  PokeSlots(world, slot);
}

class CraftedFramesTest : public ::testing::TestWithParam<bool> {
 protected:
  // The store with that frame in place of the one found there.
  void Expect(const FoundFrame& found, const FrameHeader& header, const std::string& payload,
              const std::string& what) {
    const auto world = world_->CrashImageProcessKill(1);
    uint32_t crc = 0;
    const std::string frame = format::EncodeFrame(header, payload, kFrameBlock, &crc);
    world->Poke(found.path, found.offset, AsBytes(frame));
    ++cases_;
    for (const bool read_only : {true, false}) {
      StoreMachine machine(world, 2);
      const auto store = machine.Open({.read_only = read_only});
      opened_ += store.ok() ? 1 : 0;
      if (!store.ok()) continue;
      // ReadAll finds nothing wrong in a save. A step that is read under another's number is not
      // one of the saves.
      const auto seen = ReadAll(store->get());
      EXPECT_NE(seen.status().code(), StatusCode::kInternal)
          << what << " of the frame at " << found.path << " + " << found.offset << ": "
          << seen.status().ToString();
      (void)(*store)->Verify({});
      (*store)->Close().IgnoreError("it is damaged");
    }
  }

  const std::shared_ptr<SimWorld> world_ = MakeStore(GetParam());
  uint64_t cases_ = 0;
  uint64_t opened_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Stores, CraftedFramesTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Closed" : "Killed"; });

TEST_P(CraftedFramesTest, OtherHeaders) {
  const std::vector<FoundFrame> frames = FramesOf(*world_);
  Prng prng(5);
  for (const FoundFrame& found : frames) {
    const FoundFrame& other = frames[prng.Below(frames.size())];
    const std::vector<std::pair<const char*, std::function<void(FrameHeader*)>>> changes = {
        {"a later commit", [](FrameHeader* header) { ++header->commit; }},
        {"a commit far away", [](FrameHeader* header) { header->commit += uint64_t{1} << 40; }},
        {"no commit", [](FrameHeader* header) { header->commit = 0; }},
        {"a later epoch", [](FrameHeader* header) { ++header->epoch; }},
        {"no epoch", [](FrameHeader* header) { header->epoch = 0; }},
        {"another predecessor's number", [](FrameHeader* header) { ++header->previous_commit; }},
        {"no predecessor", [](FrameHeader* header) { header->previous = {}; }},
        {"itself as its predecessor",
         [&](FrameHeader* header) { header->previous.offset_bytes = found.offset; }},
        {"another predecessor",
         [&](FrameHeader* header) { header->previous = other.header.previous; }},
        {"a durable commit to come", [](FrameHeader* header) { header->durable_through += 100; }},
        {"the nonce of another segment", [](FrameHeader* header) { ++header->nonce[3]; }},
    };
    for (const auto& [what, change] : changes) {
      FrameHeader header = found.header;
      change(&header);
      Expect(found, header, found.payload, what);
    }
    FrameHeader header = found.header;
    header.kind = kKinds[prng.Below(std::size(kKinds))];
    Expect(found, header, found.payload, "another kind");
    Expect(found, other.header, other.payload.substr(0, kFrameBlock - format::kFrameHeaderBytes),
           "another frame in place");
  }
  std::cout << cases_ << " frames, " << opened_ << " of " << 2 * cases_ << " opened\n";
}

TEST_P(CraftedFramesTest, OtherContents) {
  const std::vector<FoundFrame> frames = FramesOf(*world_);
  Prng prng(6);
  for (const FoundFrame& found : frames) {
    const auto expect = [&](const std::string& payload, const std::string& what) {
      if (payload.size() <= found.payload.size() + kFrameBlock / 2) {
        Expect(found, found.header, payload, what);
      }
    };
    const ConstBytes bytes = AsBytes(found.payload);
    expect("", "no contents");
    expect(found.payload.substr(0, found.payload.size() / 2 / 8 * 8), "half of the contents");
    switch (found.header.kind) {
      case FrameKind::kSegmentHeader: {
        auto header = *format::DecodeSegmentHeader(bytes);
        ++header.nonce[0];
        expect(format::EncodeSegmentHeader(header), "a header of two nonces");
        header = *format::DecodeSegmentHeader(bytes);
        ++header.segment;
        expect(format::EncodeSegmentHeader(header), "another segment's header");
        header = *format::DecodeSegmentHeader(bytes);
        ++header.store_id[0];
        expect(format::EncodeSegmentHeader(header), "another store's header");
        break;
      }
      case FrameKind::kFooter: {
        const auto footer = *format::DecodeFooter(bytes);
        for (size_t i = 0; i < footer.frames.size(); ++i) {
          auto changed = footer;
          changed.frames[i].place.offset_bytes = kFrameBlock * prng.Below(20);
          expect(format::EncodeFooter(changed), "a footer that names another place");
          changed = footer;
          ++changed.frames[i].place.segment;
          expect(format::EncodeFooter(changed), "a footer that names another segment");
          changed = footer;
          changed.frames.push_back(changed.frames[i]);
          expect(format::EncodeFooter(changed), "a footer that names a frame twice");
          changed = footer;
          changed.frames.erase(changed.frames.begin() + static_cast<std::ptrdiff_t>(i));
          expect(format::EncodeFooter(changed), "a footer without a frame");
        }
        break;
      }
      case FrameKind::kTrailer: {
        auto trailer = *format::DecodeTrailer(bytes);
        ++trailer.footer.segment;
        expect(format::EncodeTrailer(trailer), "a trailer of another segment's footer");
        trailer = *format::DecodeTrailer(bytes);
        trailer.footer.offset_bytes = kFrameBlock * prng.Below(20);
        expect(format::EncodeTrailer(trailer), "a trailer whose footer is elsewhere");
        trailer = *format::DecodeTrailer(bytes);
        trailer.commit_max = trailer.commit_max / 2;
        expect(format::EncodeTrailer(trailer), "a trailer that knows fewer commits");
        break;
      }
      case FrameKind::kCatalog: {
        const auto catalog = *format::DecodeCatalog(bytes);
        auto changed = catalog;
        changed.previous = found.header.previous;
        expect(format::EncodeCatalog(changed), "a catalog with another base");
        changed = catalog;
        ++changed.last_commit;
        expect(format::EncodeCatalog(changed), "a catalog of a later commit");
        changed = catalog;
        changed.live_count += 1;
        expect(format::EncodeCatalog(changed), "a catalog that counts wrong");
        changed = catalog;
        changed.gone = {1, 2, 3, 99};
        expect(format::EncodeCatalog(changed), "a catalog without some commits");
        changed = catalog;
        if (!changed.live.empty()) changed.live.push_back(changed.live.front());
        expect(format::EncodeCatalog(changed), "a catalog with a step twice");
        changed = catalog;
        changed.pages.push_back(changed.last_place);
        expect(format::EncodeCatalog(changed), "a catalog with a page that is none");
        for (size_t i = 0; i < catalog.segments.size(); ++i) {
          changed = catalog;
          changed.segments[i].length_bytes = kFrameBlock;
          expect(format::EncodeCatalog(changed), "a catalog that cuts a segment");
          changed.segments[i].segment += 50;
          expect(format::EncodeCatalog(changed), "a catalog with a segment that is not there");
        }
        break;
      }
      case FrameKind::kCommit: {
        const auto commit = *format::DecodeCommit(bytes);
        auto changed = commit;
        changed.kills = {prng.Below(16), commit.step.commit, 1000};
        expect(format::EncodeCommit(changed), "a commit that ends others");
        changed = commit;
        ++changed.step.commit;
        expect(format::EncodeCommit(changed), "a commit of two numbers");
        for (auto* value : {&changed.step.leaf_count, &changed.step.chunk_count,
                            &changed.step.logical_bytes, &changed.step.stored_bytes}) {
          changed = commit;
          *value += 1;
          expect(format::EncodeCommit(changed), "a commit that counts wrong");
        }
        changed = commit;
        changed.step.extents.clear();
        expect(format::EncodeCommit(changed), "a commit without its segments");
        changed = commit;
        changed.records.clear();
        expect(format::EncodeCommit(changed), "a commit without its records");
        for (size_t i = 0; i < commit.records.size(); ++i) {
          for (size_t k = 0; k < commit.records[i].chunks.size(); ++k) {
            changed = commit;
            changed.records[i].chunks[k].offset_bytes += kFrameBlock;
            expect(format::EncodeCommit(changed), "a commit whose chunk is elsewhere");
            changed = commit;
            changed.records[i].chunks[k].segment += 1;
            expect(format::EncodeCommit(changed), "a commit whose chunk is in another segment");
          }
        }
        break;
      }
      case FrameKind::kEpoch: {
        auto epoch = *format::DecodeEpoch(bytes);
        ++epoch.last_commit;
        expect(format::EncodeEpoch(epoch), "an epoch that begins later");
        epoch.epoch += 5;
        expect(format::EncodeEpoch(epoch), "an epoch of two numbers");
        break;
      }
      default:
        break;
    }
  }
  std::cout << cases_ << " frames, " << opened_ << " of " << 2 * cases_ << " opened\n";
}

// An open writes behind the last bytes of a segment, but not beyond the segment's end.
TEST(CraftedFrames, ACommitThatEndsFarBehindItsSegment) {
  const auto killed = MakeStore(/*closed=*/false, /*segment_bytes=*/1U << 20);  // it is not sealed
  size_t opened = 0;
  for (const FoundFrame& found : FramesOf(*killed)) {
    if (found.header.kind != FrameKind::kCommit) continue;
    auto commit = *format::DecodeCommit(AsBytes(found.payload));
    for (auto& extent : commit.step.extents) extent.end_bytes += kFar;
    const auto world = killed->CrashImageProcessKill(1);
    Forge(world.get(), found, format::EncodeCommit(commit));
    StoreMachine machine(world, 2);
    const auto store = machine.Open({});
    opened += store.ok() ? 1 : 0;
    for (const auto& [path, size] : world->Files()) EXPECT_LT(size, kFar) << path;
  }
  EXPECT_GT(opened, 0U);
}

// A directory and another store's segment that have names of segments.
TEST_P(CraftedFramesTest, OtherFiles) {
  const auto other = MakeStore(true);
  const auto world = world_->CrashImageProcessKill(1);
  SimFileSystem files(world);
  EXPECT_TRUE(files.CreateDirectory(kStorePath + "/segments/0000000077.seg").ok());
  for (const auto& [path, size] : other->Files()) {
    if (!path.ends_with("0000000002.seg")) continue;
    const std::string bytes = *other->Contents(path);
    auto file = *files.Open(kStorePath + "/segments/0000000078.seg",
                            {.write = true, .create = true, .exclusive = true});
    EXPECT_TRUE(file->WriteAt(0, AsBytes(bytes)).ok());
  }
  Steps before;
  {
    StoreMachine machine(world_->CrashImageProcessKill(1), 3);
    before = *ReadAll(machine.Open({})->get());
  }
  for (const bool read_only : {true, false, true}) {
    StoreMachine machine(world, 4);
    const auto store = machine.Open({.read_only = read_only});
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto seen = ReadAll(store->get());
    ASSERT_TRUE(seen.ok()) << seen.status().ToString();
    EXPECT_EQ(*seen, before);
    EXPECT_TRUE((*store)->recovery().problems.empty()) << (*store)->recovery().problems.front();
  }
}

// STEPWELL with right checksums that points elsewhere. The log knows better, or the open says so.
TEST_P(CraftedFramesTest, Slots) {
  const format::StoreSlot newest = NewestSlot(*world_);
  ASSERT_GT(newest.sequence, 0U);
  Steps before;
  {
    StoreMachine machine(world_->CrashImageProcessKill(1), 3);
    before = *ReadAll(machine.Open({})->get());
  }
  const auto expect = [&](format::StoreSlot slot, const std::string& what) {
    const auto world = world_->CrashImageProcessKill(1);
    PokeSlots(world.get(), std::move(slot));
    ++cases_;
    for (const bool read_only : {true, false}) {
      StoreMachine machine(world, 2);
      const auto store = machine.Open({.read_only = read_only});
      if (!store.ok()) continue;
      ++opened_;
      const auto seen = ReadAll(store->get());
      if (!seen.ok()) {
        EXPECT_NE(seen.status().code(), StatusCode::kInternal) << what << seen.status().ToString();
      } else if ((*store)->recovery().problems.empty()) {
        EXPECT_EQ(*seen, before) << what;
      }
    }
  };
  for (const bool clean : {true, false}) {
    format::StoreSlot slot = newest;
    slot.clean = clean;
    for (const int64_t by : {-3, -1, 1, 1000}) {
      slot.durable_commit = newest.durable_commit + static_cast<uint64_t>(by);
      expect(slot, StrCat("durable commit ", by, clean ? ", clean: " : ": "));
    }
    slot.durable_commit = newest.durable_commit;
    for (const FoundFrame& found : FramesOf(*world_)) {
      const format::FramePlace place = PlaceOf(found, found.header, found.payload);
      const std::string what =
          StrCat(" at ", found.path, " + ", found.offset, clean ? ", clean: " : ": ");
      slot.durable_place = place;
      expect(slot, "durable place" + what);
      slot.durable_commit = found.header.commit;
      expect(slot, "durable place and commit" + what);
      slot.durable_commit = newest.durable_commit;
      slot.durable_place = newest.durable_place;
      slot.catalog_place = place;
      expect(slot, "catalog place" + what);
      slot.catalog_place = newest.catalog_place;
    }
  }
  std::cout << cases_ << " slots, " << opened_ << " of " << 2 * cases_ << " opened\n";
}

}  // namespace
}  // namespace stepwell::sim
