// SPDX-License-Identifier: Apache-2.0
// Checkpoints on disk, without a store: finding them, looking into one, checking that it is intact.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <stepwell/export.h>
#include <stepwell/import.h>
#include <stepwell/reports.h>
#include <stepwell/result.h>

namespace stepwell {

// The finished steps below `root`, ascending: directories whose names end in the step's number
// ("7", "00000007", "ckpt_7") and that hold a checkpoint. None when `root` is not such a root.
// kInvalidArgument: two of them have one number.
STEPWELL_API Result<std::vector<OrbaxStep>> FindOrbaxSteps(const std::string& root);

// The paths of the stores that the facades of other libraries keep in a root, or inside a single
// checkpoint, ascending. None where the directory is a store itself.
STEPWELL_API std::vector<std::string> StoresWithin(const std::string& directory);

// Returns true if the view of a store beside it made this directory: its files are then those of
// the store. A copy of such a directory, under any name and in any place, gives false.
STEPWELL_API Result<bool> IsShownStep(const std::string& directory);

struct CheckpointInfo {
  std::optional<uint64_t> step;    // by the directory's name, or as Store::Export wrote it down
  std::vector<std::string> items;  // that ImportOptions::items may name
};
// Describes the checkpoint that an import would read. Fails with kNotFound, or with
// kInvalidArgument if the directory is no checkpoint, is the root of several, or holds one whose
// save was not finished.
STEPWELL_API Result<CheckpointInfo> ReadCheckpointInfo(const std::string& checkpoint);

// Reads all that an export consists of and checks it against the digests that Store::Export left in
// it. OK with problems in the report: damage was found. kFailedPrecondition: a checkpoint without
// digests, as Orbax writes them, or none at all. kCancelled: `progress` said false.
STEPWELL_API Result<VerifyReport> VerifyExport(
    const std::string& checkpoint,
    const std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>& progress = {});

}  // namespace stepwell
