// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/group_workload.h"

#include <algorithm>
#include <utility>

namespace stepwell::sim {
namespace {

using db::Saves;

std::vector<db::LeafSpec> PartSpecs(uint32_t part, uint64_t save) {
  return {{db::PartLeaf(part), {2000 + 700 * (save % 5) + 100 * part}, save % 2 == 0, false},
          {StrCat("big", part), {save % 6 == 0 ? uint64_t{20000} : uint64_t{9}}, true, false},
          {StrCat("sparse", part), {5000}, save % 2 == 1, false, 1, 0, 0, 40}};
}

// Every byte of a step, through part 0.
Status CheckWhole(db::Store* root, uint64_t step, uint64_t save) {
  std::vector<db::LeafSpec> specs;
  for (uint32_t part = 0; part < kParts; ++part) {
    for (const auto& spec : PartSpecs(part, save)) specs.push_back(spec);
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, root->Read(step));
  // A text that cannot be read is left out; that is no wrong text.
  if (reader->step().metadata_json.empty()) return DataLossError("a step without metadata");
  return db::CheckSeeded(reader.get(), save, specs);
}

}  // namespace

std::string SavesText(const Saves& saves) {
  std::string text = "{";
  for (const auto& [step, save] : saves) text += StrCat(" ", step, ":", save);
  return text + " }";
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

Status GroupStores::Open(StoreMachine* machine) {
  parts.clear();
  statistics = !statistics;
  for (uint32_t part = 0; part < kParts; ++part) {
    STEPWELL_RETURN_IF_ERROR(OpenOne(machine, part));
  }
  return OkStatus();
}

Status GroupStores::OpenOne(StoreMachine* machine, uint32_t part) {
  parts.resize(std::max<size_t>(parts.size(), part + 1));
  parts[part].reset();
  const format::Id128 id = part == 0 ? format::Id128{} : parts[0]->id();
  STEPWELL_ASSIGN_OR_RETURN(parts[part], machine->Open({.keep_latest = kGroupKeep,
                                                        .group = db::StoreGroup{id, part},
                                                        .statistics = statistics}));
  return OkStatus();
}

std::vector<db::Store*> GroupStores::Pointers() const {
  std::vector<db::Store*> pointers;
  for (const auto& store : parts) pointers.push_back(store.get());
  return pointers;
}

Result<Saves> ReadSaves(db::Store* root) {
  STEPWELL_ASSIGN_OR_RETURN(const Saves saves, db::SavesOf(root));
  for (const auto& [step, save] : saves) {
    STEPWELL_RETURN_IF_ERROR(CheckWhole(root, step, save));
  }
  return saves;
}

void GroupWorkload::Run(int actions) {
  if (!Expect(stores_.Open(machine_), "open")) return;
  for (int i = 0; i < actions; ++i) {
    if (!Act()) return;
  }
  for (auto& store : stores_.parts) {
    if (!Expect(store->Close(), "close")) return;
  }
}

std::vector<Saves> GroupWorkload::Legal() const {
  return in_doubt_ ? std::vector<Saves>{visible_, *in_doubt_} : std::vector<Saves>{visible_};
}

std::vector<std::set<uint64_t>> GroupWorkload::Undecided() const {
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

bool GroupWorkload::Expect(const Status& status, std::string_view what) {
  if (status.ok()) return true;
  const bool wrong = status.code() == StatusCode::kInternal;
  if (!machine_->world().frozen() && (!tolerant_ || wrong)) {
    problem_ = StrCat(what, ": ", status.ToString());
  }
  return false;
}

bool GroupWorkload::Prepare() {
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

bool GroupWorkload::Decide(Open& open) {
  for (auto& handle : open.handles) {
    if (!Expect(handle->Wait(), "prepared")) return false;
  }
  db::Decision decision = db::Commit(open.step, open.save);
  decision.commit = !prng_.OneIn(4);
  open.deciding = true;
  Saves after = visible_;
  if (decision.commit) {
    after.erase(open.step);
    if (after.size() >= kGroupKeep) {
      auto low = after.begin();
      for (size_t drop = after.size() + 1 - kGroupKeep; drop > 0; --drop) low = after.erase(low);
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

bool GroupWorkload::Reopen() {
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

bool GroupWorkload::Act() {
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

std::string CheckKept(const GroupStores& stores, const GroupExpected& expected) {
  for (uint32_t part = 0; part < kParts; ++part) {
    std::set<format::Id128> has;
    const auto group = stores.parts[part]->Group();
    const auto steps = stores.parts[part]->Steps();
    if (!group.ok() || !steps.ok()) return kListFailed;
    for (const auto& step : group->prepared) has.insert(step.group->save_id);
    for (const auto& step : *steps) has.insert(step.group->save_id);
    for (const uint64_t save : expected.undecided[part]) {
      if (!has.contains(db::SaveId(save))) return StrCat("part ", part, " lost save ", save);
    }
  }
  return "";
}

std::string CheckGroupImage(const std::shared_ptr<SimWorld>& image, GroupExpected expected,
                            uint64_t seed, int crashes) {
  Prng prng(seed ^ 0x97011);
  const auto failed = [](std::string_view what, const Status& status) {
    return StrCat(what, ": ", status.ToString());
  };
  if (crashes > 0) {
    const auto world = image->CrashImageProcessKill(prng.Next());
    world->FreezeAt(1 + prng.Below(150));
    {
      StoreMachine machine(world, prng.Next());
      GroupStores stores;
      Status status = stores.Open(&machine);
      if (status.ok() && !world->frozen()) {
        const auto seen = ReadSaves(stores.parts[0].get());
        if (!seen.ok()) return failed("before another crash", seen.status());
        if (!world->frozen()) expected.legal = {*seen};
        status = db::Settle(stores.Pointers());
        if (!status.ok() && !world->frozen()) return failed("settle before a crash", status);
      }
      if (!status.ok() && !world->frozen()) return failed("open before a crash", status);
    }
    expected.undecided.assign(kParts, {});
    const auto next = prng.OneIn(3) ? world->CrashImageProcessKill(prng.Next())
                                    : world->Crash({prng.Next(), {}, {}});
    const std::string problem = CheckGroupImage(next, expected, prng.Next(), crashes - 1);
    return problem.empty() ? problem : "after another crash: " + problem;
  }
  std::string files;
  for (const auto& [path, size] : image->Files()) files += StrCat(" ", path, ":", size);
  StoreMachine machine(image, seed);
  GroupStores stores;
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
  if (Status status = db::Settle(stores.Pointers()); !status.ok()) return failed("settle", status);
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

}  // namespace stepwell::sim
