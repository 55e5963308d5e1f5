// SPDX-License-Identifier: Apache-2.0
#include <stepwell/checkpoint.h>

#include <utility>

#include "db/export/orbax/digests.h"
#include "db/import/import.h"
#include "db/layout.h"
#include "db/view/shown.h"
#include "io/open_disk.h"

namespace stepwell {

Result<std::vector<OrbaxStep>> FindOrbaxSteps(const std::string& root) {
  const auto info = io::LocalFileSystem()->Stat(root);
  if (!info.ok() || !info->is_directory) return std::vector<OrbaxStep>();
  return db::FindOrbaxSteps(io::LocalFileSystem(), root);
}

std::vector<std::string> StoresWithin(const std::string& directory) {
  const std::string path = db::WithoutTrailingSlashes(directory);
  if (io::LocalFileSystem()->Stat(db::SlotFilePath(path)).ok()) return {};
  return db::StoresWithin(io::LocalFileSystem(), path);
}

Result<bool> IsShownStep(const std::string& directory) {
  STEPWELL_ASSIGN_OR_RETURN(const auto shown, db::FindShownStep(directory));
  return shown.has_value();
}

Result<CheckpointInfo> ReadCheckpointInfo(const std::string& checkpoint) {
  STEPWELL_ASSIGN_OR_RETURN(const auto found,
                            db::OrbaxCheckpoint::Open(io::LocalFileSystem(), checkpoint));
  CheckpointInfo info{.step = found.step(), .items = {}};
  for (const db::OrbaxItem& item : found.items()) info.items.push_back(item.name);
  return info;
}

Result<VerifyReport> VerifyExport(
    const std::string& checkpoint,
    const std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>& progress) {
  return db::VerifyExport(io::LocalFileSystem(), checkpoint, progress);
}

}  // namespace stepwell
