// SPDX-License-Identifier: Apache-2.0
// Chain frames that are gone together with their copies. Where the index was flushed behind them a
// writer does again what they did, wherever it is stopped meanwhile; else the loss is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "format/endian.h"
#include "format/frame.h"
#include "tests/sim/support/damage_sample.h"

namespace stepwell::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kSlots[] = "/store/STEPWELL";

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
  const std::string slots = *world->Contents(kSlots);
  for (uint64_t at = 0; at < slots.size(); at += format::kSlotBytes) {
    auto slot = format::DecodeSlot(AsBytes(slots).subspan(at, format::kSlotBytes));
    if (!slot.ok() || slot->durable_commit != frame.header.commit) continue;
    slot->tip.clear();
    ASSERT_TRUE(world->Poke(kSlots, at, format::EncodeSlot(*slot)));
  }
}

void RemoveIndex(SimWorld* world) {
  SimFileSystem files(world->shared_from_this());
  for (const auto& [path, size] : world->Files()) {
    if (path.find("/index/") == std::string::npos) continue;
    ASSERT_TRUE(files.Remove(path).ok());
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
  // their records only), saves, and looks again. Whether all is there, and stays.
  bool Restored(const std::shared_ptr<SimWorld>& world, std::string* said) const {
    Steps wanted = sample_.wanted;
    bool restored = false;
    for (const bool read_only : {false, true, false}) {
      StoreMachine machine(world, 2);
      std::unique_ptr<db::Store> store;
      bool whole = false;
      EXPECT_EQ(
          Look(&machine, wanted, {.with_index = true, .read_only = read_only}, &whole, &store), "");
      *said += machine.log();
      if (store == nullptr) return false;
      EXPECT_TRUE(whole == restored || !wanted.contains(kNewStep)) << "it stays so";
      restored = whole;
      if (read_only || wanted.contains(kNewStep)) continue;
      EXPECT_TRUE(store->Repair(/*accept_losses=*/false).ok());
      const auto handle = SaveStep(store.get(), kNewStep, SmallSeed(1000));
      EXPECT_TRUE(handle.ok() && handle->Wait().ok());
      wanted[kNewStep] = HeldOf(SmallSeed(1000));
      EXPECT_TRUE(store->Close().ok());
    }
    return restored;
  }

  const Sample sample_ = MakeSample({GetParam(), /*clean=*/true, /*with_index=*/true});
  const std::vector<ChainFrame> chain_ = ChainOf(*sample_.world);
};

INSTANTIATE_TEST_SUITE_P(Sessions, LostFramesTest, ::testing::Values(1, 3));

TEST_P(LostFramesTest, TheIndexHasWhatTheyDid) {
  uint64_t repaired = 0;
  for (size_t i = 0; i < chain_.size(); ++i) {
    for (size_t count = 1; count <= 3 && i + count <= chain_.size(); ++count) {
      const auto world = Without({chain_.begin() + static_cast<ptrdiff_t>(i),
                                  chain_.begin() + static_cast<ptrdiff_t>(i + count)});
      std::string said;
      EXPECT_TRUE(Restored(world, &said))
          << "without " << count << " frames from commit " << chain_[i].header.commit << " on\n"
          << said;
      repaired += said.find("the index had what they did") == std::string::npos ? 0 : 1;
    }
  }
  std::cout << chain_.size() << " frames, " << repaired << " times something was restored\n";
  EXPECT_GT(repaired, 20U) << "the frames of the last session, at least";
}

TEST_P(LostFramesTest, WithoutAnIndexTheLossIsNamed) {
  uint64_t named = 0;
  for (const ChainFrame& frame : chain_) {
    const auto world = Without({frame});
    RemoveIndex(world.get());
    std::string said;
    Restored(world, &said);  // its looks say what would be wrong without a word
    named += said.find("data loss: the frames of commits") == std::string::npos ? 0 : 1;
  }
  EXPECT_GT(named, 5U);
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
  uint64_t restored = 0;
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
    std::string said;
    Restored(world, &said);  // its looks say what is wrong without a word
    restored += said.find("the index had what they did") == std::string::npos ? 0 : 1;
  }
  std::cout << "80 damages, " << restored << " times something was restored\n";
  EXPECT_GT(restored, 30U);
}

// All frames of the session, and the writer that restores them is stopped at each operation.
TEST_P(LostFramesTest, StoppedWhileTheyAreRestored) {
  std::vector<ChainFrame> lost;
  for (size_t i = chain_.size() - 5; i < chain_.size(); ++i) lost.push_back(chain_[i]);
  const auto damaged = Without(lost);
  const uint64_t before = damaged->mutating_ops();
  uint64_t total = 0;
  {
    const auto world = damaged->CrashImageProcessKill(1);
    StoreMachine machine(world, 3);
    const auto store = machine.Open({.with_index = true});
    ASSERT_TRUE(store.ok());
    EXPECT_THAT((*store)->recovery().problems, IsEmpty());
    EXPECT_THAT(machine.log(), HasSubstr("the index had what they did"));
    total = world->mutating_ops();
  }
  ASSERT_EQ(before, 0U);
  uint64_t stops = 0;
  for (uint64_t stop = 1; stop <= total; stop += 3, ++stops) {
    const auto world = damaged->CrashImageProcessKill(1);
    world->FreezeAt(stop);
    {
      StoreMachine machine(world, 3);
      (void)machine.Open({.with_index = true});
    }
    std::string said;
    EXPECT_TRUE(Restored(ImageOf(*world, stop), &said))
        << "stop " << stop << " of " << total << "\n"
        << said;
  }
  std::cout << stops << " stops\n";
}

// One call of the disk fails while they are restored: the next open does the rest.
TEST_P(LostFramesTest, OnADiskThatFailsOnce) {
  const auto damaged = Without({chain_.end() - 5, chain_.end()});
  uint64_t struck = 0;
  for (const OpKind kind : {OpKind::kRead, OpKind::kOpen, OpKind::kLook, OpKind::kWrite,
                            OpKind::kSync, OpKind::kAllocate, OpKind::kRename}) {
    for (uint64_t nth = 1;; nth += kind == OpKind::kRead ? 11 : 5) {
      const auto world = damaged->CrashImageProcessKill(1);
      world->AddFault({.kind = kind, .nth = nth, .os_error = nth % 4 == 1 ? ENOMEM : EIO});
      {
        StoreMachine machine(world, 3);
        bool whole = false;
        std::unique_ptr<db::Store> store;
        EXPECT_EQ(Look(&machine, sample_.wanted, {.with_index = true}, &whole, &store), "");
        if (store != nullptr) store->Close().IgnoreError("its disk fails");
      }
      if (world->faults_struck() == 0) break;
      ++struck;
      std::string said;
      EXPECT_TRUE(Restored(world->CrashImageProcessKill(2), &said))
          << NameOf(kind) << " " << nth << " failed\n"
          << said;
    }
  }
  std::cout << struck << " failures\n";
}

// By a writer that had no index, and so saw what the log had left: that counts.
TEST_P(LostFramesTest, WhatWasChangedMeanwhile) {
  uint64_t restored = 0;
  for (size_t i = chain_.size() - 12; i < chain_.size(); ++i) {
    for (const auto& [step, held] : sample_.wanted) {
      for (const std::string_view what : {"delete", "pin", "replace"}) {
        auto world = Without({chain_[i]});
        Steps wanted = sample_.wanted;
        {
          StoreMachine machine(world, 2);
          const auto store = machine.Open({.with_index = false});
          ASSERT_TRUE(store.ok());
          const std::vector<uint64_t> steps = {step};
          if (what == "delete") {
            if (!(*store)->SetPinned(steps, false).ok()) continue;  // it is not there
            ASSERT_TRUE((*store)->Delete(steps).ok());
            wanted.erase(step);
          } else if (what == "pin") {
            if (!(*store)->SetPinned(steps, true).ok()) continue;
            wanted[step] |= kPinned;
          } else {
            const auto saved = SaveStep(store->get(), step, SmallSeed(99), db::IfExists::kReplace);
            if (!saved.ok()) continue;  // pinned
            ASSERT_TRUE(saved->Wait().ok());
            wanted[step] = HeldOf(SmallSeed(99));
          }
          ASSERT_TRUE((*store)->Close().ok());
        }
        StoreMachine machine(world, 3);
        bool whole = false;
        std::unique_ptr<db::Store> store;
        EXPECT_EQ(Look(&machine, wanted, {.with_index = true}, &whole, &store), "")
            << "without commit " << chain_[i].header.commit << ", " << what << " " << step << "\n"
            << machine.log();
        restored += machine.log().find("the index had what they did") != std::string::npos ? 1 : 0;
      }
    }
  }
  EXPECT_GT(restored, 20U);
}

// From one state the store went on twice, and now has the log of one time and the other's index.
TEST_P(LostFramesTest, TheIndexOfAnotherHistoryIsNoWitness) {
  const auto go_on = [&](uint64_t seed) {
    const auto world = sample_.world->CrashImageProcessKill(1);
    StoreMachine machine(world, seed);
    const auto store = machine.Open({.with_index = true});
    EXPECT_TRUE(store.ok() && SaveStep(store->get(), 500, SmallSeed(seed))->Wait().ok());
    EXPECT_TRUE((*store)->SetPinned(std::vector<uint64_t>{500}, true).ok());
    EXPECT_TRUE((*store)->Close().ok());
    return world;
  };
  const auto other = go_on(50);
  const auto ours = go_on(51);
  Steps wanted = sample_.wanted;
  wanted[500] = HeldOf(SmallSeed(51)) | kPinned;
  const std::vector<ChainFrame> chain = ChainOf(*ours);
  for (size_t lost = 1; lost <= 3; ++lost) {
    const auto world = ours->CrashImageProcessKill(1);
    RemoveIndex(world.get());
    SimFileSystem files(world);
    for (const auto& [path, size] : other->Files()) {
      if (path.find("/index/") == std::string::npos) continue;
      const auto file = files.Open(path, {.write = true, .create = true});
      ASSERT_TRUE(file.ok() && (*file)->WriteAt(0, AsBytes(*other->Contents(path))).ok());
    }
    Destroy(world.get(), chain[chain.size() - lost]);
    StoreMachine machine(world, 7);
    bool whole = false;
    std::unique_ptr<db::Store> store;
    EXPECT_EQ(Look(&machine, wanted, {.with_index = true}, &whole, &store), "") << machine.log();
    EXPECT_THAT(machine.log(), HasSubstr("the index has another frame of commit")) << lost;
  }
}

}  // namespace
}  // namespace stepwell::sim
