// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/exercise.h"

#include <algorithm>
#include <set>

#include "format/key.h"
#include "fuzz/support/check.h"

namespace stepwell::fuzz {
namespace {

constexpr uint64_t kNewStep = 1'000'000;  // above all that the stores have
constexpr uint64_t kNewSeed = 77;
// A forged record may describe an array of any size whose chunks are all the same: not loaded.
constexpr uint64_t kLoadBytesMax = uint64_t{16} << 20;

uint64_t BytesOf(const format::LeafRecord& leaf) {
  if (leaf.kind != format::LeafKind::kArray) return leaf.logical_bytes;
  const format::DTypeInfo* dtype = format::FindDType(leaf.dtype);
  if (dtype == nullptr) return 0;
  const auto count = format::ElementCount(leaf.shape, dtype->item_bytes);
  return count.ok() ? *count * dtype->item_bytes : UINT64_MAX;
}

Result<std::string> LoadLeaf(db::StepReader* reader, const format::LeafRecord& leaf) {
  const uint64_t bytes = BytesOf(leaf);
  if (bytes > kLoadBytesMax) return DataLossError("larger than the harness loads");
  std::string out(bytes, '\0');
  db::LoadRequest request;
  request.leaf = &leaf;
  if (leaf.kind == format::LeafKind::kArray) request.box = format::WholeArray(leaf.shape);
  request.out = reinterpret_cast<std::byte*>(out.data());
  STEPWELL_RETURN_IF_ERROR(reader->Load({&request, 1}).status());
  return out;
}

// A step as it was found. What did not load is none; texts that cannot be read are left out by a
// writer's store.
struct FoundStep {
  std::map<std::string, std::optional<std::string>> leaves;
  std::string metadata_json;
  std::string metrics_json;

  bool whole() const {
    return !metadata_json.empty() && !metrics_json.empty() &&
           std::all_of(leaves.begin(), leaves.end(),
                       [](const auto& leaf) { return leaf.second.has_value(); });
  }
};

bool SameText(const std::string& found, const std::string& saved) {
  return found.empty() || found == saved;
}

// Returns true if the step is `saved`, as far as it loaded.
bool Is(const FoundStep& found, const SavedStep& saved) {
  return saved.leaves.size() == found.leaves.size() &&
         SameText(found.metadata_json, saved.metadata_json) &&
         SameText(found.metrics_json, saved.metrics_json) &&
         std::all_of(found.leaves.begin(), found.leaves.end(), [&](const auto& leaf) {
           const auto wanted = saved.leaves.find(leaf.first);
           return wanted != saved.leaves.end() && (!leaf.second || *leaf.second == wanted->second);
         });
}

Result<FoundStep> Load(db::StepReader* reader) {
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, reader->Leaves(""));
  FoundStep found;
  found.metadata_json = reader->step().metadata_json;
  found.metrics_json = reader->step().metrics_json;
  for (const auto& leaf : leaves) {
    std::optional<std::string>& bytes = found.leaves[leaf.key];
    if (leaf.kind == format::LeafKind::kNode) {
      bytes = "";
      continue;
    }
    auto loaded = LoadLeaf(reader, leaf);
    if (loaded.ok()) bytes = std::move(*loaded);
  }
  return found;
}

class Session {
 public:
  Session(db::Store* store, const History& history, Damage damage)
      : store_(store), history_(history), damage_(damage) {}

  void LookAtAll() {
    const auto report = store_->Verify({});
    named_ = !store_->recovery().problems.empty() || !report.ok() || !report->problems.empty();
    (void)store_->Stats();
    const auto steps = store_->Steps();
    if (!steps.ok()) {
      Check(named_ || damage_ != Damage::kNamed, "verify is content though steps cannot be listed");
      return;
    }
    Check(std::is_sorted(steps->begin(), steps->end(),
                         [](const auto& a, const auto& b) { return a.step < b.step; }),
          "steps are out of order");
    std::set<uint64_t> numbers;
    for (const auto& summary : *steps) numbers.insert(summary.step);
    if (damage_ == Damage::kNamed) {
      for (const auto& live : history_.live) numbers.insert(live.first);
      LookAtNewest();
    }
    for (const uint64_t step : numbers) LookAt(step);
  }

  bool Has(uint64_t step) {
    const auto reader = store_->Read(step);
    if (!reader.ok()) return false;
    const auto found = Load(reader->get());
    return found.ok() && found->whole() && Is(*found, history_.live.at(step).state);
  }

 private:
  // A trainer goes on from it: an older one would be a step back without a word.
  void LookAtNewest() {
    const auto newest = store_->Newest();
    if (!newest.ok() || !history_.unknown.empty()) return;
    const bool none = history_.live.empty();
    Check(newest->has_value() ? !none && **newest == history_.live.rbegin()->first : none,
          "an older step is the newest");
  }

  void LookAt(uint64_t step) {
    const auto reader = store_->Read(step);
    if (!reader.ok()) return Failed(step, reader.status());
    const auto found = Load(reader->get());
    if (!found.ok()) return Failed(step, found.status());
    if (damage_ == Damage::kForged) return;
    if (damage_ == Damage::kNamed && !history_.unknown.contains(step)) {
      LookAtNamed(step, (*reader)->step().pinned, *found);
    } else {
      const auto saved = history_.saved.find(step);
      Check(saved != history_.saved.end(), "step ", step, " was never saved");
      Check(std::any_of(saved->second.begin(), saved->second.end(),
                        [&](const SavedStep& state) { return Is(*found, state); }),
            "step ", step, " holds what was never saved in it");
    }
    // The leaves below one item, alone.
    for (const auto& item : (*reader)->step().items) {
      (void)(*reader)->Leaves(format::EncodeItem(item.name));
    }
  }

  void LookAtNamed(uint64_t step, bool pinned, const FoundStep& found) {
    const auto live = history_.live.find(step);
    Check(live != history_.live.end(), "step ", step, " was deleted, and is back");
    Check(Is(found, live->second.state), "step ", step, " is not its newest version");
    Check(named_ || found.whole(), "verify is content though step ", step, " does not load");
    Check(named_ || pinned == live->second.pinned, "the pin of step ", step, " is lost, unnamed");
  }

  void Failed(uint64_t step, const Status& status) {
    if (damage_ != Damage::kNamed || named_ || history_.unknown.contains(step)) return;
    const bool is_gone = status.code() == StatusCode::kNotFound && !history_.live.contains(step);
    Check(is_gone, "step ", step, ", unnamed: ", status.ToString());
  }

  db::Store* const store_;
  const History& history_;
  const Damage damage_;
  bool named_ = false;
};

// Changes of every kind; true when the new step was saved, so that it must be there from now on.
bool Change(db::Store* store, History* history, const std::vector<uint64_t>& steps) {
  if (!SaveSeeded(store, kNewStep, kNewSeed, db::IfExists::kError, history).ok()) return false;
  if (!steps.empty()) {
    const uint64_t first = steps.front();
    const uint64_t last = steps.back();
    (void)PinStep(store, last, true, history);
    (void)SaveSeeded(store, last, kNewSeed + 1, db::IfExists::kReplace, history);
    for (const uint64_t step : steps) (void)DeleteConfig(store, step, history);
    (void)DeleteStep(store, first, history);
    (void)PinStep(store, last, false, history);
  }
  (void)store->Reclaim();
  (void)store->Repair(false);
  return true;
}

}  // namespace

Damage DamageOf(const EditResult& edits, bool marked) {
  if (edits.forged) return Damage::kForged;
  const bool may_roll_back = edits.may_roll_back() || (!marked && edits.log_damaged);
  return may_roll_back ? Damage::kOlder : Damage::kNamed;
}

void Exercise(const OpenFunction& open, History history, Damage damage) {
  const bool forged = damage == Damage::kForged;
  db::StoreOptions reading;
  reading.read_only = true;
  if (const auto store = open(reading); store.ok()) {
    Session(store->get(), history, damage).LookAtAll();
  }
  bool saved = false;
  {
    const auto store = open({});
    if (!store.ok()) return;
    Session session(store->get(), history, damage);
    session.LookAtAll();
    std::vector<uint64_t> steps;
    if (const auto summaries = (*store)->Steps(); summaries.ok()) {
      for (const auto& summary : *summaries) steps.push_back(summary.step);
    }
    saved = Change(store->get(), &history, steps);
    Check(!saved || forged || session.Has(kNewStep), "a step that was just saved is not there");
    session.LookAtAll();
    (void)(*store)->Close();
  }
  const auto store = open({});
  if (!store.ok()) {
    Check(!saved || forged, "a store that took a save does not open: ", store.status().ToString());
    return;
  }
  Session session(store->get(), history, damage);
  session.LookAtAll();
  Check(!saved || forged || session.Has(kNewStep), "an acknowledged step is gone");
  // From here on what is there counts, whatever was lost.
  if (!(*store)->Repair(true).ok()) return;
  Session(store->get(), history, forged ? damage : Damage::kOlder).LookAtAll();
}

}  // namespace stepwell::fuzz
