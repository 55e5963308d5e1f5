// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/support/damage_sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "format/frame.h"
#include "tests/sim/support/step_texts.h"

namespace stepwell::sim {
namespace {

// Even: with an item that can be deleted; two leaves of few bytes beside it.
constexpr uint64_t kSeedWithExtra = 20;

class SampleMaker {
 public:
  explicit SampleMaker(const SampleShape& shape)
      : world_(SimWorld::Make({7 + shape.sessions, kUnlimitedBytes})), machine_(world_, 7) {
    sample_.spec.with_index = shape.with_index;
    if (shape.group) sample_.spec.group = db::StoreGroup{format::Id128{}, 0};
    for (uint64_t session = 0; session < shape.sessions; ++session) {
      store_ = *machine_.Open(sample_.spec);
      if (session == 0) {
        for (uint64_t step = 10; step < 14; ++step) Save(step);
        Delete(10);
        Pin(12, true);
      }
      Save(11);  // replaces it, each time with another value
      if (session > 0) {
        Pin(12, session % 2 == 0);
        Save(20 + session);
        Delete(20 + session);
      }
      if (session < 2) DeleteItem(15 + session);
      if (shape.group) SaveInGroup(session);
      Save(30 + session);
      Pin(13, session % 2 == 0);  // frames behind that of the newest step
      Taint(30 + session, session % 2 == 0);
      Taint(11, true);
      // STEPWELL then says that it was closed.
      if (session + 1 < shape.sessions || shape.clean) Note(store_->Close());
    }
    sample_.name = NameOf(shape);
    sample_.world = world_->CrashImageProcessKill(1);
    sample_.wanted = steps_;
    sample_.undecided = undecided_;
  }

  Sample Take() { return std::move(sample_); }

 private:
  // After each change.
  void Note(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.ToString();
    SampleState& state = sample_.states.emplace_back();
    state.steps = steps_;
    state.undecided = undecided_;
    for (const auto& [path, size] : world_->Files()) {
      if (path.ends_with("/STEPWELL")) state.slots = *world_->Contents(path);
      if (path.ends_with(".seg")) state.segments[path] = *world_->Contents(path);
    }
  }
  void Save(uint64_t step) { Save(step, SmallSeed(++seeds_)); }
  void Save(uint64_t step, uint64_t seed) {
    steps_[step] = HeldOf(seed);
    Note(SaveStep(store_.get(), step, seed, db::IfExists::kReplace)->Wait());
  }
  void Delete(uint64_t step) {
    steps_.erase(step);
    Note(store_->Delete(std::vector<uint64_t>{step}));
  }
  void Pin(uint64_t step, bool pinned) {
    steps_[step] = SeedOf(steps_[step]) | (pinned ? kPinned : 0);
    Note(store_->SetPinned(std::vector<uint64_t>{step}, pinned));
  }
  void Taint(uint64_t step, bool tainted) {
    steps_[step] = tainted ? steps_[step] | kTainted : steps_[step] & ~kTainted;
    Note(store_->SetTaint(std::vector<uint64_t>{step}, tainted ? TaintOf(step) : ""));
  }
  void DeleteItem(uint64_t step) {
    Save(step, kSeedWithExtra);
    steps_[step] = kSeedWithExtra;
    Note(store_->DeleteItems(step, std::vector<std::string>{"extra"}));
  }
  // One step is committed, one aborted, one left for the next session to commit.
  void SaveInGroup(uint64_t session) {
    const uint64_t step = 40 + 3 * session;
    if (session > 0) Decide(step - 1, true);
    for (uint64_t i = 0; i < 3; ++i) Prepare(step + i);
    Decide(step, true);
    Decide(step + 1, false);
  }
  void Prepare(uint64_t step) {
    undecided_.insert(step);  // the number of the step is that of the save
    Note(SaveStep(store_.get(), step, SmallSeed(step), db::IfExists::kError,
                  db::GroupSave{db::SaveId(step), {0}})
             ->Wait());
  }
  void Decide(uint64_t step, bool commit) {
    undecided_.erase(step);
    if (commit) steps_[step] = HeldOf(SmallSeed(step));
    Note(store_->Decide(commit ? db::Commit(step, step) : db::Abort(step, step)).status());
  }

  std::shared_ptr<SimWorld> world_;
  StoreMachine machine_;
  std::unique_ptr<db::Store> store_;
  Steps steps_;
  std::set<uint64_t> undecided_;
  uint64_t seeds_ = 0;
  Sample sample_;
};

// Returns what is wrong with the prepared steps; "" for nothing.
std::string LookAtPrepared(db::Store* store, const std::set<uint64_t>& undecided, bool* errors) {
  const auto group = store->Group();
  *errors = *errors || !group.ok();
  if (!group.ok()) return "";
  std::set<format::Id128> there;
  for (const auto& step : group->prepared) there.insert(step.group->save_id);
  for (const uint64_t save : undecided) {
    if (there.erase(db::SaveId(save)) == 0) return "an undecided step is missing";
  }
  return there.empty() ? "" : "a decided step is undecided";
}

}  // namespace

std::string RegionOf(const std::string& path, const std::string& bytes, uint64_t offset) {
  if (!path.ends_with(".seg")) return path.substr(path.rfind('/') + 1);
  static const char* const kNames[] = {"?",       "header", "catalog", "epoch",  "records",
                                       "commit",  "delete", "meta",    "footer", "trailer",
                                       "decided", "parity", "prepared"};
  for (uint64_t at = offset / kBlock * kBlock;; at -= kBlock) {
    const auto header = format::DecodeFrameHeader(
        AsBytes(bytes).subspan(at, std::min<size_t>(format::kFrameHeaderBytes, bytes.size() - at)));
    if (header.ok()) {
      const uint64_t end = at + format::kFrameHeaderBytes + header->payload_bytes;
      const auto kind = static_cast<size_t>(header->kind);
      if (offset < end) return kind < std::size(kNames) ? kNames[kind] : "?";
      return at == offset / kBlock * kBlock ? "padding" : "payload";
    }
    if (at == 0) return "payload";
  }
}

bool HasCopy(const std::string& region) {
  static const std::set<std::string> kRegions = {"header", "catalog", "epoch",  "commit",
                                                 "delete", "meta",    "decided"};
  return kRegions.contains(region);
}

bool IsOfTheStore(const std::string& path) {
  return path.ends_with("/STEPWELL") || path.ends_with(".seg");
}

std::string NameOf(const SampleShape& shape) {
  return StrCat(shape.sessions, shape.sessions == 1 ? " session, " : " sessions, ",
                shape.clean ? "closed" : "killed", shape.group ? ", of a group" : "");
}

Sample MakeSample(const SampleShape& shape) { return SampleMaker(shape).Take(); }

uint64_t& RefusedOpens() {
  static uint64_t count = 0;
  return count;
}

std::string Look(StoreMachine* machine, const Steps& wanted, const OpenSpec& spec, bool* whole,
                 std::unique_ptr<db::Store>* opened, const std::set<uint64_t>& undecided) {
  *whole = false;
  auto store = machine->Open(spec);
  if (!store.ok()) {
    ++RefusedOpens();
    return "";
  }
  bool named = !(*store)->recovery().problems.empty();
  const auto report = (*store)->Verify({});
  named = named || !report.ok() || !report->problems.empty();
  const auto listed = (*store)->Steps();
  std::set<uint64_t> numbers;
  for (const auto& [step, held] : wanted) numbers.insert(step);
  if (listed.ok()) {
    for (const auto& summary : *listed) numbers.insert(summary.step);
  }
  std::string missing;
  bool errors = !listed.ok();
  for (const uint64_t step : numbers) {
    const auto it = wanted.find(step);
    const auto reader = (*store)->Read(step);
    if (reader.status().code() == StatusCode::kNotFound) {
      if (it != wanted.end()) missing = "a step is missing";
      continue;
    }
    if (!reader.ok()) {
      errors = true;
      continue;
    }
    if (it == wanted.end()) {
      if ((*reader)->Leaves("").ok()) return "a deleted step is back";
      errors = true;
      continue;
    }
    const Status status = CheckStep(reader->get(), it->second);
    if (status.code() == StatusCode::kInternal) return "a wrong version is served";
    errors = errors || !status.ok();
    if (status.ok() && (*reader)->step().pinned != ((it->second & kPinned) != 0)) {
      missing = "a pin is wrong";
    }
    if (status.ok() && (*reader)->step().taint.empty() == ((it->second & kTainted) != 0)) {
      missing = "a taint is wrong";
    }
  }
  const Status texts = CheckTexts(store->get(), wanted);
  if (texts.code() == StatusCode::kInternal) return "wrong texts are served";
  errors = errors || !texts.ok();
  if (std::string wrong = LookAtPrepared(store->get(), undecided, &errors); !wrong.empty()) {
    missing = wrong;
  }
  // A trainer goes on from the newest: an older one is a step back without a word.
  if (const auto newest = (*store)->Newest(); newest.ok()) {
    if (*newest != NewestIn(wanted)) return "an older step is the newest";
  }
  *whole = missing.empty() && !errors;
  if (!missing.empty() && !named) return missing + ", unnamed";
  // A reader that fails and a verify that is content do not go together.
  if (errors && !named) return "verify is content though reads fail";
  *opened = std::move(*store);
  return "";
}

std::string Examine(const std::shared_ptr<SimWorld>& world, Steps wanted, const Demands& demands) {
  bool whole = false;
  const auto look = [&](const std::string& when, StoreMachine* machine, const OpenSpec& spec,
                        std::unique_ptr<db::Store>* store) -> std::string {
    const std::string wrong = Look(machine, wanted, spec, &whole, store, demands.undecided);
    if (!wrong.empty()) return when + wrong;
    if (*store == nullptr && demands.must_open) {
      return StrCat(when, "does not open: ", machine->Open(spec).status().ToString());
    }
    if (demands.has_copy && !whole) return when + "not repaired from the copy";
    return "";
  };
  const OpenSpec reads = {.with_index = demands.spec.with_index, .read_only = true};
  {
    StoreMachine machine(world, 1);
    std::unique_ptr<db::Store> store;
    const std::string wrong = look("reader: ", &machine, reads, &store);
    if (!wrong.empty() || !demands.with_writer) return wrong;
  }
  {
    StoreMachine machine(world, 2);
    std::unique_ptr<db::Store> store;
    const std::string wrong = look("writer: ", &machine, demands.spec, &store);
    if (!wrong.empty()) return wrong;
    if (store != nullptr) {
      const auto handle = SaveStep(store.get(), kNewStep, SmallSeed(1000));
      if (handle.ok() && handle->Wait().ok()) wanted[kNewStep] = HeldOf(SmallSeed(1000));
      store->Close().IgnoreError("a damaged store may say so");
    }
  }
  for (const OpenSpec& spec : {reads, demands.spec}) {
    StoreMachine machine(world, 3);
    std::unique_ptr<db::Store> store;
    const std::string wrong = look("after a writer: ", &machine, spec, &store);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace stepwell::sim
