// SPDX-License-Identifier: Apache-2.0
// Damage to a small store: every byte of it flipped, blocks and files lost, older bytes put back.
// The oracle: each step gives the newest acknowledged version or an error, and what is missing is
// named, by the open or by Verify, for as long as it is missing.
//
// STEPWELL_SIM_SEED chooses other bits and other garbage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <set>

#include "tests/sim/support/damage_sample.h"

namespace stepwell::sim {
namespace {

// Counts the damages by class and region.
class Tally {
 public:
  void Note(const std::string& wrong, const std::string& what, const std::string& region) {
    ++cases_;
    if (wrong.empty()) return;
    auto& [count, first] = wrong_[StrCat(what, " in ", region, ": ", wrong)];
    if (count++ == 0) first = cases_;
  }
  ~Tally() {
    std::cout << name_ << ": " << cases_ << " damages, " << RefusedOpens() - refused_
              << " opens refused\n";
    for (const auto& [text, count] : wrong_) {
      ADD_FAILURE() << name_ << ": " << text << ", " << count.first << " times, first in case "
                    << count.second;
    }
  }
  explicit Tally(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;
  const uint64_t refused_ = RefusedOpens();
  uint64_t cases_ = 0;
  std::map<std::string, std::pair<uint64_t, uint64_t>> wrong_;
};

constexpr char kFlip[] = "a flipped bit";
const std::string kSlots = kStorePath + "/STEPWELL";

uint64_t OutsideSeed() {
  const char* text = std::getenv("STEPWELL_SIM_SEED");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

// Damage to one of these costs what lies there, and nothing else.
bool MustOpen(const std::string& region) {
  static const std::set<std::string> kRegions = {"payload", "records", "padding", "footer",
                                                 "trailer"};
  return kRegions.contains(region);
}

class DamageOracle : public ::testing::TestWithParam<SampleShape> {
 protected:
  const Sample sample_ = MakeSample(GetParam());

  void Apply(Tally* tally, const std::string& what, const std::string& region, bool with_writer,
             const std::function<void(SimWorld*)>& damage) {
    const auto world = sample_.world->CrashImageProcessKill(1);
    damage(world.get());
    tally->Note(Examine(world, sample_.wanted,
                        {.with_writer = with_writer,
                         .has_copy = what == kFlip && HasCopy(region),
                         .must_open = MustOpen(region),
                         .spec = sample_.spec,
                         .undecided = sample_.undecided}),
                what, region);
  }
  // With older files; `backup`, unless null, is a state that may be served, too.
  void ApplyStale(Tally* tally, const std::string& what, const std::string& region,
                  const SampleState* backup, const std::function<void(SimWorld*)>& damage) {
    const auto examine = [&](const Steps& steps, const std::set<uint64_t>& undecided) {
      const auto world = sample_.world->CrashImageProcessKill(1);
      damage(world.get());
      return Examine(world, steps,
                     {.with_writer = true, .spec = sample_.spec, .undecided = undecided});
    };
    std::string wrong = examine(sample_.wanted, sample_.undecided);
    if (!wrong.empty() && backup != nullptr) wrong = examine(backup->steps, backup->undecided);
    tally->Note(wrong, what, region);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, DamageOracle,
                         ::testing::Values(SampleShape{1, true}, SampleShape{1, false},
                                           SampleShape{3, true}, SampleShape{3, false},
                                           SampleShape{2, true, false, /*group=*/true},
                                           SampleShape{2, false, false, /*group=*/true}),
                         [](const auto& param) {
                           return StrCat(param.param.sessions == 1 ? "OneSession" : "Sessions",
                                         param.param.group ? "OfAGroup" : "",
                                         param.param.clean ? "Closed" : "Killed");
                         });

// All of them, and more cases, by hand: STEPWELL_SIM_EVERY_BYTE=1.
uint64_t EveryNthByte() { return std::getenv("STEPWELL_SIM_EVERY_BYTE") != nullptr ? 1 : 89; }

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
      Prng prng(offset ^ (seed << 32));  // the bit, and whether a writer comes, each on its own
      const auto bit = static_cast<unsigned>(prng.Below(8));
      Apply(&tally, kFlip, RegionOf(path, bytes, offset), prng.OneIn(8),
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
      const std::set<uint64_t>& undecided = sample_.undecided;
      world->AddFault({.kind = OpKind::kRead,
                       .forever = true,
                       .path_contains = path,
                       .range = {offset, kBlock}});
      const std::string region = RegionOf(path, bytes, offset);
      tally.Note(Examine(world, sample_.wanted,
                         {.with_writer = true, .spec = sample_.spec, .undecided = undecided}),
                 "an unreadable block", region);
      world->ClearFaults();
      StoreMachine machine(world, 1);
      std::unique_ptr<db::Store> store;
      bool whole = false;
      std::string wrong;
      Steps wanted = sample_.wanted;
      for (const OpenSpec& spec : {OpenSpec{.read_only = true}, sample_.spec}) {
        {
          // The writer on the bad disk may have saved a step more.
          const auto there = machine.Open({.read_only = true});
          if (there.ok() && (*there)->Read(kNewStep).ok()) {
            wanted[kNewStep] = HeldOf(SmallSeed(1000));
          }
        }
        wrong = Look(&machine, wanted, spec, &whole, &store, undecided);
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
  for (const SampleState& state : sample_.states) {
    Apply(&tally, "an older file", "STEPWELL", true,
          [&](SimWorld* world) { EXPECT_TRUE(world->Poke(kSlots, 0, AsBytes(state.slots))); });
    // One slot of it alone.
    for (uint64_t slot = 0; slot < 2; ++slot) {
      Apply(&tally, "an older slot", "STEPWELL", true, [&](SimWorld* world) {
        const auto part = std::string_view(state.slots).substr(slot * kBlock, kBlock);
        EXPECT_TRUE(world->Poke(kSlots, slot * kBlock, AsBytes(part)));
      });
    }
  }
}

// Other bytes in a file of the store, of any length.
void PutBack(SimWorld* world, const std::string& path, const std::string& bytes) {
  SimFileSystem files(world->shared_from_this());
  const auto file = files.Open(path, {.write = true});
  ASSERT_OK(file.status());
  ASSERT_OK((*file)->Truncate(0));
  ASSERT_OK((*file)->WriteAt(0, AsBytes(bytes)));
  ASSERT_OK((*file)->Sync());
}

// The offset of the last chain frame of a segment.
uint64_t LastFrameOf(const std::string& path, const std::string& bytes) {
  static const std::set<std::string> kChain = {"epoch", "commit",  "delete",
                                               "meta",  "decided", "prepared"};
  uint64_t last = 0;
  for (uint64_t offset = 0; offset < bytes.size(); offset += kBlock) {
    if (kChain.contains(RegionOf(path, bytes, offset))) last = offset;
  }
  return last;
}

// An older version of a segment beside newer ones and a newer STEPWELL, whole or a block of it; and
// with an older STEPWELL, too, whose time is that of the segment, or another.
TEST_P(DamageOracle, AnOlderSegmentBesideANewerLog) {
  Tally tally(sample_.name);
  Prng prng(OutsideSeed() + 3);
  const std::vector<SampleState>& states = sample_.states;
  const auto& now = states.back().segments;
  const auto& last = *now.rbegin();
  const uint64_t last_frame = LastFrameOf(last.first, last.second);
  // Finds the state before the last frame.
  size_t before = states.size() - 1;
  while (states[before].steps == sample_.wanted && states[before].undecided == sample_.undecided) {
    --before;
  }
  std::set<std::pair<std::string, std::string>> seen;
  for (size_t i = 0; i < states.size(); ++i) {
    for (const auto& [path, bytes] : states[i].segments) {
      const auto newer = now.find(path);
      if (newer == now.end() || newer->second == bytes || !seen.emplace(path, bytes).second) {
        continue;
      }
      const std::string region = path == last.first ? "the last segment" : "a segment";
      const auto put = [&, &name = path, &old = bytes](SimWorld* world) {
        PutBack(world, name, old);
      };
      Apply(&tally, "an older version", region, true, put);
      for (const size_t j : {i, static_cast<size_t>(prng.Below(states.size()))}) {
        // No trace is left of anything later than both, so this is a backup that was restored: of
        // when the segment was so, or of STEPWELL's last frame, of which it has the copy.
        const bool is_backup = region == "the last segment";
        const auto both = [&](SimWorld* world) {
          put(world);
          EXPECT_TRUE(world->Poke(kSlots, 0, AsBytes(states[j].slots)));
        };
        ApplyStale(&tally, "an older version and an older STEPWELL", region,
                   is_backup ? &states[std::max(i, j)] : nullptr, both);
      }
      for (uint64_t offset = 0; offset < std::min(bytes.size(), newer->second.size());
           offset += kBlock) {
        const std::string block = bytes.substr(offset, kBlock);
        if (newer->second.compare(offset, kBlock, block) == 0) continue;
        const std::string place = RegionOf(path, newer->second, offset);
        const auto poke = [&, &name = path](SimWorld* world) {
          EXPECT_TRUE(world->Poke(name, offset, AsBytes(block)));
        };
        Apply(&tally, "an older block", place, offset % (8 * kBlock) == 0, poke);
        const size_t j = prng.Below(states.size());
        // Without the last frame, and by a STEPWELL from before it, that frame was never there
        // (DESIGN.md, "Limits").
        const bool is_limit = path == last.first && offset == last_frame && j <= before;
        ApplyStale(&tally, "an older block and an older STEPWELL", place,
                   is_limit ? &states[before] : nullptr, [&](SimWorld* world) {
                     poke(world);
                     EXPECT_TRUE(world->Poke(kSlots, 0, AsBytes(states[j].slots)));
                   });
      }
    }
  }
}

// A segment, or its catalog, in the place of another one.
TEST_P(DamageOracle, AnOlderCatalogBesideANewerLog) {
  Tally tally(sample_.name);
  const auto& now = sample_.states.back().segments;
  for (const auto& [path, bytes] : now) {
    for (const auto& [other, older] : now) {
      if (other >= path) continue;
      Apply(&tally, "another segment's bytes", "a segment", true,
            [&, &name = path, &old = older](SimWorld* world) { PutBack(world, name, old); });
      for (uint64_t blocks = 1; blocks <= 4; ++blocks) {
        Apply(&tally, "another segment's first blocks", "a segment", true,
              [&, &name = path, &old = older](SimWorld* world) {
                const auto first = std::string_view(old).substr(0, blocks * kBlock);
                EXPECT_TRUE(world->Poke(name, 0, AsBytes(first)));
              });
        Apply(&tally, "another segment's catalog", "catalog", true,
              [&, &name = path, &old = older](SimWorld* world) {
                const auto catalog = std::string_view(old).substr(kBlock, blocks * kBlock);
                EXPECT_TRUE(world->Poke(name, kBlock, AsBytes(catalog)));
              });
      }
    }
  }
}

}  // namespace
}  // namespace stepwell::sim
