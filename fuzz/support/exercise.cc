// SPDX-License-Identifier: Apache-2.0
#include "fuzz/support/exercise.h"

#include <algorithm>

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

// Whether some save of the step had exactly these leaves and, where they loaded, these bytes.
bool WasSaved(const std::vector<SavedState>& states,
              const std::map<std::string, std::optional<std::string>>& found) {
  return std::any_of(states.begin(), states.end(), [&](const SavedState& state) {
    if (state.size() != found.size()) return false;
    return std::all_of(found.begin(), found.end(), [&](const auto& leaf) {
      const auto saved = state.find(leaf.first);
      return saved != state.end() && (!leaf.second || *leaf.second == saved->second);
    });
  });
}

class Session {
 public:
  Session(db::Store* store, const History& history, bool forged)
      : store_(store), history_(history), forged_(forged) {}

  void LookAtAll() {
    const auto steps = store_->Steps();
    if (steps.ok()) {
      for (const auto& summary : *steps) LookAt(summary.step.step);
      Check(std::is_sorted(steps->begin(), steps->end(),
                           [](const auto& a, const auto& b) { return a.step.step < b.step.step; }),
            "steps are out of order");
    }
    (void)store_->Verify({});
    (void)store_->Stats();
  }

  bool Has(uint64_t step) {
    const auto reader = store_->Read(step);
    if (!reader.ok()) return false;
    const auto leaves = (*reader)->Leaves("");
    if (!leaves.ok()) return false;
    const auto& saved = history_.at(step).back();
    for (const auto& leaf : *leaves) {
      if (leaf.kind == format::LeafKind::kNode) continue;
      const auto bytes = LoadLeaf(reader->get(), leaf);
      if (!bytes.ok() || *bytes != saved.at(leaf.key)) return false;
    }
    return leaves->size() == saved.size();
  }

 private:
  void LookAt(uint64_t step) {
    const auto reader = store_->Read(step);
    if (!reader.ok()) return;
    const auto leaves = (*reader)->Leaves("");
    if (!leaves.ok()) return;
    std::map<std::string, std::optional<std::string>> found;
    for (const auto& leaf : *leaves) {
      std::optional<std::string>& bytes = found[leaf.key];
      if (leaf.kind == format::LeafKind::kNode) {
        bytes = "";
        continue;
      }
      auto loaded = LoadLeaf(reader->get(), leaf);
      if (loaded.ok()) bytes = std::move(*loaded);
    }
    if (forged_) return;
    const auto saved = history_.find(step);
    Check(saved != history_.end(), "step ", step, " was never saved");
    Check(WasSaved(saved->second, found), "step ", step, " holds what was never saved in it");
    // The leaves below one item, alone.
    for (const auto& item : (*reader)->step().items) {
      (void)(*reader)->Leaves(format::EncodeItem(item.name));
    }
  }

  db::Store* const store_;
  const History& history_;
  const bool forged_;
};

// Changes of every kind; true when the new step was saved, so that it must be there from now on.
bool Change(db::Store* store, History* history, const std::vector<uint64_t>& steps) {
  if (!SaveSeeded(store, kNewStep, kNewSeed, db::IfExists::kError, history).ok()) return false;
  if (!steps.empty()) {
    const uint64_t first = steps.front();
    const uint64_t last = steps.back();
    (void)store->SetPinned({&last, 1}, true);
    (void)SaveSeeded(store, last, kNewSeed + 1, db::IfExists::kReplace, history);
    for (const uint64_t step : steps) (void)DeleteConfig(store, step, history);
    (void)store->Delete({&first, 1});
    (void)store->SetPinned({&last, 1}, false);
  }
  (void)store->Reclaim();
  return true;
}

}  // namespace

void Exercise(const OpenFunction& open, History history, bool forged) {
  db::StoreOptions reading;
  reading.read_only = true;
  if (const auto store = open(reading); store.ok()) {
    Session(store->get(), history, forged).LookAtAll();
  }
  bool saved = false;
  {
    const auto store = open({});
    if (!store.ok()) return;
    Session session(store->get(), history, forged);
    session.LookAtAll();
    std::vector<uint64_t> steps;
    if (const auto summaries = (*store)->Steps(); summaries.ok()) {
      for (const auto& summary : *summaries) steps.push_back(summary.step.step);
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
  Session session(store->get(), history, forged);
  session.LookAtAll();
  Check(!saved || forged || session.Has(kNewStep), "an acknowledged step is gone");
}

}  // namespace stepwell::fuzz
