// SPDX-License-Identifier: Apache-2.0
// Exports of steps whose parts lie on disks of several machines (DESIGN.md, "Many processes"). The
// process of part 0 plans the checkpoint, from the records that the others send, makes its
// directory and describes it; each part's process copies its own chunks into files there. What they
// tell each other is carried by their callers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/export/orbax/build.h"

namespace stepwell::db {

// A file that the process of a part makes, and what of its segments is in it.
struct PartFile {
  uint32_t part = 0;
  std::string path;
  std::vector<ByteRun> runs;
};

class PartsExport {
 public:
  // Plans, and makes the directory. `own`: part 0's share of the step; `others`: the records of
  // the other parts' shares, by part, as RecordsOfShare gives them. Errors are those of Export().
  static Result<std::unique_ptr<PartsExport>> Begin(StoreReader& store,
                                                    std::shared_ptr<StepReader> own,
                                                    const std::map<uint32_t, std::string>& others,
                                                    const std::string& destination,
                                                    const ExportOptions& options);
  // Removes everything unless Finish() succeeded.
  ~PartsExport();

  // A directory in the checkpoint's, of a name that was never used before: a process that finds it
  // sees this very export.
  const std::string& mark() const { return mark_; }
  // The files that CopyPartFiles() must make from all parts.
  const std::vector<PartFile>& files() const { return files_; }
  // Once all files are there; `cloned`: whether all of them share blocks with the segments.
  Result<ExportReport> Finish(
      bool cloned, const std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>& progress);

 private:
  PartsExport(io::FileSystem* file_system, ExportOptions options, std::string new_root,
              std::shared_ptr<StepReader> reader)
      : file_system_(file_system),
        options_(std::move(options)),
        root_(file_system, std::move(new_root)),
        reader_(std::move(reader)) {}

  Status MakeFolder(const std::string& path);
  void PlanItem(const ExportItem& item);
  Status PlanStaged();
  Status CheckFiles();
  Status RewriteStaged();

  io::FileSystem* const file_system_;
  ExportOptions options_;
  NewRoot root_;
  const std::shared_ptr<StepReader> reader_;
  PreparedExport prepared_;
  std::unique_ptr<ExportFolder> folder_;  // goes before the root
  std::string mark_;
  std::vector<PartFile> files_;
  PlacedBytes placed_;
  size_t staged_begin_ = 0;                   // of files_: chunks of arrays that are written anew
  ChunkPlaces staged_;                        // the places of those
  std::deque<format::LeafRecord> read_back_;  // the records of such arrays
};

// The records of a part's share, or of what is below `subtree_key` in it, for Begin().
Result<std::string> RecordsOfShare(StepReader& share, const std::string& subtree_key);

struct PartCopyOptions {
  ExportMode mode = ExportMode::kAuto;  // not kLink
  uint32_t file_mode = 0;
  std::function<bool(uint64_t done_bytes, uint64_t total_bytes)> progress;
};
// Makes the files of a part from its store's segments, and says whether they share blocks with
// them. `share`, of the step, pins it. kFailedPrecondition: the mode is not possible there.
Result<bool> CopyPartFiles(StoreReader& store, StepReader& share,
                           const std::vector<PartFile>& files, const PartCopyOptions& options);

}  // namespace stepwell::db
