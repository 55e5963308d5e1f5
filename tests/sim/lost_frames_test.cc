// SPDX-License-Identifier: Apache-2.0
// Chain frames that are gone together with their copies: the loss is named until it is accepted,
// and no step that a lost frame may have ended is served.
#include <gtest/gtest.h>

#include <iostream>

#include "format/endian.h"
#include "format/frame.h"
#include "tests/sim/support/damage_sample.h"

namespace stepwell::sim {
namespace {

constexpr char kSlotFile[] = "/store/STEPWELL";

struct ChainFrame {
  std::string path;
  uint64_t segment = 0;
  uint64_t offset = 0;
  format::FrameHeader header;
};

// Ascending by commit.
std::vector<ChainFrame> ChainOf(const SimWorld& world) {
  std::map<uint64_t, ChainFrame> frames;
  for (const auto& [path, size] : world.Files()) {
    if (!path.ends_with(".seg")) continue;
    const std::string bytes = *world.Contents(path);
    const uint64_t segment = std::stoull(path.substr(path.rfind('/') + 1));
    for (uint64_t at = 0; at + kBlock <= bytes.size(); at += kBlock) {
      const auto header =
          format::DecodeFrameHeader(AsBytes(bytes).subspan(at, format::kFrameHeaderBytes));
      if (!header.ok() || !format::IsChainFrame(header->kind)) continue;
      frames[header->commit] = {path, segment, at, *header};
    }
  }
  std::vector<ChainFrame> chain;
  for (auto& [commit, frame] : frames) chain.push_back(std::move(frame));
  return chain;
}

// The frame, its copies behind other frames, and that in STEPWELL.
void Destroy(SimWorld* world, const ChainFrame& frame) {
  constexpr std::string_view kMagic("\x89SWCOPY\n", 8);
  const std::string zeros(8, '\0');
  ASSERT_TRUE(world->Poke(frame.path, frame.offset, AsBytes(zeros)));
  for (const auto& [path, size] : world->Files()) {
    if (!path.ends_with(".seg")) continue;
    const std::string bytes = *world->Contents(path);
    for (size_t at = bytes.find(kMagic); at != std::string::npos; at = bytes.find(kMagic, at + 1)) {
      if (at + 32 > bytes.size()) break;
      const auto* place = AsBytes(bytes).data() + at + 16;
      if (format::LoadLittle<uint64_t>(place) != frame.segment) continue;
      if (format::LoadLittle<uint64_t>(place + 8) != frame.offset) continue;
      ASSERT_TRUE(world->Poke(path, at, AsBytes(zeros)));
    }
  }
  const std::string slots = *world->Contents(kSlotFile);
  for (uint64_t at = 0; at < slots.size(); at += format::kSlotBytes) {
    auto slot = format::DecodeSlot(AsBytes(slots).subspan(at, format::kSlotBytes));
    if (!slot.ok() || slot->durable_commit != frame.header.commit) continue;
    slot->tip.clear();
    ASSERT_TRUE(world->Poke(kSlotFile, at, format::EncodeSlot(*slot)));
  }
}

class LostFramesTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::shared_ptr<SimWorld> Without(const std::vector<ChainFrame>& frames) const {
    auto world = sample_.world->CrashImageProcessKill(1);
    for (const ChainFrame& frame : frames) Destroy(world.get(), frame);
    return world;
  }

  // Opens the store for writing, repairs it (steps of earlier sessions, which the catalog has, lose
  // their records only), saves, and looks again: what is wrong without a word fails. Whether the
  // loss was said each time.
  bool IsNamed(const std::shared_ptr<SimWorld>& world) const {
    Steps wanted = sample_.wanted;
    bool named = true;
    for (const bool read_only : {false, true, false}) {
      StoreMachine machine(world, 2);
      std::unique_ptr<db::Store> store;
      bool whole = false;
      EXPECT_EQ(
          Look(&machine, wanted, {.with_index = true, .read_only = read_only}, &whole, &store), "");
      if (store == nullptr) return true;  // a refused open says so, too
      named = named && !store->recovery().problems.empty();
      if (read_only || wanted.contains(kNewStep)) continue;
      EXPECT_TRUE(store->Repair(/*accept_losses=*/false).ok());
      const auto handle = SaveStep(store.get(), kNewStep, SmallSeed(1000));
      EXPECT_TRUE(handle.ok() && handle->Wait().ok());
      wanted[kNewStep] = HeldOf(SmallSeed(1000));
      EXPECT_TRUE(store->Close().ok());
    }
    return named;
  }

  const Sample sample_ = MakeSample({GetParam(), /*clean=*/true, /*with_index=*/true});
  const std::vector<ChainFrame> chain_ = ChainOf(*sample_.world);
};

INSTANTIATE_TEST_SUITE_P(Sessions, LostFramesTest, ::testing::Values(1, 3));

TEST_P(LostFramesTest, TheLossIsNamed) {
  uint64_t named = 0;
  for (size_t i = 0; i < chain_.size(); ++i) {
    for (size_t count = 1; count <= 3 && i + count <= chain_.size(); ++count) {
      SCOPED_TRACE(
          StrCat("without ", count, " frames from commit ", chain_[i].header.commit, " on"));
      named += IsNamed(Without({chain_.begin() + static_cast<ptrdiff_t>(i),
                                chain_.begin() + static_cast<ptrdiff_t>(i + count)}))
                   ? 1
                   : 0;
    }
  }
  std::cout << chain_.size() << " frames, " << named << " losses named\n";
  EXPECT_GT(named, 20U) << "the frames of the last session, at least";
}

// Frames anywhere, a sector of garbage, and in every other case a bit of the index.
TEST_P(LostFramesTest, OtherDamageBesidesThem) {
  Prng prng(GetParam());
  std::vector<std::pair<std::string, uint64_t>> segments, tables;
  for (const auto& file : sample_.world->Files()) {
    if (file.first.ends_with(".seg")) segments.push_back(file);
    if (file.first.ends_with(".sst")) tables.push_back(file);
  }
  ASSERT_FALSE(tables.empty());
  uint64_t named = 0;
  for (int i = 0; i < 80; ++i) {
    std::vector<ChainFrame> lost;
    for (uint64_t left = 1 + prng.Below(3); left > 0; --left) {
      lost.push_back(chain_[chain_.size() - 1 - prng.Below(11)]);
    }
    const auto world = Without(lost);
    const auto& [name, length] = segments[prng.Below(segments.size())];
    world->Poke(name, prng.Below(length / kSectorBytes) * kSectorBytes,
                AsBytes(std::string(kSectorBytes, '\x5a')));
    const auto& [table, size] = tables[prng.Below(tables.size())];
    if (i % 2 == 1) world->FlipBit(table, prng.Below(size), static_cast<unsigned>(i) % 8);
    named += IsNamed(world) ? 1 : 0;
  }
  std::cout << "80 damages, " << named << " losses named\n";
  EXPECT_GT(named, 30U);
}

}  // namespace
}  // namespace stepwell::sim
