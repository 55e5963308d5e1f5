// SPDX-License-Identifier: Apache-2.0
// Power cuts, kills and failing operations at every moment of a group's life: three stores of one
// machine prepare steps, decide them, abort some, start segments and reclaim beside undecided ones.
// What a crash leaves is read through part 0 before anybody decides, then decided as a collective
// open does.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <iostream>

#include "tests/db/support/group_support.h"
#include "tests/sim/support/store_machine.h"

namespace stepwell::sim {
namespace {

constexpr uint32_t kParts = 3;
constexpr uint64_t kGroupOperationImages = 1500;
constexpr uint64_t kFaultImages = 60;
constexpr uint64_t kKeep = 3;

using db::Saves;

std::string SavesText(const Saves& saves) {
  std::string text = "{";
  for (const auto& [step, save] : saves) text += StrCat(" ", step, ":", save);
  return text + " }";
}

std::vector<db::LeafSpec> PartSpecs(uint32_t part, uint64_t save) {
  return {{db::PartLeaf(part), {2000 + 700 * (save % 5) + 100 * part}, save % 2 == 0, false},
          {StrCat("big", part), {save % 6 == 0 ? uint64_t{20000} : uint64_t{9}}, true, false}};
}

Result<db::SaveHandle> PreparePart(db::Store* store, uint64_t step, uint64_t save) {
  std::vector<std::vector<float>> scratch;
  scratch.reserve(4);
  const uint32_t part = store->part().part;
  db::SaveRequest request = db::MakeRequest(step, save, PartSpecs(part, save), &scratch);
  if (part != 0) request.items[0].leaves.pop_back();  // values are part 0's
  request.if_exists = db::IfExists::kReplace;
  request.group = db::GroupSave{db::SaveId(save), {0, 1, 2}};
  auto handle = store->Save(std::move(request));
  for (auto& data : scratch) std::fill(data.begin(), data.end(), -1.0F);
  return handle;
}

struct Stores {
  std::vector<std::unique_ptr<db::Store>> parts;

  Status Open(StoreMachine* machine) {
    parts.clear();
    for (uint32_t part = 0; part < kParts; ++part) {
      STEPWELL_RETURN_IF_ERROR(OpenOne(machine, part));
    }
    return OkStatus();
  }
  Status OpenOne(StoreMachine* machine, uint32_t part) {
    parts.resize(std::max<size_t>(parts.size(), part + 1));
    parts[part].reset();
    const format::Id128 id = part == 0 ? format::Id128{} : parts[0]->id();
    STEPWELL_ASSIGN_OR_RETURN(
        parts[part], machine->Open({.keep_latest = kKeep, .group = db::StoreGroup{id, part}}));
    return OkStatus();
  }
};

// Every byte of a step, through part 0.
Status CheckWhole(db::Store* root, uint64_t step, uint64_t save) {
  std::vector<db::LeafSpec> specs;
  for (uint32_t part = 0; part < kParts; ++part) {
    for (const auto& spec : PartSpecs(part, save)) specs.push_back(spec);
  }
  return db::CheckSeeded(root, step, save, specs);
}

Result<Saves> ReadSaves(db::Store* root) {
  STEPWELL_ASSIGN_OR_RETURN(const Saves saves, db::SavesOf(root));
  for (const auto& [step, save] : saves) {
    STEPWELL_RETURN_IF_ERROR(CheckWhole(root, step, save));
  }
  return saves;
}

// What a program of several processes does, one thing after the other.
class GroupWorkload {
 public:
  GroupWorkload(StoreMachine* machine, uint64_t seed) : machine_(machine), prng_(seed) {
    machine->world().SetCanPunch(seed % 3 != 0);
  }

  void Run(int actions) {
    if (!Expect(stores_.Open(machine_), "open")) return;
    for (int i = 0; i < actions; ++i) {
      if (!Act()) return;
    }
    for (auto& store : stores_.parts) {
      if (!Expect(store->Close(), "close")) return;
    }
  }

  // From now on an operation may fail: the first error ends the run, and is not a problem.
  void Tolerate() { tolerant_ = true; }
  const std::string& problem() const { return problem_; }
  // What part 0 may show: the second is not acknowledged.
  std::vector<Saves> Legal() const {
    return in_doubt_ ? std::vector<Saves>{visible_, *in_doubt_} : std::vector<Saves>{visible_};
  }
  // Saves that each part has acknowledged as prepared, and that nobody has begun to decide.
  std::vector<std::set<uint64_t>> Undecided() const {
    std::vector<std::set<uint64_t>> undecided(kParts);
    for (const Open& open : open_) {
      if (open.deciding) continue;
      for (uint32_t part = 0; part < kParts; ++part) {
        const auto& handle = open.handles[part];
        if (handle && handle->done() && handle->status().ok()) undecided[part].insert(open.save);
      }
    }
    return undecided;
  }

 private:
  struct Open {
    uint64_t step = 0;
    uint64_t save = 0;
    std::vector<std::optional<db::SaveHandle>> handles{kParts};
    bool deciding = false;
  };

  bool Expect(const Status& status, std::string_view what) {
    if (status.ok()) return true;
    if (!machine_->world().frozen() && !tolerant_) {
      problem_ = StrCat(what, ": ", status.ToString());
    }
    return false;
  }

  bool Prepare() {
    if (open_.size() >= 3) return Decide(open_.front());
    Open& open = open_.emplace_back();
    open.step = prng_.OneIn(5) && next_step_ > 1 ? next_step_ - 1 : next_step_++;  // or again
    open.save = next_save_++;
    for (uint32_t i = 0; i < kParts; ++i) {
      const auto part = static_cast<uint32_t>((i + open.save) % kParts);  // the first one changes
      auto handle = PreparePart(stores_.parts[part].get(), open.step, open.save);
      if (!Expect(handle.status(), "prepare")) return false;
      open.handles[part] = std::move(*handle);
      if (prng_.Coin() && !Expect(open.handles[part]->Wait(), "prepared")) return false;
    }
    return true;
  }

  bool Decide(Open& open) {
    for (auto& handle : open.handles) {
      if (!Expect(handle->Wait(), "prepared")) return false;
    }
    db::Decision decision = db::Commit(open.step, open.save);
    decision.commit = !prng_.OneIn(4);
    open.deciding = true;
    Saves after = visible_;
    if (decision.commit) {
      after.erase(open.step);
      if (after.size() >= kKeep) {
        auto low = after.begin();
        for (size_t drop = after.size() + 1 - kKeep; drop > 0; --drop) low = after.erase(low);
      }
      after[open.step] = open.save;
    }
    in_doubt_ = after;
    const auto decided = stores_.parts[0]->Decide(decision);
    // Any error but this one is a promise. (A machine that stopped has told nobody.)
    if (!decided.ok() && decided.status().code() != StatusCode::kOutcomeUnknown &&
        !machine_->world().frozen()) {
      in_doubt_.reset();
    }
    if (!Expect(decided.status(), "decide")) return false;
    visible_ = std::move(after);
    in_doubt_.reset();
    decision = db::PassOn(decision, *decided);
    for (uint32_t part = 1; part < kParts; ++part) {
      decision.wait = prng_.Coin();
      if (!Expect(stores_.parts[part]->Decide(decision).status(), "pass on")) return false;
    }
    std::erase_if(open_, [save = open.save](const Open& one) { return one.save == save; });
    return true;
  }

  bool Reopen() {
    const auto part = static_cast<uint32_t>(prng_.Below(kParts));
    for (Open& open : open_) {
      if (!Expect(open.handles[part]->Wait(), "prepared")) return false;
    }
    if (!Expect(stores_.parts[part]->Close(), "close")) return false;
    if (!Expect(stores_.OpenOne(machine_, part), "open again")) return false;
    if (!machine_->world().frozen() && !tolerant_ && !stores_.parts[part]->recovery().clean) {
      problem_ = "not clean after a close";
    }
    return problem_.empty();
  }

  bool Act() {
    const uint64_t roll = prng_.Below(100);
    if (roll < 45 || open_.empty()) return Prepare();
    // The others may be decided before the oldest.
    if (roll < 75) return Decide(open_[prng_.OneIn(4) ? open_.size() - 1 : 0]);
    if (roll < 82) return Reopen();
    if (roll < 92) {
      return Expect(stores_.parts[prng_.Below(kParts)]->Reclaim().status(), "reclaim");
    }
    const auto seen = ReadSaves(stores_.parts[0].get());
    if (!Expect(seen.status(), "read")) return false;
    if (*seen != visible_ && !machine_->world().frozen()) {
      problem_ = StrCat("part 0 shows ", SavesText(*seen), " instead of ", SavesText(visible_));
    }
    return problem_.empty();
  }

  StoreMachine* const machine_;
  Prng prng_;
  Stores stores_;
  std::deque<Open> open_;
  Saves visible_;
  std::optional<Saves> in_doubt_;
  uint64_t next_step_ = 1;
  uint64_t next_save_ = 1;
  bool tolerant_ = false;
  std::string problem_;
};

std::vector<db::Store*> Pointers(const Stores& stores) {
  std::vector<db::Store*> pointers;
  for (const auto& store : stores.parts) pointers.push_back(store.get());
  return pointers;
}

struct Expected {
  std::vector<Saves> legal;
  std::vector<std::set<uint64_t>> undecided;  // by part; these must be there
};

// Whether every save that a part promised to keep is prepared, or decided.
std::string CheckKept(const Stores& stores, const Expected& expected) {
  for (uint32_t part = 0; part < kParts; ++part) {
    std::set<format::Id128> has;
    const auto prepared = stores.parts[part]->Prepared();
    const auto steps = stores.parts[part]->Steps();
    if (!prepared.ok() || !steps.ok()) return "a list failed";
    for (const auto& step : *prepared) has.insert(step.group.save_id);
    for (const auto& step : *steps) has.insert(step.step.group->save_id);
    for (const uint64_t save : expected.undecided[part]) {
      if (!has.contains(db::SaveId(save))) return StrCat("part ", part, " lost save ", save);
    }
  }
  return "";
}

std::string CheckImage(const std::shared_ptr<SimWorld>& image, Expected expected, uint64_t seed,
                       int crashes) {
  Prng prng(seed ^ 0x97011);
  const auto failed = [](std::string_view what, const Status& status) {
    return StrCat(what, ": ", status.ToString());
  };
  if (crashes > 0) {
    const auto world = image->CrashImageProcessKill(prng.Next());
    world->FreezeAt(1 + prng.Below(150));
    {
      StoreMachine machine(world, prng.Next());
      Stores stores;
      Status status = stores.Open(&machine);
      if (status.ok() && !world->frozen()) {
        const auto seen = ReadSaves(stores.parts[0].get());
        if (!seen.ok()) return failed("before another crash", seen.status());
        if (!world->frozen()) expected.legal = {*seen};
        status = db::Settle(Pointers(stores));
        if (!status.ok() && !world->frozen()) return failed("settle before a crash", status);
      }
      if (!status.ok() && !world->frozen()) return failed("open before a crash", status);
    }
    expected.undecided.assign(kParts, {});
    const auto next = prng.OneIn(3) ? world->CrashImageProcessKill(prng.Next())
                                    : world->Crash({prng.Next(), {}, {}});
    const std::string problem = CheckImage(next, expected, prng.Next(), crashes - 1);
    return problem.empty() ? problem : "after another crash: " + problem;
  }
  std::string files;
  for (const auto& [path, size] : image->Files()) files += StrCat(" ", path, ":", size);
  StoreMachine machine(image, seed);
  Stores stores;
  if (Status status = stores.Open(&machine); !status.ok()) {
    return StrCat(failed("open", status), "\nfiles:", files, "\nlog: ", machine.log());
  }
  for (const auto& store : stores.parts) {
    for (const std::string& said : store->recovery().problems) return said;
  }
  if (std::string problem = CheckKept(stores, expected); !problem.empty()) return problem;
  const auto before = ReadSaves(stores.parts[0].get());
  if (!before.ok()) return failed("reading before it is settled", before.status());
  const auto& legal = expected.legal;
  if (std::find(legal.begin(), legal.end(), *before) == legal.end()) {
    return StrCat("found ", SavesText(*before), ", legal is ", SavesText(legal.front()), " or ",
                  SavesText(legal.back()));
  }
  if (Status status = db::Settle(Pointers(stores)); !status.ok()) return failed("settle", status);
  Saves saves = *before;
  const uint64_t save = 1'000'000 + seed % 7;
  for (const auto& store : stores.parts) {
    const auto mine = db::SavesOf(store.get());
    if (!mine.ok() || *mine != saves) return StrCat("part ", store->part().part, " differs");
    const auto handle = PreparePart(store.get(), 1'000'000, save);
    if (!handle.ok()) return failed("save", handle.status());
    if (!handle->Wait().ok()) return failed("save", handle->Wait());
  }
  const auto decided = stores.parts[0]->Decide(db::Commit(1'000'000, save));
  if (!decided.ok()) return failed("decide", decided.status());
  for (uint32_t part = 1; part < kParts; ++part) {
    const Status status =
        stores.parts[part]->Decide(db::PassOn(db::Commit(1'000'000, save), *decided)).status();
    if (!status.ok()) return failed("pass on", status);
  }
  const auto report = stores.parts[0]->Verify({});
  if (!report.ok()) return failed("verify", report.status());
  if (!report->problems.empty()) return StrCat("verify: ", report->problems.front().message);
  const auto last = ReadSaves(stores.parts[0].get());
  if (!last.ok()) return failed("reading", last.status());
  for (const auto& store : stores.parts) {
    if (Status status = store->Close(); !status.ok()) return failed("close", status);
  }
  if (Status status = stores.Open(&machine); !status.ok()) return failed("open again", status);
  for (const auto& store : stores.parts) {
    if (!store->recovery().clean) return "not clean after a clean close";
    if (!db::PreparedSteps(store.get()).empty()) return "something is undecided again";
  }
  const auto again = ReadSaves(stores.parts[0].get());
  if (!again.ok()) return failed("reading again", again.status());
  return *again == *last ? "" : StrCat("then ", SavesText(*again), " not ", SavesText(*last));
}

uint64_t StopGroupEverywhere(uint64_t seed, int actions, uint64_t stride) {
  uint64_t total = 0;
  uint64_t images = 0;
  for (uint64_t stop = 0; stop <= total; stop += stop == 0 ? 1 : stride) {
    const auto world = SimWorld::Make({seed, kPlenty});
    world->FreezeAt(stop);  // 0: never
    StoreMachine machine(world, seed);
    Expected expected;
    {
      GroupWorkload workload(&machine, seed);
      workload.Run(actions);
      EXPECT_EQ(workload.problem(), "") << "seed " << seed << " stop " << stop;
      if (!workload.problem().empty()) return images;
      expected = {workload.Legal(), workload.Undecided()};
      if (stop > 0 && !world->frozen()) break;
      if (stop == 0) {
        total = world->mutating_ops();
        continue;
      }
    }
    const uint64_t image = seed * 100003 + stop;
    ++images;
    const std::string problem =
        CheckImage(ImageOf(*world, image), expected, image, image % 4 == 0 ? 2 : 0);
    EXPECT_EQ(problem, "") << "seed " << seed << " stop " << stop << " of " << total << "\n"
                           << machine.log();
    if (!problem.empty()) return images;
  }
  return images;
}

TEST(GroupCrashTest, AStopAtEveryOperation) {
  uint64_t images = 0;
  for (uint64_t seed = 1; images < kGroupOperationImages && !HasFailure(); ++seed) {
    images += StopGroupEverywhere(seed, 14, 1);
  }
  std::cout << "groups: " << images << " crash images\n";
}

// One operation fails, whichever, half of the syncs after they were done: what part 0 answered to a
// decision holds after a crash, and what it did not know is there for all parts or for none.
uint64_t FailGroupEverywhere(uint64_t seed, int actions, uint64_t stride) {
  uint64_t images = 0;
  for (uint64_t nth = 1;; nth += stride) {
    const auto world = SimWorld::Make({seed, kPlenty});
    StoreMachine machine(world, seed);
    const bool is_done = (seed + nth) % 2 == 0;
    world->AddFault(
        {.nth = nth, .effect = is_done ? Fault::Effect::kDoAndFail : Fault::Effect::kFail});
    Expected expected;
    {
      GroupWorkload workload(&machine, seed);
      workload.Tolerate();
      workload.Run(actions);
      EXPECT_EQ(workload.problem(), "") << "seed " << seed << " fault " << nth;
      if (!workload.problem().empty() || world->mutating_ops() < nth) return images;
      expected = {workload.Legal(), workload.Undecided()};
    }
    const uint64_t image = seed * 100003 + nth;
    ++images;
    const auto crashed =
        image % 2 == 0 ? world->CrashImageProcessKill(image) : world->Crash({image, {}, {}});
    const std::string problem = CheckImage(crashed, expected, image, image % 8 == 0 ? 1 : 0);
    EXPECT_EQ(problem, "") << "seed " << seed << " fault " << nth << "\n" << machine.log();
    if (!problem.empty()) return images;
  }
}

TEST(GroupCrashTest, AFaultAtEveryOperation) {
  uint64_t images = 0;
  for (uint64_t seed = 1; images < kFaultImages && !HasFailure(); ++seed) {
    images += FailGroupEverywhere(seed, 14, 3);
  }
  std::cout << "groups: " << images << " images after a fault\n";
}

// A decision that is told twice is acknowledged when it is durable, the second time, too.
TEST(GroupCrashTest, ARepeatedDecisionWaitsForTheFirst) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto world = SimWorld::Make({seed, kPlenty});
    StoreMachine machine(world, seed);
    Stores stores;
    ASSERT_OK(stores.Open(&machine));
    for (const auto& store : stores.parts) {
      auto handle = PreparePart(store.get(), 1, 1);
      ASSERT_OK(handle.status());
      ASSERT_OK(handle->Wait());
    }
    const auto decided = stores.parts[0]->Decide(db::Commit(1, 1));
    ASSERT_OK(decided.status());
    db::Decision told = db::PassOn(db::Commit(1, 1), *decided);
    for (const bool wait : {false, true}) {
      told.wait = wait;
      ASSERT_OK(stores.parts[1]->Decide(told).status());
    }
    StoreMachine after(world->Crash({seed, SectorOdds{0, 1, 0, 0}, NameLoss::kPrefix}), seed);
    Stores crashed;
    ASSERT_OK(crashed.Open(&after));
    EXPECT_TRUE(db::PreparedSteps(crashed.parts[1].get()).empty());
  }
}

// Of the seeds that STEPWELL_SIM_SEED and STEPWELL_SIM_ROUNDS name.
template <typename Run>
void SoakGroups(const Run& run) {
  const char* seed_text = std::getenv("STEPWELL_SIM_SEED");
  const char* rounds_text = std::getenv("STEPWELL_SIM_ROUNDS");
  if (seed_text == nullptr && rounds_text == nullptr) {
    GTEST_SKIP() << "STEPWELL_SIM_SEED and STEPWELL_SIM_ROUNDS are not set";
  }
  const uint64_t first = seed_text == nullptr ? 1 : std::strtoull(seed_text, nullptr, 10);
  const uint64_t rounds = rounds_text == nullptr ? 1 : std::strtoull(rounds_text, nullptr, 10);
  uint64_t images = 0;
  for (uint64_t seed = first; seed < first + rounds && !testing::Test::HasFailure(); ++seed) {
    images += run(seed, 10 + static_cast<int>(seed % 40), 1 + seed % 5);
  }
  std::cout << "groups: " << images << " crash images\n";
}

// For hours, or to replay one seed.
TEST(GroupCrashTest, Soak) { SoakGroups(StopGroupEverywhere); }
TEST(GroupCrashTest, SoakOnFailingDisks) { SoakGroups(FailGroupEverywhere); }

}  // namespace
}  // namespace stepwell::sim
