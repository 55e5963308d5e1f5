// SPDX-License-Identifier: Apache-2.0
// The steps that all exports and views (view.h) share: an open step becomes a directory.
#pragma once

#include <deque>
#include <functional>
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

// ---- where it goes -----------------------------------------------------------------------------

struct ExportTarget {
  std::string path;      // of the checkpoint's directory
  std::string new_root;  // that has to be made for it; "": none
};

// kInvalidArgument: no path, or one in the store.
Result<ExportTarget> FindExportTarget(io::FileSystem* file_system, const std::string& store,
                                      uint64_t step, const std::string& destination,
                                      const ExportOptions& options);

// A manager's root; it goes again unless Keep() was called.
class NewRoot {
 public:
  // `path` may be "": then there is nothing to do.
  NewRoot(io::FileSystem* file_system, std::string path);
  ~NewRoot();
  NewRoot(const NewRoot&) = delete;
  NewRoot& operator=(const NewRoot&) = delete;

  // Durable when this returns. `custom_metadata`: of the root, a JSON object; "": none.
  // kUnavailable: it appeared meanwhile, and has no place for that.
  Status Make(const std::string& custom_metadata, uint32_t file_mode);
  void Keep() { made_ = false; }

 private:
  Status WriteMetadata(const std::string& custom_metadata, uint32_t file_mode);

  io::FileSystem* const file_system_;
  const std::string path_;
  bool made_ = false;
  bool has_metadata_ = false;
};

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
  const ViewPlacing* view = nullptr;  // as PlaceBytes has it
  // A further file of the checkpoint, which may say which directory it is of; may be empty.
  std::function<ExportFile(const io::FileInfo& directory)> mark;
};

// Errors are those of Export().
Result<ExportReport> BuildCheckpoint(StoreReader& store, StepReader& reader,
                                     const ExportOptions& options, const CheckpointBuild& build);

}  // namespace stepwell::db
