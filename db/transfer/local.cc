// SPDX-License-Identifier: Apache-2.0
#include "db/transfer/local.h"

#include <algorithm>
#include <set>

#include "db/group.h"
#include "db/transfer/chain.h"
#include "format/hash.h"

namespace stepwell::db::transfer {

Result<std::unique_ptr<LocalSteps>> LocalSteps::Near(StoreReader& store, uint64_t step) {
  STEPWELL_ASSIGN_OR_RETURN(const auto numbers, store.StepNumbers(SIZE_MAX, /*with_tainted=*/true));
  std::unique_ptr<LocalSteps> local(new LocalSteps(store));
  if (numbers.empty()) return local;
  std::set<uint64_t> near = {numbers.back()};
  const auto above = std::lower_bound(numbers.begin(), numbers.end(), step);
  if (above != numbers.end()) near.insert(*above);
  if (above != numbers.begin()) near.insert(*std::prev(above));
  for (const uint64_t number : near) local->Add(store, number);
  return local;
}

// A step that goes meanwhile, or is damaged, is a step less: its contents are fetched.
void LocalSteps::Add(StoreReader& store, uint64_t step) {
  auto reader = store.Read(step);
  if (!reader.ok() || HasOtherParts((*reader)->step())) return;
  auto leaves = (*reader)->Leaves("");
  if (!leaves.ok()) return;
  auto added = std::make_unique<Step>();
  added->reader = std::move(*reader);
  added->leaves = std::move(*leaves);
  for (const format::LeafRecord& leaf : added->leaves) added->by_key.emplace(leaf.key, &leaf);
  steps_.push_back(std::move(added));
}

std::optional<std::string> LocalSteps::Find(const format::LeafRecord& leaf, size_t index,
                                            const format::Hash128& content) const {
  for (const auto& step : steps_) {
    const auto found = step->by_key.find(leaf.key);
    if (found == step->by_key.end() || !AreOnOneGrid(*found->second, leaf)) continue;
    const format::ChunkRecord& chunk = found->second->chunks[index];
    if (chunk.hash != content || chunk.logical_bytes != leaf.chunks[index].logical_bytes) continue;
    auto bytes = sources_.ReadChunk(chunk);
    if (bytes.ok() && format::HashOf(AsBytes(*bytes)) == content) return std::move(*bytes);
  }
  return std::nullopt;
}

}  // namespace stepwell::db::transfer
