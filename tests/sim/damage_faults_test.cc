// SPDX-License-Identifier: Apache-2.0
// Two faults at a time: a small store with one damaged block, whose disk fails once while a reader
// or a writer opens it. What is served then is right, and a healthy disk finds what it would have
// found before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <iostream>

#include "format/frame.h"
#include "tests/sim/support/damage_sample.h"

namespace stepwell::sim {
namespace {

// Checks what a store on a failing disk serves. It may refuse anything.
std::string Served(db::Store* store, const Steps& wanted) {
  const auto listed = store->Steps();
  if (!listed.ok()) return "";
  const bool named = !store->recovery().problems.empty();
  for (const auto& summary : *listed) {
    const auto it = wanted.find(summary.step);
    const auto reader = store->Read(summary.step);
    if (!reader.ok()) continue;
    if (it == wanted.end()) {
      if ((*reader)->Leaves("").ok()) return "a deleted step is back";
    } else if (CheckStep(reader->get(), it->second).code() == StatusCode::kInternal) {
      return "a wrong version is served";
    }
  }
  if (!named && listed->size() < wanted.size()) return "a step is missing, unnamed";
  return "";
}

// All operations, by hand: STEPWELL_SIM_EVERY_BYTE=1.
uint64_t Every() { return std::getenv("STEPWELL_SIM_EVERY_BYTE") != nullptr ? 1'000'000 : 4; }

struct Case {
  std::string path;
  std::string region;
  uint64_t offset_bytes = 0;
  unsigned bit = 0;
};

class DamageFaults : public ::testing::TestWithParam<SampleShape> {
 protected:
  // A bit in the first and the last block of each region of each file.
  std::vector<Case> Cases() const {
    std::vector<Case> all;
    for (const auto& [path, size] : sample_.world->Files()) {
      if (!IsOfTheStore(path)) continue;
      const std::string bytes = *sample_.world->Contents(path);
      for (uint64_t block = 0; block < size; block += kBlock) {
        Prng prng(block + size);
        // Anywhere, or among the first bytes, where headers are; what lies behind a frame harms
        // nothing.
        const uint64_t header_bytes = std::min<uint64_t>(format::kFrameHeaderBytes, size - block);
        const uint64_t length = prng.Coin() ? std::min(kBlock, size - block) : header_bytes;
        uint64_t at = block + prng.Below(length);
        if (RegionOf(path, bytes, at) == "padding") at = block + prng.Below(header_bytes);
        const auto bit = static_cast<unsigned>(prng.Below(8));
        all.push_back({path, RegionOf(path, bytes, at), at, bit});
      }
    }
    const Case lost = {kStorePath + "/STEPWELL", "all of it", 0, 0};
    if (Every() > 4) {
      all.push_back(lost);
      return all;
    }
    const auto same = [&](size_t i, size_t j) {
      return j < all.size() && all[i].path == all[j].path && all[i].region == all[j].region;
    };
    std::vector<Case> cases;
    for (size_t i = 0; i < all.size(); ++i) {
      if (i == 0 || !same(i, i - 1) || !same(i, i + 1)) cases.push_back(all[i]);
    }
    cases.push_back(lost);
    return cases;
  }

  static void Damage(SimWorld* world, const Case& one) {
    if (one.region != "all of it") {
      EXPECT_TRUE(world->FlipBit(one.path, one.offset_bytes, one.bit));
      return;
    }
    const std::string zeros(world->Contents(one.path)->size(), '\0');
    EXPECT_TRUE(world->Poke(one.path, 0, AsBytes(zeros)));
  }

  // The n-th operation of a kind fails while the store is opened, read, with `change` also changed,
  // and closed again. False: there is no n-th one.
  bool Strike(const Case& one, bool read_only, bool change, const Fault& fault) {
    const std::string what =
        StrCat(sample_.name, ": ", one.region, " at ", one.path, ":", one.offset_bytes, " bit ",
               one.bit, read_only ? ", read: " : ", written: ", NameOf(*fault.kind), " ", fault.nth,
               " fails with errno ", fault.os_error);
    const auto world = sample_.world->CrashImageProcessKill(1);
    Damage(world.get(), one);
    std::vector<Steps> legal = {sample_.wanted};
    if (!change) world->AddFault(fault);
    {
      StoreMachine machine(world, 1);
      const auto store = machine.Open({.read_only = read_only});
      if (store.ok()) {
        if (change) world->AddFault(fault);
        EXPECT_EQ(Served(store->get(), sample_.wanted), "") << what;
        if (change) Change(store->get(), &legal);
        (*store)->Close().IgnoreError("its disk fails");
      }
    }
    if (world->faults_struck() == 0) return false;
    ++struck_;
    world->ClearFaults();
    // A copy may go with the step behind which it lies (DESIGN.md, "Two copies").
    const bool has_copy = HasCopy(one.region) && !change;
    std::string wrong;
    for (const Steps& wanted : legal) {
      wrong = Examine(world, wanted, {.has_copy = has_copy});
      if (wrong.empty()) break;
    }
    EXPECT_EQ(wrong, "") << what;
    return !HasFailure();
  }

  // Operations of a kind, each with EIO or `other` in turn; all operations each with both.
  void StrikeEach(const Case& one, OpKind kind, int other, bool read_only, bool change) {
    const auto fault = [kind](uint64_t nth, int os_error) {
      return Fault{.kind = kind, .nth = nth, .os_error = os_error};
    };
    const bool both = Every() > 4;
    uint64_t nth = 1;
    for (bool there = true; there; nth += 1 + nth / (change ? Every() / 2 : Every())) {
      const int first = both || turn_++ % 2 == 0 ? EIO : other;
      there = Strike(one, read_only, change, fault(nth, first)) &&
              (!both || Strike(one, read_only, change, fault(nth, other)));
    }
  }

  void StrikeWriters(bool change) {
    for (const Case& one : Cases()) {
      for (const OpKind kind : {OpKind::kRead, OpKind::kOpen, OpKind::kLook, OpKind::kWrite,
                                OpKind::kSync, OpKind::kAllocate, OpKind::kTruncate,
                                OpKind::kCreate, OpKind::kRename, OpKind::kSyncDirectory}) {
        StrikeEach(one, kind, kind == OpKind::kAllocate ? ENOSPC : ENOMEM, false, change);
      }
      if (HasFailure()) return;
    }
    std::cout << struck_ << " failures\n";
  }

  // A step saved, another replaced, one deleted; `legal`: what there may be then.
  static void Change(db::Store* store, std::vector<Steps>* legal) {
    const auto note = [&](const Status& status, const std::function<void(Steps*)>& change) {
      std::vector<Steps> changed = *legal;
      for (Steps& steps : changed) change(&steps);
      if (status.code() == StatusCode::kOutcomeUnknown) {
        legal->insert(legal->end(), changed.begin(), changed.end());
      } else if (status.ok()) {
        *legal = std::move(changed);
      }
    };
    const auto save = [&](uint64_t step, uint64_t seed) {
      const auto handle = SaveStep(store, step, seed, db::IfExists::kReplace);
      note(handle.ok() ? handle->Wait() : handle.status(),
           [&](Steps* steps) { (*steps)[step] = HeldOf(seed); });
    };
    save(kNewStep, SmallSeed(1000));
    save(30, 3);  // with payloads
    note(store->Delete(std::vector<uint64_t>{13}), [](Steps* steps) { steps->erase(13); });
    store->Reclaim().status().IgnoreError("its disk fails");
  }

  const Sample sample_ = MakeSample(GetParam());
  uint64_t struck_ = 0;
  uint64_t turn_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Stores, DamageFaults,
                         ::testing::Values(SampleShape{1, false}, SampleShape{3, true},
                                           SampleShape{3, false}),
                         [](const auto& param) {
                           return StrCat(param.param.sessions == 1 ? "OneSession" : "Sessions",
                                         param.param.clean ? "Closed" : "Killed");
                         });

// Blocks that cannot be read stay so; too little memory and too few descriptors pass.
TEST_P(DamageFaults, AReaderOfADiskThatFails) {
  for (const Case& one : Cases()) {
    for (const OpKind kind : {OpKind::kRead, OpKind::kOpen, OpKind::kLook}) {
      StrikeEach(one, kind, kind == OpKind::kOpen ? EMFILE : ENOMEM, true, false);
    }
    if (HasFailure()) return;
  }
  std::cout << struck_ << " failures\n";
}

TEST_P(DamageFaults, AWriterOnADiskThatFails) { StrikeWriters(/*change=*/false); }

TEST_P(DamageFaults, ChangesOnADiskThatFails) { StrikeWriters(/*change=*/true); }

// The recovery of a damaged store is cut off after each of its operations.
TEST_P(DamageFaults, AWriterThatIsCutOff) {
  // All of it durable, STEPWELL too: of a step in doubt a flipped bit is a tear.
  const auto durable = sample_.world->Crash({1, SectorOdds{1, 0, 0, 0}, NameLoss::kNone});
  for (const Case& one : Cases()) {
    bool ended = false;
    for (uint64_t nth = 1; !ended; nth += 1 + nth / Every()) {
      const auto world = durable->CrashImageProcessKill(1);
      Damage(world.get(), one);
      world->FreezeAt(world->mutating_ops() + nth);
      {
        StoreMachine machine(world, 1);
        const auto store = machine.Open({});
        ended = !world->frozen();
        world->FreezeNow();
      }
      ++struck_;
      ASSERT_EQ(Examine(ImageOf(*world, nth), sample_.wanted,
                        {.with_writer = nth % 8 == 0, .has_copy = HasCopy(one.region)}),
                "")
          << sample_.name << ": " << one.region << " at " << one.path << ":" << one.offset_bytes
          << " bit " << one.bit << ", cut off at operation " << nth;
    }
  }
  std::cout << struck_ << " cuts\n";
}

}  // namespace
}  // namespace stepwell::sim
