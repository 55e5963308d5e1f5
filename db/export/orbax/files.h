// SPDX-License-Identifier: Apache-2.0
// The files of an export that are not chunks, encoded. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "db/export/orbax/bytes.h"
#include "db/export/orbax/plan.h"
#include "format/orbax/ocdbt.h"

namespace stepwell::db {

struct ExportFile {
  std::string name;  // relative
  std::string bytes;
};

struct DatabaseInfo {
  format::orbax::OcdbtUuid uuid{};
  uint64_t commit_time_ns = 0;
  int zarr_format = 3;
};

// The OCDBT database of an item, its manifest last; nothing for an item without arrays. Keys of all
// arrays are sorted together: names may be prefixes of each other.
Result<std::vector<ExportFile>> EncodeDatabase(const ExportItem& item, const ChunkPlaces& places,
                                               const DatabaseInfo& info);

// Encodes the files that describe an item: _METADATA, _sharding, ...; or its JSON.
Result<std::vector<ExportFile>> EncodeItemFiles(const ExportItem& item);

// _CHECKPOINT_METADATA and the marks of the whole checkpoint.
Result<std::vector<ExportFile>> EncodeCheckpointFiles(const ExportPlan& plan,
                                                      const format::StepRecord& step,
                                                      ExportLayout layout, const std::string& path);

}  // namespace stepwell::db
