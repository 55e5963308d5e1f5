// SPDX-License-Identifier: Apache-2.0
#include "db/transfer/chain.h"

namespace stepwell::db::transfer {

bool AreOnOneGrid(const format::LeafRecord& a, const format::LeafRecord& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.shape == b.shape &&
         a.chunk_shape == b.chunk_shape && a.logical_bytes == b.logical_bytes &&
         a.chunks.size() == b.chunks.size() && !a.partial && !b.partial && a.pieces.empty() &&
         b.pieces.empty();
}

ListedChunks::ListedChunks(const format::PushedStep& step)
    : step_(&step), first_base_(step.leaves.size()) {
  size_t base = 0;
  for (size_t i = 0; i < step.leaves.size(); ++i) {
    by_key_.emplace(step.leaves[i].key, i);
    for (const format::ChunkRecord& chunk : step.leaves[i].chunks) {
      first_base_[i].push_back(base);
      base += chunk.bases.size();
    }
  }
}

const format::LeafRecord* ListedChunks::Find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &step_->leaves[found->second];
}

ListedChunk ListedChunks::At(const format::LeafRecord& leaf, size_t chunk) const {
  const auto number = static_cast<size_t>(&leaf - step_->leaves.data());
  const format::ChunkRecord& record = leaf.chunks[chunk];
  return {step_, &record,
          std::span(step_->base_hashes).subspan(first_base_[number][chunk], record.bases.size())};
}

}  // namespace stepwell::db::transfer
