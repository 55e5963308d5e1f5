// SPDX-License-Identifier: Apache-2.0
// The contents that a store has already of a step that is pulled.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "db/log/chunk_source.h"
#include "db/log/segment_files.h"
#include "db/store.h"

namespace stepwell::db::transfer {

class LocalSteps {
 public:
  // The steps of `store`, which outlives this, that are nearest to `step` and its newest one. Those
  // that cannot be read have nothing.
  static Result<std::unique_ptr<LocalSteps>> Near(StoreReader& store, uint64_t step);

  // The bytes of chunk `index` of a leaf like `leaf` whose content has this hash, verified.
  std::optional<std::string> Find(const format::LeafRecord& leaf, size_t index,
                                  const format::Hash128& content) const;

 private:
  struct Step {
    std::shared_ptr<StepReader> reader;  // keeps it from being reclaimed
    std::vector<format::LeafRecord> leaves;
    std::unordered_map<std::string_view, const format::LeafRecord*> by_key;
  };

  explicit LocalSteps(StoreReader& store)
      : files_(store.file_system(), store.path(), /*direct=*/false), sources_(&files_) {}
  void Add(StoreReader& store, uint64_t step);

  SegmentFiles files_;
  const ChunkSources sources_;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace stepwell::db::transfer
