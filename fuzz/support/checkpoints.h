// SPDX-License-Identifier: Apache-2.0
// The Orbax checkpoints that mutation starts from, made once per process by exports on the
// simulated machine, and what an import of each must give.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/import/import.h"
#include "fuzz/support/stores.h"

namespace stepwell::fuzz {

// Leaf key -> everything that an import says of the leaf, its bytes included.
using ImportedLeaves = std::map<std::string, std::string>;

struct BaseCheckpoint {
  std::shared_ptr<sim::SimWorld> world;  // at rest
  std::string path;
  std::string folder;       // all files of the checkpoint, and those beside it that belong to it
  std::string digests;      // bytes of its file of checksums; empty: it has none
  ImportedLeaves imported;  // of the whole checkpoint
};
// Checkpoints of Orbax v1 with zarr 3 and with zarr 2; a step of a CheckpointManager; one whose
// arrays are files of their own, without a database and without checksums. They are the same in
// every process.
const std::vector<BaseCheckpoint>& BaseCheckpoints();

inline constexpr uint64_t kImportBytesMax = uint64_t{16} << 20;  // ImportOptions::memory_bytes_max

// kDataLoss: a chunk of the request does not decode.
Result<ImportedLeaves> LeavesOf(const db::SaveRequest& request);

}  // namespace stepwell::fuzz
