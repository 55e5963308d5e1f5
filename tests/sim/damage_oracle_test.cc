// SPDX-License-Identifier: Apache-2.0
// Damage to a small store: every byte of it flipped, blocks and files lost, older bytes put back.
// The oracle: each step gives the newest acknowledged version or an error, and what is missing is
// named, by the open or by Verify, for as long as it is missing.
//
// STEPWELL_SIM_SEED chooses other bits and other garbage.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>

#include "tests/sim/support/damage_sample.h"

namespace stepwell::sim {
namespace {

// What was done, and where; counts by class and region.
class Tally {
 public:
  void Note(const std::string& wrong, const std::string& what, const std::string& region) {
    ++cases_;
    if (wrong.empty()) return;
    auto& [count, first] = wrong_[StrCat(what, " in ", region, ": ", wrong)];
    if (count++ == 0) first = cases_;
  }
  ~Tally() {
    std::cout << name_ << ": " << cases_ << " damages\n";
    for (const auto& [text, count] : wrong_) {
      ADD_FAILURE() << name_ << ": " << text << ", " << count.first << " times, first in case "
                    << count.second;
    }
  }
  explicit Tally(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
  uint64_t cases_ = 0;
  std::map<std::string, std::pair<uint64_t, uint64_t>> wrong_;
};

constexpr char kFlip[] = "a flipped bit";

uint64_t OutsideSeed() {
  const char* text = std::getenv("STEPWELL_SIM_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

class DamageOracle : public ::testing::TestWithParam<std::pair<uint64_t, bool>> {
 protected:
  const Sample sample_ = MakeSample(GetParam().first, GetParam().second);

  void Apply(Tally* tally, const std::string& what, const std::string& region, bool with_writer,
             const std::function<void(SimWorld*)>& damage) {
    const auto world = sample_.world->CrashImageProcessKill(1);
    damage(world.get());
    const bool has_copy = what == kFlip && HasCopy(region);
    tally->Note(Examine(world, sample_.wanted, with_writer, has_copy), what, region);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, DamageOracle,
                         ::testing::Values(std::pair{1, true}, std::pair{1, false},
                                           std::pair{3, true}, std::pair{3, false}),
                         [](const auto& param) {
                           return StrCat(param.param.first == 1 ? "OneSession" : "Sessions",
                                         param.param.second ? "Closed" : "Killed");
                         });

// All of them, and more cases, by hand: STEPWELL_SIM_EVERY_BYTE=1.
uint64_t EveryNthByte() { return std::getenv("STEPWELL_SIM_EVERY_BYTE") != nullptr ? 1 : 61; }

TEST_P(DamageOracle, EveryByteFlipped) {
  Tally tally(sample_.name);
  const uint64_t seed = OutsideSeed();
  for (const auto& [path, size] : sample_.world->Files()) {
    if (!IsOfTheStore(path)) continue;
    const std::string bytes = *sample_.world->Contents(path);
    uint64_t zeros = 0;  // in front of this byte
    for (uint64_t offset = 0; offset < size; ++offset) {
      zeros = bytes[offset] == '\0' ? zeros + 1 : 0;
      // Padding is thousands of equal bytes.
      if (zeros > 128 && (offset + seed) % 64 != 0) continue;
      if ((offset + seed) % EveryNthByte() != 0) continue;
      const auto bit = static_cast<unsigned>((offset * 5 + seed) % 8);
      // A writer behind every frame's every eighth byte.
      Apply(&tally, kFlip, RegionOf(path, bytes, offset), (offset + seed) % 8 == 0,
            [&, &name = path](SimWorld* world) { world->FlipBit(name, offset, bit); });
    }
  }
}

TEST_P(DamageOracle, BlocksAndFilesLost) {
  Tally tally(sample_.name);
  Prng prng(OutsideSeed() + 1);
  for (const auto& [path, size] : sample_.world->Files()) {
    if (!IsOfTheStore(path)) continue;
    const std::string& name = path;
    const std::string bytes = *sample_.world->Contents(path);
    const std::string file = path.ends_with(".seg") ? "a segment" : "STEPWELL";
    for (uint64_t offset = 0; offset < size; offset += kBlock) {
      const std::string region = RegionOf(path, bytes, offset);
      const uint64_t length = std::min(kBlock, size - offset);
      Apply(&tally, "a block of zeros", region, true, [&](SimWorld* world) {
        world->Poke(name, offset, AsBytes(std::string(length, '\0')));
      });
      std::string garbage(length, '\0');
      for (char& c : garbage) c = static_cast<char>(prng.Next());
      Apply(&tally, "a block of garbage", region, true,
            [&](SimWorld* world) { world->Poke(name, offset, AsBytes(garbage)); });
      const uint64_t other = prng.Below(size / kBlock) * kBlock;
      Apply(&tally, "another block in place of one", region, true, [&](SimWorld* world) {
        world->Poke(name, offset, AsBytes(std::string_view(bytes).substr(other, length)));
      });
      for (uint64_t sector = 0; sector < length; sector += kSectorBytes) {
        Apply(&tally, "a sector of zeros", region, false, [&](SimWorld* world) {
          world->Poke(name, offset + sector, AsBytes(std::string(kSectorBytes, '\0')));
        });
      }
    }
    Apply(&tally, "the file removed", file, true, [&](SimWorld* world) {
      EXPECT_OK(SimFileSystem(world->shared_from_this()).Remove(name));
    });
    for (const uint64_t left : {uint64_t{0}, size / 2, size - 1}) {
      Apply(&tally, "the file cut", file, true, [&](SimWorld* world) {
        SimFileSystem files(world->shared_from_this());
        EXPECT_OK((*files.Open(name, {.write = true}))->Truncate(left));
      });
    }
  }
}

// A frame and its copy, too. STEPWELL says how far the log went, so that a loss is known.
TEST_P(DamageOracle, SeveralPlacesOfTheLog) {
  Tally tally(sample_.name);
  Prng prng(OutsideSeed() + 2);
  std::vector<std::pair<std::string, uint64_t>> segments;
  for (const auto& file : sample_.world->Files()) {
    if (file.first.ends_with(".seg")) segments.push_back(file);
  }
  const int cases = EveryNthByte() == 1 ? 20'000 : 500;
  for (int i = 0; i < cases; ++i) {
    Apply(&tally, "sectors of garbage", "several places", i % 8 == 0, [&](SimWorld* world) {
      for (uint64_t left = 2 + prng.Below(5); left > 0; --left) {
        const auto& [name, size] = segments[prng.Below(segments.size())];
        const uint64_t length = prng.Coin() ? kBlock : kSectorBytes;
        std::string garbage(length, '\0');
        if (prng.Coin()) {
          for (char& c : garbage) c = static_cast<char>(prng.Next());
        }
        world->Poke(name, prng.Below(size / length) * length, AsBytes(garbage));
      }
    });
  }
}

// Reads of one block fail: what is served is right, and once the block can be read all is there.
TEST_P(DamageOracle, BlocksThatCannotBeRead) {
  Tally tally(sample_.name);
  for (const auto& [path, size] : sample_.world->Files()) {
    if (!IsOfTheStore(path)) continue;
    const std::string bytes = *sample_.world->Contents(path);
    for (uint64_t offset = 0; offset < size; offset += kBlock) {
      const auto world = sample_.world->CrashImageProcessKill(1);
      world->AddFault({.kind = OpKind::kRead,
                       .forever = true,
                       .path_contains = path,
                       .range = {offset, kBlock}});
      const std::string region = RegionOf(path, bytes, offset);
      tally.Note(Examine(world, sample_.wanted, true), "an unreadable block", region);
      world->ClearFaults();
      StoreMachine machine(world, 1);
      std::unique_ptr<db::Store> store;
      bool whole = false;
      std::string wrong;
      Steps wanted = sample_.wanted;
      for (const bool read_only : {true, false}) {
        {
          // The writer on the bad disk may have saved a step more.
          const auto there = machine.Open({.read_only = true});
          if (there.ok() && (*there)->Read(kNewStep).ok()) {
            wanted[kNewStep] = HeldOf(SmallSeed(1000));
          }
        }
        wrong = Look(&machine, wanted, {.read_only = read_only}, &whole, &store);
        store.reset();
        if (wrong.empty() && !whole) wrong = "not whole on the healthy disk";
        if (!wrong.empty()) break;
      }
      tally.Note(wrong, "a block that was unreadable for a while", region);
    }
  }
}

// An older STEPWELL beside the newer log: a lost write, a backup restored by half.
TEST_P(DamageOracle, AnOlderStepwellBesideANewerLog) {
  Tally tally(sample_.name);
  for (size_t i = 0; i < sample_.older_slots.size(); ++i) {
    Apply(&tally, "an older file", "STEPWELL", true, [&](SimWorld* world) {
      EXPECT_TRUE(world->Poke("/store/STEPWELL", 0, AsBytes(sample_.older_slots[i])));
    });
    // One slot of it alone.
    for (uint64_t slot = 0; slot < 2; ++slot) {
      Apply(&tally, "an older slot", "STEPWELL", true, [&](SimWorld* world) {
        const auto part = std::string_view(sample_.older_slots[i]).substr(slot * kBlock, kBlock);
        EXPECT_TRUE(world->Poke("/store/STEPWELL", slot * kBlock, AsBytes(part)));
      });
    }
  }
}

}  // namespace
}  // namespace stepwell::sim
