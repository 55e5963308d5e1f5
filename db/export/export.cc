// SPDX-License-Identifier: Apache-2.0
// The order of an export: read the records, plan, place the bytes, write what describes them,
// rename. DESIGN.md, "Export".
#include "db/export/export.h"

#include <utility>

#include "db/export/orbax/build.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

// Where nothing pins the step, its chunks may have been erased before they were taken.
Status CheckStillThere(const StepReader& reader) {
  Status status = reader.Explain(DataLossError("its chunks were taken"));
  return status.code() == StatusCode::kNotFound ? status : OkStatus();
}

Result<ExportReport> MakeFolder(StoreReader& store, StepReader& reader, PreparedExport prepared,
                                const ExportOptions& options, const CheckpointBuild& build) {
  STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                            ExportFolder::Create(build.file_system, build.path, build.folder));
  STEPWELL_RETURN_IF_ERROR(MakeItemDirectories(prepared, folder.get()));
  auto placed = PlaceBytes(store, prepared.plan, options, build.view, folder.get());
  if (!placed.ok()) return reader.Explain(placed.status());
  STEPWELL_RETURN_IF_ERROR(CheckStillThere(reader));
  const auto load = [&](std::span<const LoadRequest> requests) {
    return reader.Load(requests).status();
  };
  STEPWELL_RETURN_IF_ERROR(RewriteArrays(load, options, folder.get(), &prepared, &*placed));
  std::vector<ExportFile> extra;
  if (build.mark) {
    STEPWELL_ASSIGN_OR_RETURN(const auto directory, build.file_system->Stat(folder->temporary()));
    extra.push_back(build.mark(directory));
  }
  return FinishCheckpoint(reader.step(), std::move(prepared), *placed, options, extra,
                          folder.get());
}

}  // namespace

Result<ExportReport> BuildCheckpoint(StoreReader& store, StepReader& reader,
                                     const ExportOptions& options, const CheckpointBuild& build) {
  const auto& group = reader.step().group;
  if (group && group->part != 0 && build.view != nullptr) {
    return UnimplementedError(StrCat("the store has a share of step ", reader.step().step,
                                     " only; a view of its root shows whole steps"));
  }
  STEPWELL_ASSIGN_OR_RETURN(PreparedExport prepared,
                            PrepareExport(reader, options, /*makes_root=*/false));
  return MakeFolder(store, reader, std::move(prepared), options, build);
}

Result<ExportReport> Export(StoreReader& store, uint64_t step, const std::string& destination,
                            const ExportOptions& options) {
  STEPWELL_RETURN_IF_ERROR(CheckExportOptions(options));
  CheckpointBuild build;
  build.file_system =
      options.file_system != nullptr ? options.file_system : store.export_file_system();
  STEPWELL_ASSIGN_OR_RETURN(ExportTarget target, FindExportTarget(build.file_system, store.path(),
                                                                  step, destination, options));
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store.Read(step));
  STEPWELL_ASSIGN_OR_RETURN(PreparedExport prepared,
                            PrepareExport(*reader, options, !target.new_root.empty()));
  build.path = target.path;
  build.folder.file_mode = ExportFileMode(store, options.file_mode);
  NewRoot root(build.file_system, target.new_root);
  STEPWELL_RETURN_IF_ERROR(root.Make(prepared.plan.root_metadata, build.folder.file_mode));
  auto report = MakeFolder(store, *reader, std::move(prepared), options, build);
  if (report.ok()) root.Keep();
  return report;
}

}  // namespace stepwell::db
