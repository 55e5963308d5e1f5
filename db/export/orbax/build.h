// SPDX-License-Identifier: Apache-2.0
// What all exports and views (view.h) share: a step that was opened becomes a directory.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "db/export/export.h"
#include "db/export/orbax/bytes.h"
#include "db/export/orbax/files.h"
#include "db/export/orbax/folder.h"
#include "db/export/orbax/plan.h"
#include "db/export/orbax/rewrite.h"

namespace stepwell::db {

// OK when `options` make sense for whatever step.
Status CheckExportOptions(const ExportOptions& options);

// ---- one after the other ----------------------------------------------------------------------

// Everything that needs no disk but the store's: it comes before the first byte is written.
struct PreparedExport {
  std::vector<format::LeafRecord> leaves;
  ExportPlan plan;  // points at them
  std::vector<std::vector<ExportFile>> item_files;
  std::deque<format::LeafRecord> rewritten;  // records of arrays that get other chunks
};
// `makes_root`: that of a manager, too.
Result<PreparedExport> PrepareExport(StepReader& reader, const ExportOptions& options,
                                     bool makes_root);

// Those of the items, for their chunks and metadata.
Status MakeItemDirectories(const PreparedExport& prepared, ExportFolder* folder);

// Writes the arrays that are decoded and encoded again; the others' chunks are placed.
Status RewriteArrays(const LoadArrays& load, const ExportOptions& options, ExportFolder* folder,
                     PreparedExport* prepared, PlacedBytes* placed);

// Writes what describes the chunks, and gives the directory its name. `extra`: further files in it.
Result<ExportReport> FinishCheckpoint(const format::StepRecord& step, PreparedExport prepared,
                                      const PlacedBytes& placed, const ExportOptions& options,
                                      const std::vector<ExportFile>& extra, ExportFolder* folder);

// ---- all of it --------------------------------------------------------------------------------

struct CheckpointBuild {
  io::FileSystem* file_system = nullptr;
  std::string path;  // of the checkpoint's directory
  ExportFolderOptions folder;
  std::string linked_store;       // as ByteSource has it
  std::vector<ExportFile> extra;  // further files in the checkpoint's directory
};

// Errors are those of Export().
Result<ExportReport> BuildCheckpoint(StoreReader& store, StepReader& reader,
                                     const ExportOptions& options, const CheckpointBuild& build);

}  // namespace stepwell::db
