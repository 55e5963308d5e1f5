// SPDX-License-Identifier: Apache-2.0
// What exports and views (view.h) share: a step that was opened becomes a directory.
#pragma once

#include <string>
#include <vector>

#include "db/export.h"
#include "db/export_files.h"
#include "db/export_folder.h"

namespace stepwell::db {

struct CheckpointBuild {
  io::FileSystem* file_system = nullptr;
  std::string path;  // of the checkpoint's directory
  ExportFolderOptions folder;
  std::string linked_store;       // as ByteSource has it
  std::vector<ExportFile> extra;  // further files in the checkpoint's directory
};

// OK when `options` make sense for whatever step.
Status CheckExportOptions(const ExportOptions& options);

// Errors are those of Export().
Result<ExportReport> BuildCheckpoint(Store& store, StepReader& reader, const ExportOptions& options,
                                     const CheckpointBuild& build);

}  // namespace stepwell::db
