// SPDX-License-Identifier: Apache-2.0
// Draws recovery's conclusions from damage beside frames that no durable mark names: a slot that is
// older than the log, as a power cut leaves it, and one bad byte or one lost file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/layout.h"
#include "db/log/segment_scan.h"
#include "format/frame.h"
#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_workload.h"

namespace stepwell::sim {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kSlotsPath = kStorePath + "/STEPWELL";
const OpenSpec kSmall = {.segment_bytes = uint64_t{24} << 10};
constexpr uint64_t kWithExtra = 100;  // a seed whose steps have the item "extra"
constexpr uint64_t kLong = 9;         // one whose steps take several small segments

class RecoveryTest : public ::testing::Test {
 protected:
  void Open(const OpenSpec& spec) {
    auto store = machine().Open(spec);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    store_ = std::move(*store);
  }
  void Save(uint64_t step, uint64_t seed) {
    const auto handle = SaveStep(store_.get(), step, seed);
    ASSERT_TRUE(handle.ok()) << handle.status().ToString();
    ASSERT_OK(handle->Wait());
  }
  // A step whose commit frame takes several blocks; returns its metadata.
  std::string SaveLongFrame(uint64_t step) {
    std::vector<std::vector<float>> scratch;
    const auto specs = SpecsOf(kTiny);
    scratch.reserve(specs.size());
    db::SaveRequest request = db::MakeRequest(step, kTiny, specs, &scratch);
    request.metadata_json = "\"" + std::string(20'000, 'm') + "\"";
    const auto handle = store_->Save(request);
    EXPECT_OK(handle.status());
    EXPECT_OK(handle->Wait());
    return request.metadata_json;
  }
  std::string Slots() const { return *world_->Contents(kSlotsPath); }
  // The process is killed; STEPWELL is as it once was.
  void Kill(const std::optional<std::string>& slots) {
    const auto image = world_->CrashImageProcessKill(1);
    world_->FreezeNow();
    store_.reset();
    machine_.reset();
    world_ = image;
    if (slots) {
      ASSERT_TRUE(world_->Poke(kSlotsPath, 0, AsBytes(*slots)));
    }
  }
  std::vector<format::ChunkRecord> ChunksOf(uint64_t step) {
    std::vector<format::ChunkRecord> chunks;
    const auto reader = store_->Read(step);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    const auto leaves = (*reader)->Leaves(format::EncodeItem("state"));
    for (const auto& leaf : *leaves) {
      chunks.insert(chunks.end(), leaf.chunks.begin(), leaf.chunks.end());
    }
    return chunks;
  }
  // A segment of the step that has payloads, but no chain frame, and with it no copy of its header;
  // and where its seal begins.
  std::optional<std::pair<uint64_t, uint64_t>> WithoutFrames(uint64_t step) {
    SimFileSystem file_system(world_);
    db::SegmentFiles files(&file_system, kStorePath);
    for (const auto& chunk : ChunksOf(step)) {
      db::SegmentInfo info;
      info.segment = chunk.segment;
      info.length_bytes = world_->Contents(files.PathOf(chunk.segment))->size();
      const auto file = files.Get(chunk.segment);
      const auto header = db::ReadSegmentHeader(**file, chunk.segment, info.length_bytes);
      EXPECT_TRUE(header.ok()) << header.status().ToString();
      info.nonce = header->nonce;
      db::SegmentScan scan;
      EXPECT_OK(db::ScanSegment(info, files, &scan));
      if (!scan.frames.empty()) continue;
      const auto trailer = db::ReadTrailer(info, files);
      return std::pair(chunk.segment,
                       trailer.ok() ? trailer->footer.offset_bytes : info.length_bytes);
    }
    return std::nullopt;
  }
  void Damage(uint64_t segment, uint64_t offset) {
    ASSERT_TRUE(world_->FlipBit(db::SegmentPath(kStorePath, segment), offset, 3));
  }
  bool IsSealed(uint64_t segment) const {
    const std::string bytes = *world_->Contents(db::SegmentPath(kStorePath, segment));
    const auto header = format::DecodeFrameHeader(
        AsBytes(bytes).subspan(bytes.size() - 4096, format::kFrameHeaderBytes));
    return header.ok() && header->kind == format::FrameKind::kTrailer;
  }
  StoreMachine& machine() {
    if (machine_ == nullptr) machine_ = std::make_unique<StoreMachine>(world_, ++machines_);
    return *machine_;
  }

  std::shared_ptr<SimWorld> world_ = SimWorld::Make({7, kUnlimitedBytes});
  uint64_t machines_ = 0;
  std::unique_ptr<StoreMachine> machine_;
  std::unique_ptr<db::Store> store_;
};

// A step is committed again where it lies: its payloads are older than the frame that is in doubt.
TEST_F(RecoveryTest, AnOldPayloadThatIsDamagedIsNoTear) {
  Open({});
  Save(10, kWithExtra);
  const auto chunk = ChunksOf(10).front();
  const std::string slots = Slots();
  const std::vector<std::string> extra = {"extra"};
  ASSERT_OK(store_->DeleteItems(10, extra));
  Kill(slots);
  Damage(chunk.segment, chunk.offset_bytes);
  for (const bool read_only : {true, false}) {
    Open({.read_only = read_only});
    EXPECT_EQ(store_->recovery().commits_rejected, 0U);
    const auto reader = store_->Read(10);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    EXPECT_EQ((*reader)->step().items.size(), 1U) << "the deleted item is back";
    EXPECT_EQ(CheckStep(reader->get(), kWithExtra).code(), StatusCode::kDataLoss);
  }
}

// The contents of a sealed segment were flushed before it was sealed.
TEST_F(RecoveryTest, ADamagedPayloadInASealedSegmentIsNoTear) {
  Open(kSmall);
  Save(10, 1);
  const std::string slots = Slots();
  Save(11, kLong);
  const auto chunks = ChunksOf(11);
  Kill(slots);
  const auto sealed = std::find_if(chunks.begin(), chunks.end(),
                                   [&](const auto& chunk) { return IsSealed(chunk.segment); });
  ASSERT_NE(sealed, chunks.end());
  Damage(sealed->segment, sealed->offset_bytes);
  for (const bool read_only : {true, false}) {
    Open({.read_only = read_only});
    EXPECT_EQ(store_->recovery().commits_rejected, 0U);
    EXPECT_EQ(CheckStep(store_.get(), 11, HeldOf(kLong)).code(), StatusCode::kDataLoss);
  }
}

// Changes that share a flush, so that no frame says of another that it was flushed. STEPWELL is
// older than what was erased then, or its newest slot cannot be read: the frame that ended a step
// counts although nothing is left of the step.
TEST_F(RecoveryTest, AStepThatTheChainEndedNeedsNoPayloads) {
  constexpr uint64_t kHeld = 31;
  std::string slots;
  const auto save = [&] {
    Open({});
    Save(10, 1);
    slots = Slots();
    ASSERT_OK(SaveStep(store_.get(), 20, kLarge).status());  // those behind it wait for it
    ASSERT_OK(SaveStep(store_.get(), 11, 5).status());
  };
  save();
  ASSERT_OK(store_->Wait());
  const auto replaced = ChunksOf(11).front();
  store_.reset();
  machine_.reset();
  machines_ = 0;
  world_ = SimWorld::Make({7, kUnlimitedBytes});
  save();  // the same once more
  ASSERT_OK(SaveStep(store_.get(), 11, kHeld, db::IfExists::kReplace).status());
  ASSERT_OK(store_->Wait());
  Kill(slots);
  Damage(replaced.segment, replaced.offset_bytes);
  for (const bool read_only : {true, false}) {
    Open({.read_only = read_only});
    EXPECT_EQ(store_->recovery().commits_rejected, 0U);
    EXPECT_THAT(db::StepNumbers(store_.get()), ElementsAre(10, 11, 20));
    EXPECT_OK(CheckStep(store_.get(), 11, HeldOf(kHeld)));
  }
}

// The power is cut at each operation of a save, its replacement and a reclaim; STEPWELL is as it
// was last synced. An acknowledged replacement is there.
TEST_F(RecoveryTest, AnAcknowledgedReplacementSurvivesEachCut) {
  uint64_t acknowledged = 0;
  for (uint64_t stop = 1, ended = 0; ended == 0; ++stop) {
    store_.reset();
    machine_.reset();
    world_ = SimWorld::Make({7, kUnlimitedBytes});
    Open(kSmall);
    Save(10, 1);
    world_->FreezeAt(world_->mutating_ops() + stop);
    SaveStep(store_.get(), 20, kTiny).status().IgnoreError("cut off");
    SaveStep(store_.get(), 11, kLong).status().IgnoreError("cut off");
    const auto second = SaveStep(store_.get(), 11, 4, db::IfExists::kReplace);
    store_->Wait().IgnoreError("cut off");
    store_->Reclaim().status().IgnoreError("cut off");
    ended = world_->frozen() ? 0 : 1;
    if (!second.ok() || !second->done() || !second->status().ok()) continue;
    ++acknowledged;
    const Steps steps = {{10, HeldOf(1)}, {11, HeldOf(4)}, {20, HeldOf(kTiny)}};
    EXPECT_EQ(CheckImage(OldSlotImageOf(*world_, stop), {steps}, {stop, false, 0}), "")
        << "cut off at operation " << stop;
  }
  EXPECT_GT(acknowledged, 3U);
}

TEST_F(RecoveryTest, ATornStepThatTheChainKeepsEndsIt) {
  Open({});
  Save(10, 1);
  const std::string slots = Slots();
  ASSERT_OK(SaveStep(store_.get(), 20, kLarge).status());
  ASSERT_OK(SaveStep(store_.get(), 11, 5).status());
  ASSERT_OK(SaveStep(store_.get(), 12, 31).status());
  ASSERT_OK(store_->Wait());
  const auto torn = ChunksOf(11).front();
  Kill(slots);
  Damage(torn.segment, torn.offset_bytes);
  for (const bool read_only : {true, false}) {
    Open({.read_only = read_only});
    EXPECT_EQ(store_->recovery().commits_rejected, 2U);
    EXPECT_THAT(db::StepNumbers(store_.get()), ElementsAre(10, 20));
  }
}

// A power cut kept the header of a payload segment from the disk; all else of the step arrived. The
// writer writes the header again, and no open reports damage.
TEST_F(RecoveryTest, AHeaderThatDidNotArriveIsWritten) {
  Open(kSmall);
  std::string slots;
  uint64_t step = 9;
  std::optional<std::pair<uint64_t, uint64_t>> payloads_only;
  while (!payloads_only && step < 200) {
    slots = Slots();
    ++step;
    Save(step, step);
    payloads_only = WithoutFrames(step);
  }
  ASSERT_TRUE(payloads_only);
  Kill(slots);
  // Neither the header nor the seal reached the disk.
  const std::string file = db::SegmentPath(kStorePath, payloads_only->first);
  const uint64_t end = payloads_only->second;
  const uint64_t size = world_->Contents(file)->size();
  ASSERT_TRUE(world_->Poke(file, 0, AsBytes(std::string(4096, '\0'))));
  ASSERT_TRUE(world_->Poke(file, end, AsBytes(std::string(size - end, '\0'))));
  for (const OpenSpec& spec : {OpenSpec{.read_only = true}, kSmall, kSmall}) {
    Open(spec);
    EXPECT_THAT(store_->recovery().problems, IsEmpty());
    EXPECT_OK(CheckStep(store_.get(), step, HeldOf(step)));
    EXPECT_THAT(store_->Verify({})->problems, IsEmpty());
    if (!spec.read_only) Kill(std::nullopt);
  }
  // In a durable step this is damage.
  ASSERT_TRUE(world_->FlipBit(file, 40, 3));
  Open(kSmall);
  EXPECT_THAT(store_->recovery().problems, ElementsAre(HasSubstr("header is damaged")));
  EXPECT_OK(CheckStep(store_.get(), step, HeldOf(step)));
}

// The frames that took a rejected frame's number are lost with their file: it stays rejected.
TEST_F(RecoveryTest, ARejectedFrameDoesNotComeBack) {
  Open(kSmall);
  Save(10, 1);
  const std::string slots = Slots();
  Save(11, kLong);
  const auto chunks = ChunksOf(11);
  Kill(slots);
  // Neither the payload nor the seal reached the disk.
  const std::string file = db::SegmentPath(kStorePath, chunks.front().segment);
  Damage(chunks.front().segment, chunks.front().offset_bytes);
  const uint64_t size = world_->Contents(file)->size();
  ASSERT_TRUE(world_->Poke(file, size - 4096, AsBytes(std::string(4096, '\0'))));
  Open(kSmall);
  EXPECT_EQ(store_->recovery().commits_rejected, 1U);
  EXPECT_THAT(db::StepNumbers(store_.get()), Not(Contains(11)));
  Save(12, kTiny);
  const uint64_t segment = ChunksOf(12).front().segment;
  Kill(std::nullopt);
  EXPECT_OK(SimFileSystem(world_).Remove(db::SegmentPath(kStorePath, segment)));
  for (const bool read_only : {true, false}) {
    Open({.read_only = read_only});
    EXPECT_THAT(db::StepNumbers(store_.get()), Not(Contains(11)));
    EXPECT_FALSE(store_->Verify({})->problems.empty());
  }
}

// A frame's copy lies behind the next one, which may be the last of a segment that is then sealed.
TEST_F(RecoveryTest, CopiesOutliveTheSealOfAKilledWritersSegment) {
  Open({});
  Save(9, 1);
  const std::string metadata = SaveLongFrame(10);
  const auto steps = store_->Steps();
  const auto& extent = steps->back().extents.back();
  ASSERT_OK(store_->Delete(std::vector<uint64_t>{9}));
  Kill(std::nullopt);
  Open({});
  ASSERT_OK(store_->Close());
  Damage(extent.segment, extent.end_bytes - 12'000);  // in the frame of step 10, its end
  Open({.read_only = true});
  const auto reader = store_->Read(10);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ((*reader)->step().metadata_json, metadata);
}

// Also those behind a damaged one.
TEST_F(RecoveryTest, ADamagedCopyCostsNoOther) {
  // The end of the segment's first frame, and the copies behind it.
  const auto behind_first = [&](uint64_t segment) {
    SimFileSystem file_system(world_);
    db::SegmentFiles files(&file_system, kStorePath);
    const auto frames = db::ListFrames(files, segment);
    EXPECT_TRUE(frames.ok()) << frames.status().ToString();
    const auto& place = frames->places.front();
    const auto copies = db::ReadCopiesBehind(**files.Get(segment), place, frames->nonce);
    EXPECT_TRUE(copies.ok()) << copies.status().ToString();
    return std::pair(place.offset_bytes + place.length_bytes, *copies);
  };
  Open(kSmall);
  Save(9, kTiny);
  SaveLongFrame(10);
  ASSERT_OK(store_->Delete(std::vector<uint64_t>{9}));
  const uint64_t segment = CountSegments(*world_);  // the last one: none was removed
  Kill(std::nullopt);
  const auto [end, copies] = behind_first(segment);
  uint64_t at = AlignUp(end, format::kCopyAlignment);
  size_t longest = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    if (copies[i].bytes.size() > copies[longest].bytes.size()) longest = i;
  }
  for (size_t i = 0; i < longest; ++i) at += format::FrameCopySpace(copies[i].bytes.size());
  ASSERT_LT(longest + 1, copies.size()) << "none follows";
  Damage(segment, at + format::kCopyHeaderBytes + 20);
  EXPECT_EQ(behind_first(segment).second.size(), copies.size() - 1);
  Open(kSmall);
  Kill(std::nullopt);
  EXPECT_TRUE(IsSealed(segment));
  EXPECT_EQ(behind_first(segment).second.size(), copies.size() - 1);
}

// Those that open makes, and those that an open made that was killed at once.
TEST(NewStoreTest, DirectoriesAboveItSurviveEachCut) {
  for (const bool made_before : {false, true}) {
    const auto world = SimWorld::Make({1, kUnlimitedBytes});
    if (made_before) {
      SimFileSystem files(world);
      ASSERT_OK(files.CreateDirectory("/runs"));
      ASSERT_OK(files.CreateDirectory("/runs/a"));
    }
    StoreMachine machine(world, 1);
    const OpenSpec spec{.path = "/runs/a/store"};
    auto store = machine.Open(spec);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    const auto handle = SaveStep(store->get(), 7, 1);
    ASSERT_OK(handle.status());
    ASSERT_OK(handle->Wait());
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      const auto names = static_cast<NameLoss>(seed % 3);
      StoreMachine after(world->Crash({.seed = seed, .odds = {}, .names = names}), seed);
      const auto again = after.Open(spec);
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      EXPECT_OK(CheckStep(again->get(), 7, HeldOf(1)));
    }
  }
}

}  // namespace
}  // namespace stepwell::sim
