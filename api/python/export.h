// SPDX-License-Identifier: Apache-2.0
// Exports of steps, for stepwell/_backend/export_options.py and _distributed/local_disks_export.py.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/export/archive/archive.h"
#include "db/export/orbax/parts.h"

namespace stepwell::python {

// Ctrl-C stops these; nothing is left.
db::ExportReport ExportStep(db::StoreReader* store, uint64_t step, const std::string& destination,
                            db::ExportOptions options, nanobind::object progress);
db::ExportReport ExportStepAsArchive(db::StoreReader* store, uint64_t step,
                                     const std::string& destination, db::ArchiveOptions options,
                                     nanobind::object progress);

// ---- of a step whose parts lie on disks of several machines -------------------------------------

// Runs in the process of part 0.
class PartsExport {
 public:
  explicit PartsExport(std::unique_ptr<db::PartsExport> made);
  ~PartsExport();
  PartsExport(const PartsExport&) = delete;
  PartsExport& operator=(const PartsExport&) = delete;

  std::string mark() const;
  const std::vector<db::PartFile>& files() const;
  db::ExportReport Finish(bool cloned, nanobind::object progress);
  // Removes everything, unless it is finished.
  void Close();

 private:
  std::unique_ptr<db::PartsExport> made_;  // null: closed
  const pid_t pid_;
};

// `others`: by part the bytes of db::RecordsOfShare.
std::unique_ptr<PartsExport> BeginPartsExport(db::StoreReader* store,
                                              std::shared_ptr<db::StepReader> own,
                                              const std::map<uint32_t, nanobind::bytes>& others,
                                              const std::string& destination,
                                              db::ExportOptions options);

bool CopyPart(db::StoreReader* store, db::StepReader* share, const std::vector<db::PartFile>& files,
              ExportMode mode, uint32_t file_mode, nanobind::object progress);

}  // namespace stepwell::python
