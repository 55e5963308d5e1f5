// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/branch_history.h"

#include <algorithm>
#include <utility>

#include "db/export/branch.h"
#include "db/export/orbax/folder.h"
#include "tests/sim/support/store_checker.h"
#include "tests/sim/support/store_faults.h"

namespace stepwell::sim {
namespace {

constexpr size_t kMembersMax = 4;
constexpr int kTriesMax = 20;
constexpr std::string_view kTemporary = ".stepwell-tmp";

Steps UpTo(Steps steps, uint64_t last) {
  steps.erase(steps.upper_bound(last), steps.end());
  return steps;
}

void AddOnce(Steps steps, std::vector<Steps>* legal) {
  if (std::find(legal->begin(), legal->end(), steps) == legal->end()) {
    legal->push_back(std::move(steps));
  }
}

// A store of the usual segments, smaller than a step at times: reclaim has work.
Shape FamilyShape(uint64_t seed) {
  Shape shape = ShapeOf(seed);
  shape.first_steps = 0;
  shape.segment_bytes = std::min(shape.segment_bytes, uint64_t{192} << 10);
  shape.squeezes = false;  // one process's full disk is all others'
  return shape;
}

bool Exists(const std::shared_ptr<SimWorld>& world, const std::string& path) {
  return SimFileSystem(world).Stat(path).ok();
}

// Opens and writes to the remains of a branch that was removed. They may lack anything, and give no
// wrong bytes.
std::string UseRemains(const std::shared_ptr<SimWorld>& image, const std::string& path,
                       uint64_t seed) {
  StoreMachine machine(image, seed);
  const auto store = machine.Open({.path = path});
  Status status = store.status();
  if (store.ok()) {
    status = ReadAll(store->get()).status();
    if (status.code() != StatusCode::kInternal) {
      SaveStep(store->get(), kNewStep, seed % 1000).status().IgnoreError("it may lack anything");
      (*store)->Reclaim().status().IgnoreError("it may lack anything");
    }
  }
  if (status.code() != StatusCode::kInternal) return "";
  return StrCat("what is left of ", path, ": ", status.ToString(), "\nlog: ", machine.log());
}

}  // namespace

BranchFamily::BranchFamily(uint64_t seed, bool faults)
    : seed_(seed),
      faults_(faults),
      prng_(seed ^ 0xB4A9C4),
      shape_(FamilyShape(seed)),
      world_(SimWorld::Make({seed, kUnlimitedBytes})) {
  members_.push_back(std::make_unique<Member>());
  members_.back()->path = kStorePath;
}

BranchFamily::~BranchFamily() = default;

std::vector<Steps> BranchFamily::LegalOf(const Member& member) const {
  return member.workload == nullptr ? member.legal : member.workload->model().Legal();
}

BranchFamily::Member* BranchFamily::AnyMember() {
  std::vector<Member*> there;
  for (const auto& member : members_) {
    if (!member->removed) there.push_back(member.get());
  }
  return there[prng_.Below(there.size())];
}

void BranchFamily::Start(Member* member) {
  if (member->workload != nullptr) return;
  Shape shape = shape_;
  shape.path = member->path;
  member->machine = std::make_unique<StoreMachine>(world_, prng_.Next());
  member->workload =
      std::make_unique<Workload>(member->machine.get(), prng_.Next(), shape, member->legal);
  if (faults_) member->workload->Tolerate();
}

std::string BranchFamily::ProblemOf(const Member& member) const {
  const std::string& problem = member.workload->problem();
  if (problem.empty()) return problem;
  return StrCat(member.path, ": ", problem, "\nlog: ", member.machine->log());
}

std::string BranchFamily::Act() {
  if (members_.size() < kMembersMax && prng_.OneIn(12)) return MakeBranch();
  if (prng_.OneIn(25)) RemoveBranch();
  Member* const member = AnyMember();
  Start(member);
  if (!member->workload->Act() && faults_ && prng_.OneIn(3)) {
    member->workload->Drop();
    if (prng_.Coin()) world_->ClearFaults();
  }
  return ProblemOf(*member);
}

// Branches from a step that is there, with saves in flight or without.
std::string BranchFamily::MakeBranch() {
  Member* const from = AnyMember();
  Start(from);
  if (from->workload->store() == nullptr && !from->workload->Open()) return ProblemOf(*from);
  const Steps visible = LegalOf(*from).front();
  if (visible.empty()) return "";
  const auto at = static_cast<std::ptrdiff_t>(prng_.Below(visible.size()));
  const uint64_t last =
      prng_.OneIn(3) ? visible.rbegin()->first : std::next(visible.begin(), at)->first;
  auto made = std::make_unique<Member>();
  made->path = StrCat(kStorePath, "-", ++number_);
  made->acknowledged = false;
  SimFileSystem files(world_);
  const std::string temporary = made->path + std::string(kTemporary);
  Status status = Fork(from, temporary, last, prng_.OneIn(3), made.get());
  bool renamed = false;
  if (status.ok()) {
    status = files.Rename(temporary, made->path);
    renamed = status.ok();
  }
  if (status.ok()) status = files.SyncDirectory("/");
  made->acknowledged = status.ok();
  if (status.ok()) ++made_;
  if (renamed || world_->frozen()) members_.push_back(std::move(made));
  if (!renamed && !status.ok()) db::RemoveTree(&files, temporary);
  if (status.ok() || world_->frozen() || (faults_ && status.code() != StatusCode::kInternal)) {
    return ProblemOf(*from);
  }
  return StrCat("a branch of ", from->path, " at ", last, ": ", status.ToString(),
                "\nlog: ", from->machine->log());
}

// `strike`: the other process goes on between the links.
Status BranchFamily::Fork(Member* from, const std::string& path, uint64_t last, bool strike,
                          Member* made) {
  SimFileSystem files(world_);
  db::Store* const store = from->workload->store();
  Status status = UnavailableError("not tried yet");
  std::vector<Steps> legal;
  // Waits for the save or move that is writing.
  for (int i = 0; i < kTriesMax && status.code() == StatusCode::kUnavailable; ++i) {
    if (i > 0) {
      store->Wait().IgnoreError("the model asks the handles");
      store->Reclaim().status().IgnoreError("the engine goes on, on this thread");
    }
    legal = LegalOf(*from);
    made->legal.clear();
    for (const Steps& steps : legal) AddOnce(UpTo(steps, last), &made->legal);
    int strikes = strike ? 2 : 0;
    world_->SetHook([&](OpKind kind) {
      if (kind != OpKind::kLink || strikes-- <= 0) return;
      from->workload->GoOnBeside(/*reclaims=*/!world_->HasLocks(from->path + "/RECLAIM"));
    });
    // Passes would wait for the lock that this very thread holds.
    from->machine->HoldReclaim(true);
    status = db::Branch(*store, path, &files);
    world_->SetHook(nullptr);
    from->machine->HoldReclaim(false);
  }
  STEPWELL_RETURN_IF_ERROR(status);
  if (prng_.OneIn(3)) {  // with all that the other has
    made->legal = std::move(legal);
    return OkStatus();
  }
  StoreMachine machine(world_, prng_.Next());
  return Cut(&machine, path, last, legal, made);
}

// Does what Python's `_cut` does.
Status BranchFamily::Cut(StoreMachine* machine, const std::string& path, uint64_t last,
                         const std::vector<Steps>& legal, Member* made) {
  STEPWELL_ASSIGN_OR_RETURN(const auto store, machine->Open({.path = path}));
  STEPWELL_ASSIGN_OR_RETURN(const Steps seen, ReadAll(store.get()));
  if (world_->frozen()) return AbortedError("stopped");
  if (std::find(legal.begin(), legal.end(), seen) == legal.end()) {
    std::string text = StrCat("a branch with ", ToText(seen), ", legal is");
    for (const Steps& steps : legal) text += StrCat(" ", ToText(steps));
    return InternalError(text);
  }
  made->legal = {UpTo(seen, last)};
  std::vector<uint64_t> later;
  std::vector<uint64_t> pinned;
  for (auto it = seen.upper_bound(last); it != seen.end(); ++it) {
    later.push_back(it->first);
    if (it->second & kPinned) pinned.push_back(it->first);
  }
  if (!pinned.empty()) STEPWELL_RETURN_IF_ERROR(store->SetPinned(pinned, false));
  if (!later.empty()) STEPWELL_RETURN_IF_ERROR(store->Delete(later));
  return store->Close();
}

// Without a word to the others, and not durably.
void BranchFamily::RemoveBranch() {
  Member* const member = AnyMember();
  if (member->path == kStorePath || world_->frozen()) return;
  member->workload.reset();
  member->machine.reset();
  member->removed = true;
  SimFileSystem files(world_);
  db::RemoveTree(&files, member->path);
}

std::string BranchFamily::RunSession(uint64_t actions) {
  for (uint64_t i = 0; i < actions && !world_->frozen(); ++i) {
    if (faults_ && prng_.OneIn(16)) PlanFaults(world_.get(), &prng_);
    std::string problem = Act();
    if (problem.empty() && prng_.OneIn(12)) problem = CheckAnImage();
    if (!problem.empty()) return StrCat("action ", i, ": ", problem);
    if (i == actions / 2 && prng_.Coin()) {
      world_->FreezeAt(world_->mutating_ops() + 1 + prng_.Below(400));
    }
  }
  return EndSession();
}

std::string BranchFamily::EndSession() {
  for (int i = 0; i < 2; ++i) {
    if (std::string problem = CheckAnImage(); !problem.empty()) {
      return StrCat("at the end: ", problem);
    }
  }
  auto next = ImageOf(*world_, prng_.Next() % 1'000'000);
  for (const auto& member : members_) {
    member->legal = LegalOf(*member);
    member->workload.reset();
    member->machine.reset();
  }
  world_ = std::move(next);
  SimFileSystem files(world_);
  std::erase_if(members_, [&](const auto& member) {
    if (member->removed) db::RemoveTree(&files, member->path);
    // The next branch of that name removes what was begun under its temporary name.
    db::RemoveTree(&files, member->path + std::string(kTemporary));
    return member->removed || !Exists(world_, member->path);
  });
  for (const auto& member : members_) member->acknowledged = true;
  return "";
}

std::string BranchFamily::CheckAnImage() {
  return Check(ImageOf(*world_, prng_.Next() % 1'000'000));
}

std::string BranchFamily::Check(const std::shared_ptr<SimWorld>& image) {
  struct Look {
    const Member* member;
    Steps steps;
  };
  std::vector<Look> looks;
  for (const auto& member : members_) looks.push_back({member.get(), {}});
  for (size_t i = looks.size(); i > 1; --i) std::swap(looks[i - 1], looks[prng_.Below(i)]);
  std::vector<Look> there;
  for (const Look& look : looks) {
    const Member& member = *look.member;
    const uint64_t seed = prng_.Next() % 1'000'000;
    if (member.removed) {
      if (std::string problem = UseRemains(image, member.path, seed); !problem.empty()) {
        return problem;
      }
      continue;
    }
    if (!member.acknowledged && !Exists(image, member.path)) continue;
    const std::string problem =
        CheckImage(image, LegalOf(member), {seed, false, prng_.OneIn(6) ? 1 : 0, member.path});
    if (!problem.empty()) return StrCat(member.path, ": ", problem);
    there.push_back(look);
  }
  for (Look& look : there) {
    const std::string problem = GoOn(image, *look.member, prng_.Next() % 1000, &look.steps);
    if (!problem.empty()) return StrCat(look.member->path, " goes on: ", problem);
  }
  // All of them, whatever the others have done since.
  for (const Look& look : there) {
    StoreMachine machine(image, prng_.Next());
    const auto store = machine.Open({.read_only = prng_.Coin(), .path = look.member->path});
    const auto seen = store.ok() ? ReadAll(store->get()) : store.status();
    const std::string where = StrCat(look.member->path, " beside the others: ");
    if (!seen.ok()) return StrCat(where, seen.status().ToString(), "\nlog: ", machine.log());
    if (*seen != look.steps) return StrCat(where, ToText(*seen), ", not ", ToText(look.steps));
    const auto report = (*store)->Verify({});
    if (!report.ok()) return StrCat(where, report.status().ToString());
    if (!report->problems.empty()) return StrCat(where, report->problems[0].message);
  }
  return "";
}

// Goes on with the store that CheckImage left: deletes some steps, takes the space, and saves into
// it.
std::string BranchFamily::GoOn(const std::shared_ptr<SimWorld>& image, const Member& member,
                               uint64_t seed, Steps* steps) {
  StoreMachine machine(image, seed);
  const auto go_on = [&]() -> Status {
    STEPWELL_ASSIGN_OR_RETURN(const auto store, machine.Open({.segment_bytes = shape_.segment_bytes,
                                                              .path = member.path}));
    STEPWELL_ASSIGN_OR_RETURN(*steps, ReadAll(store.get()));
    Steps old = *steps;
    old.erase(kNewStep);
    std::vector<Steps> legal = LegalOf(member);
    for (Steps& verified : legal) {  // by CheckImage
      for (auto& [step, held] : verified) held |= kVerified;
    }
    if (!steps->contains(kNewStep) || std::find(legal.begin(), legal.end(), old) == legal.end()) {
      return InternalError(StrCat("it has ", ToText(*steps)));
    }
    Prng prng(seed);
    for (const auto& [step, held] : Steps(*steps)) {
      if (held & kPinned || prng.OneIn(3)) continue;
      STEPWELL_RETURN_IF_ERROR(store->Delete({&step, 1}));
      steps->erase(step);
    }
    for (uint64_t i = 1; i <= 8; ++i) {
      if (i == 4) STEPWELL_RETURN_IF_ERROR(store->Reclaim().status());
      const uint64_t held = prng.Below(1000);
      STEPWELL_ASSIGN_OR_RETURN(const auto handle, SaveStep(store.get(), kNewStep + i, held));
      STEPWELL_RETURN_IF_ERROR(handle.Wait());
      (*steps)[kNewStep + i] = HeldOf(held);
    }
    return store->Close();
  };
  const Status status = go_on();
  return status.ok() ? "" : StrCat(status.ToString(), "\nlog: ", machine.log());
}

std::string RunBranchHistory(const BranchHistoryOptions& options, uint64_t* branches) {
  Prng prng(options.seed ^ 0xB4A9);
  BranchFamily family(options.seed, options.faults);
  std::string problem;
  const uint64_t sessions = 1 + prng.Below(3);
  for (uint64_t session = 0; session < sessions && problem.empty(); ++session) {
    problem = family.RunSession(20 + prng.Below(50));
    if (!problem.empty()) problem = StrCat("session ", session, ": ", problem);
  }
  *branches += family.branches_made();
  return problem;
}

}  // namespace stepwell::sim
