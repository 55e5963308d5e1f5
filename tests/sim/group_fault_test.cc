// SPDX-License-Identifier: Apache-2.0
// Failing operations at every moment of a group's life, and while a collective open reads and
// settles what they left. What part 0 answered to a decision holds afterwards; what it did not know
// is there on all parts or on none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <vector>

#include "tests/sim/support/group_workload.h"
#include "tests/sim/support/soak_seeds.h"
#include "tests/sim/support/store_faults.h"

namespace stepwell::sim {
namespace {

// The n-th operation of a kind; none: any that changes the disk.
Fault DrawGroupFault(std::optional<OpKind> kind, uint64_t nth, Prng* prng) {
  Fault fault{.kind = kind, .nth = nth, .forever = prng->OneIn(3)};
  if (!kind || *kind == OpKind::kSync || *kind == OpKind::kSyncDirectory) {
    if (prng->Coin()) fault.effect = Fault::Effect::kDoAndFail;
    return fault;
  }
  switch (*kind) {
    case OpKind::kRead:
      if (prng->OneIn(3)) fault.effect = Fault::Effect::kShort;
      if (prng->OneIn(3)) fault.os_error = ENOMEM;
      break;
    case OpKind::kOpen:
    case OpKind::kLook:
      if (prng->Coin()) fault.os_error = prng->Coin() ? EMFILE : ENOMEM;
      break;
    case OpKind::kAllocate:
    case OpKind::kCreate:
    case OpKind::kRename:
      if (!prng->OneIn(4)) fault.os_error = ENOSPC;
      break;
    default:
      if (prng->OneIn(4)) fault.os_error = ENOSPC;
      break;
  }
  return fault;
}

std::string Describe(const Fault& fault) {
  static constexpr const char* kEffects[] = {"fails", "is lost", "goes elsewhere",
                                             "is done and fails", "is short"};
  return StrCat(fault.kind ? NameOf(*fault.kind) : "operation", " ", fault.nth,
                fault.forever ? " and all later ones: " : ": ",
                kEffects[static_cast<size_t>(fault.effect)], ", errno ", fault.os_error);
}

// A collective open on a disk that fails, and may stop. Everything may be an error, nothing wrong.
std::string OpenFailing(const std::shared_ptr<SimWorld>& world, GroupExpected* expected,
                        Prng* prng) {
  PlanFaults(world.get(), prng);
  if (prng->OneIn(3)) world->FreezeAt(world->mutating_ops() + 1 + prng->Below(60));
  StoreMachine machine(world, prng->Next());
  GroupStores stores;
  if (!stores.Open(&machine).ok()) return "";
  const bool opened = !world->frozen();
  const auto seen = ReadSaves(stores.parts[0].get());
  if (seen.status().code() == StatusCode::kInternal) return seen.status().ToString();
  if (seen.ok()) {
    const auto& legal = expected->legal;
    if (std::find(legal.begin(), legal.end(), *seen) == legal.end()) {
      return StrCat("found ", SavesText(*seen), ", legal is ", SavesText(legal.front()), " or ",
                    SavesText(legal.back()), "\n", machine.log());
    }
    if (opened) expected->legal = {*seen};  // what was served stays
  }
  if (opened) {
    if (std::string problem = CheckKept(stores, *expected);
        !problem.empty() && problem != kListFailed) {
      return problem;
    }
  }
  if (prng->OneIn(4)) return "";
  expected->undecided.assign(kParts, {});
  const Status settled = db::Settle(stores.Pointers());
  if (settled.message().find("newer than part 0") != std::string::npos) return settled.ToString();
  if (!settled.ok() || !seen.ok() || world->frozen()) return "";
  for (const auto& store : stores.parts) {
    const auto mine = db::SavesOf(store.get());
    if (mine.ok() && *mine != *seen) {
      return StrCat("settled, part ", store->part().part, " has ", SavesText(*mine), " instead of ",
                    SavesText(*seen));
    }
    const auto group = store->Group();
    if (group.ok() && !group->prepared.empty()) return "settled, but a step is undecided";
  }
  return "";
}

std::string RecoverOnFailingDisks(std::shared_ptr<SimWorld>* world, GroupExpected* expected,
                                  Prng* prng) {
  std::string problem;
  for (uint64_t i = prng->Below(3) + 1; i > 0 && problem.empty(); --i) {
    problem = OpenFailing(*world, expected, prng);
    if (prng->Coin()) (*world)->FreezeNow();
    (*world)->FreezeAt(0);
    if (prng->Coin()) (*world)->ClearFaults();
    if ((*world)->frozen()) *world = ImageOf(**world, prng->Next() % 1'000'000);
  }
  (*world)->ClearFaults();
  return problem.empty() ? "" : "on a failing disk: " + problem;
}

constexpr std::optional<OpKind> kFailing[] = {
    std::nullopt,      OpKind::kRead, OpKind::kOpen,   OpKind::kLook,         OpKind::kWrite,
    OpKind::kAllocate, OpKind::kSync, OpKind::kCreate, OpKind::kSyncDirectory};

// One run; false: there was no n-th operation, or something is wrong.
bool FailGroupAt(uint64_t seed, int actions, std::optional<OpKind> kind, uint64_t nth) {
  const uint64_t kind_number = kind ? 1 + static_cast<uint64_t>(*kind) : 0;
  const uint64_t image = (seed * 100003 + nth) * 16 + kind_number;
  Prng prng(image);  // each choice on its own
  const auto world = SimWorld::Make({seed, kUnlimitedBytes});
  StoreMachine machine(world, seed);
  const Fault fault = DrawGroupFault(kind, nth, &prng);
  const std::string where = StrCat("seed ", seed, ": ", Describe(fault));
  world->AddFault(fault);
  GroupExpected expected;
  std::shared_ptr<SimWorld> crashed;
  {
    GroupWorkload workload(&machine, seed);
    workload.Tolerate();
    workload.Run(actions);
    EXPECT_EQ(workload.problem(), "") << where << "\n" << machine.log();
    if (!workload.problem().empty() || world->faults_struck() == 0) return false;
    expected = {workload.Legal(), workload.Undecided()};
    if (prng.Coin()) {  // while the stores are open
      crashed = prng.OneIn(3) ? world->CrashImageProcessKill(prng.Next())
                              : ImageOf(*world, prng.Next() % 1'000'000);
    }
  }
  if (crashed == nullptr) {  // after they were let go
    crashed = prng.OneIn(3) ? world->CrashImageProcessKill(prng.Next())
                            : ImageOf(*world, prng.Next() % 1'000'000);
  }
  std::string problem;
  if (prng.OneIn(3)) problem = RecoverOnFailingDisks(&crashed, &expected, &prng);
  if (problem.empty()) {
    const int crashes = prng.OneIn(4) ? 1 + static_cast<int>(prng.Below(2)) : 0;
    problem = CheckGroupImage(crashed, expected, prng.Next(), crashes);
  }
  EXPECT_EQ(problem, "") << where << "\n" << machine.log();
  return problem.empty();
}

uint64_t FailGroupEverywhere(uint64_t seed, int actions, uint64_t stride) {
  uint64_t images = 0;
  for (const auto& kind : kFailing) {
    // The operations are many: each is failed at first, and fewer later.
    for (uint64_t nth = 1; FailGroupAt(seed, actions, kind, nth); nth += stride + nth / 8) {
      ++images;
    }
    if (testing::Test::HasFailure()) break;
  }
  return images;
}

TEST(GroupFaultTest, AFaultAtEveryOperation) {
  uint64_t images = 0;
  for (uint64_t seed = 1; seed <= 3 && !HasFailure(); ++seed) {
    images += FailGroupEverywhere(seed, 14, 5);
  }
  std::cout << "group faults: " << images << " images\n";
  EXPECT_GE(images, 250U);
}

// For hours, or to replay one seed (README.md).
TEST(GroupFaultTest, SoakOnFailingDisks) {
  uint64_t first = 1;
  uint64_t rounds = 1;
  if (!SeedsFromOutside(&first, &rounds)) GTEST_SKIP() << "STEPWELL_SIM_SEED is not set";
  uint64_t images = 0;
  for (uint64_t seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    images += FailGroupEverywhere(seed, 10 + static_cast<int>(seed % 40), 1 + seed % 5);
  }
  std::cout << "group faults: " << images << " crash images\n";
}

}  // namespace
}  // namespace stepwell::sim
