// SPDX-License-Identifier: Apache-2.0
// Stores of a group, and parts of steps whose bytes follow from a seed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/group.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db {

// The id of one attempt to save a step.
inline format::Id128 SaveId(uint64_t number) {
  format::Id128 id{};
  id[0] = 0x5a;
  std::memcpy(id.data() + 8, &number, sizeof(number));
  return id;
}

// Returns the key of the leaf that part `part` of a step saves.
inline std::string PartLeaf(uint32_t part) { return StrCat("w", part); }
inline std::vector<LeafSpec> PartState(uint32_t part) {
  return {{PartLeaf(part), {40 + 7 * part, 30}, part % 2 == 0, false}};
}

inline Result<SaveHandle> Prepare(Store* store, uint64_t step, uint64_t save,
                                  const std::vector<uint32_t>& parts,
                                  IfExists if_exists = IfExists::kError) {
  std::vector<std::vector<float>> scratch;
  SaveRequest request = MakeRequest(step, save, PartState(store->part().part), &scratch);
  // Values belong to part 0.
  if (store->part().part != 0) request.items[0].leaves.pop_back();
  request.if_exists = if_exists;
  request.group = GroupSave{SaveId(save), parts};
  return store->Save(std::move(request));
}

inline Status PrepareAndWait(Store* store, uint64_t step, uint64_t save,
                             const std::vector<uint32_t>& parts,
                             IfExists if_exists = IfExists::kError) {
  STEPWELL_ASSIGN_OR_RETURN(const SaveHandle handle, Prepare(store, step, save, parts, if_exists));
  return handle.Wait();
}

inline Decision Commit(uint64_t step, uint64_t save) {
  Decision decision;
  decision.step = step;
  decision.save_id = SaveId(save);
  decision.commit = true;
  return decision;
}
inline Decision Abort(uint64_t step, uint64_t save) {
  Decision decision = Commit(step, save);
  decision.commit = false;
  return decision;
}
// Makes the decision that part 0 sends to the other parts.
inline Decision PassOn(Decision decision, const Decided& decided) {
  decision.dead = decided.dead;
  decision.decision_number = decided.decision_number;
  return decision;
}

inline std::vector<uint64_t> PreparedSteps(Store* store) {
  std::vector<uint64_t> steps;
  const auto group = store->Group();
  EXPECT_TRUE(group.ok()) << group.status().ToString();
  if (!group.ok()) return steps;
  for (const auto& step : group->prepared) steps.push_back(step.step);
  return steps;
}

using Saves = std::map<uint64_t, uint64_t>;  // step -> number of the save that it is of

inline Result<Saves> SavesOf(Store* store) {
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, store->Steps());
  Saves saves;
  for (const auto& summary : steps) {
    uint64_t save = 0;
    std::memcpy(&save, summary.group->save_id.data() + 8, sizeof(save));
    saves[summary.step] = save;
  }
  return saves;
}

// Settles the parts as a collective open does. Steps that part 0 has are committed, and the rest
// aborted; steps that it lacks are deleted. It knows of every decision, unless another part has a
// decision number above its newest commit.
inline Status Settle(const std::vector<Store*>& parts) {
  STEPWELL_ASSIGN_OR_RETURN(const GroupStatus primary, parts[0]->Group());
  std::map<format::Id128, uint64_t> committed;  // with the decision number
  for (Store* store : parts) {
    STEPWELL_ASSIGN_OR_RETURN(const GroupStatus group, store->Group());
    if (group.decision_number > primary.decision_number)
      return DataLossError("a part is newer than part 0");
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto steps, parts[0]->Steps());
  for (const auto& step : steps) committed[step.group->save_id] = step.group->decision_number;
  for (Store* store : parts) {
    STEPWELL_ASSIGN_OR_RETURN(const auto group, store->Group());
    for (const auto& step : group.prepared) {
      Decision decision;
      decision.step = step.step;
      decision.save_id = step.group->save_id;
      const auto it = committed.find(step.group->save_id);
      decision.commit = it != committed.end();
      if (decision.commit) decision.decision_number = it->second;
      STEPWELL_RETURN_IF_ERROR(store->Decide(decision).status());
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(const Saves there, SavesOf(parts[0]));
  for (size_t part = 1; part < parts.size(); ++part) {
    STEPWELL_ASSIGN_OR_RETURN(const Saves mine, SavesOf(parts[part]));
    for (const auto& [step, save] : mine) {
      const auto it = there.find(step);
      if (it != there.end() && it->second == save) continue;
      STEPWELL_RETURN_IF_ERROR(parts[part]->Delete({&step, 1}));
    }
  }
  return OkStatus();
}

// The stores of a group, opened for writing in one process.
struct GroupStores {
  static Result<GroupStores> Open(const std::string& root, uint32_t count,
                                  StoreOptions options = {}) {
    GroupStores stores;
    for (uint32_t part = 0; part < count; ++part) {
      options.group = StoreGroup{part == 0 ? format::Id128{} : stores.part(0)->id(), part};
      STEPWELL_ASSIGN_OR_RETURN(auto store, Store::Open(PartPath(root, part), options));
      stores.stores.push_back(std::move(store));
      stores.parts.push_back(part);
    }
    return stores;
  }

  Store* part(size_t number) const { return stores[number].get(); }

  Status PrepareAll(uint64_t step, uint64_t save, IfExists if_exists = IfExists::kError) const {
    for (const auto& store : stores) {
      STEPWELL_RETURN_IF_ERROR(PrepareAndWait(store.get(), step, save, parts, if_exists));
    }
    return OkStatus();
  }
  Result<Decided> DecideAll(const Decision& decision) const {
    STEPWELL_ASSIGN_OR_RETURN(Decided decided, part(0)->Decide(decision));
    for (size_t i = 1; i < stores.size(); ++i) {
      STEPWELL_RETURN_IF_ERROR(part(i)->Decide(PassOn(decision, decided)).status());
    }
    return decided;
  }
  Status SaveAll(uint64_t step, uint64_t save, IfExists if_exists = IfExists::kError) const {
    STEPWELL_RETURN_IF_ERROR(PrepareAll(step, save, if_exists));
    return DecideAll(Commit(step, save)).status();
  }
  Status Close() const {
    for (const auto& store : stores) STEPWELL_RETURN_IF_ERROR(store->Close());
    return OkStatus();
  }

  std::vector<std::unique_ptr<Store>> stores;
  std::vector<uint32_t> parts;
};

}  // namespace stepwell::db
