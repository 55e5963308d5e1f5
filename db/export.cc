// SPDX-License-Identifier: Apache-2.0
// The order of an export: read the records, plan, place the bytes, write what describes them,
// rename. DESIGN.md, "Export".
#include "db/export.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <utility>

#include "db/export_build.h"
#include "db/export_bytes.h"
#include "db/export_metadata.h"
#include "db/export_plan.h"
#include "db/export_rewrite.h"
#include "db/layout.h"
#include "format/key.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

// What is to be exported, in key order.
Result<std::vector<LeafRecord>> SelectedLeaves(StepReader& reader, const ExportOptions& options) {
  const format::StepRecord& step = reader.step();
  for (const std::string& name : options.items) {
    const auto is_it = [&name](const auto& item) { return item.name == name; };
    if (std::any_of(step.items.begin(), step.items.end(), is_it)) continue;
    std::string known;
    for (const auto& item : step.items) known += StrCat(known.empty() ? "" : ", ", item.name);
    return InvalidArgumentError(
        StrCat("step ", step.step, " has no item \"", name, "\"; it has ", known));
  }
  STEPWELL_ASSIGN_OR_RETURN(auto leaves, reader.Leaves(options.subtree_key));
  if (!options.subtree_key.empty() && leaves.empty()) {
    return InvalidArgumentError(StrCat("step ", step.step, " has nothing at this path"));
  }
  if (!options.items.empty()) {
    std::vector<std::string> prefixes;
    for (const std::string& name : options.items) prefixes.push_back(format::EncodeItem(name));
    std::erase_if(leaves, [&](const LeafRecord& leaf) {
      return std::none_of(prefixes.begin(), prefixes.end(),
                          [&](const std::string& prefix) { return leaf.key.starts_with(prefix); });
    });
  }
  return leaves;
}

// Long strings are compressed in chunks of their own; Orbax has them in a JSON file.
Status LoadStrings(StepReader& reader, std::vector<LeafRecord>* leaves) {
  std::vector<std::pair<LeafRecord*, std::string>> texts;
  for (LeafRecord& leaf : *leaves) {
    if (leaf.kind != format::LeafKind::kValue || leaf.chunk_count == 0) continue;
    if (leaf.value_type != format::ValueType::kStr) continue;
    if (leaf.logical_bytes > leaf.chunks.size() * format::kPayloadLogicalMax) {
      return DataLossError("the record of a text is damaged: its length");
    }
    texts.emplace_back(&leaf, std::string(leaf.logical_bytes, '\0'));
  }
  std::vector<LoadRequest> requests;
  for (auto& [leaf, text] : texts) {
    LoadRequest& request = requests.emplace_back();
    request.leaf = leaf;
    request.out = reinterpret_cast<std::byte*>(text.data());
  }
  if (!requests.empty()) STEPWELL_RETURN_IF_ERROR(reader.Load(requests).status());
  for (auto& [leaf, text] : texts) leaf->inline_value = std::move(text);
  return OkStatus();
}

// A manager's root. Durable when this returns; whether it is new.
Result<bool> MakeRoot(io::FileSystem* file_system, const std::string& root) {
  const Status made = file_system->CreateDirectory(root);
  if (made.code() == StatusCode::kAlreadyExists) return false;
  if (made.code() == StatusCode::kNotFound) {
    STEPWELL_RETURN_IF_ERROR(CheckIsDirectory(file_system, ParentOf(root)));
  }
  STEPWELL_RETURN_IF_ERROR(made);
  STEPWELL_RETURN_IF_ERROR(file_system->SyncDirectory(ParentOf(root)));
  return true;
}

constexpr std::string_view kRootMetadataFolder = "metadata";

Status WriteRootMetadata(io::FileSystem* file_system, const std::string& root,
                         const std::string& custom_metadata, uint32_t file_mode) {
  if (custom_metadata.empty()) return OkStatus();
  format::orbax::RootMetadata metadata;
  metadata.custom_metadata = custom_metadata;
  STEPWELL_ASSIGN_OR_RETURN(const std::string text, format::orbax::EncodeRootMetadata(metadata));
  STEPWELL_ASSIGN_OR_RETURN(
      const auto folder, ExportFolder::Create(file_system, StrCat(root, "/", kRootMetadataFolder),
                                              {.file_mode = file_mode}));
  const std::string_view name = format::orbax::kRootMetadataName;
  STEPWELL_RETURN_IF_ERROR(folder->Write(name.substr(kRootMetadataFolder.size() + 1), text));
  return folder->Commit();
}

// Of an export that failed: whatever somebody else has put there meanwhile stays.
void RemoveRoot(io::FileSystem* file_system, const std::string& root, bool has_metadata) {
  constexpr const char* kWhy = "somebody else uses it by now, or the file system failed";
  if (has_metadata) {
    file_system->Remove(StrCat(root, "/", format::orbax::kRootMetadataName)).IgnoreError(kWhy);
    file_system->RemoveDirectory(StrCat(root, "/", kRootMetadataFolder)).IgnoreError(kWhy);
  }
  file_system->RemoveDirectory(root).IgnoreError(kWhy);
}

format::orbax::OcdbtUuid RandomUuid() {
  std::random_device device;
  format::orbax::OcdbtUuid uuid;
  for (size_t i = 0; i < uuid.size(); i += 4) {
    const uint32_t word = device();
    std::memcpy(uuid.data() + i, &word, 4);
  }
  return uuid;
}

Status WriteFiles(const std::vector<ExportFile>& files, const std::string& below,
                  ExportFolder* folder) {
  for (const ExportFile& file : files) {
    STEPWELL_RETURN_IF_ERROR(folder->Write(below + file.name, file.bytes));
  }
  return OkStatus();
}

// Where nothing pins the step, what was taken may have been erased before.
Status CheckStillThere(const StepReader& reader) {
  Status status = reader.Explain(DataLossError("its chunks were taken"));
  return status.code() == StatusCode::kNotFound ? status : OkStatus();
}

// Everything that needs no disk comes before the first byte is written.
struct Prepared {
  std::vector<LeafRecord> leaves;
  ExportPlan plan;
  std::vector<std::vector<ExportFile>> item_files;
  std::deque<LeafRecord> rewritten;  // records of arrays that get other chunks
};

Result<Prepared> Prepare(StepReader& reader, const ExportOptions& options, bool makes_root) {
  Prepared prepared;
  STEPWELL_ASSIGN_OR_RETURN(prepared.leaves, SelectedLeaves(reader, options));
  STEPWELL_RETURN_IF_ERROR(LoadStrings(reader, &prepared.leaves));
  STEPWELL_ASSIGN_OR_RETURN(prepared.plan, PlanExport(reader.step(), prepared.leaves, options));
  PlaceImportedMetadata(makes_root, &prepared.plan);
  for (const ExportItem& item : prepared.plan.items) {
    auto files = EncodeItemFiles(item);
    if (!files.ok()) return files.status().WithContext(item.name);
    prepared.item_files.push_back(*std::move(files));
  }
  return prepared;
}

Status MakeItemDirectories(const Prepared& prepared, ExportFolder* folder) {
  for (size_t i = 0; i < prepared.plan.items.size(); ++i) {
    const ExportItem& item = prepared.plan.items[i];
    STEPWELL_RETURN_IF_ERROR(folder->MakeDirectory(item.folder));
    if (!item.arrays.empty()) {
      STEPWELL_RETURN_IF_ERROR(folder->MakeDirectory(item.folder + "/d"));
    }
    if (!item.shardings.empty()) {
      STEPWELL_RETURN_IF_ERROR(
          folder->MakeDirectory(StrCat(item.folder, "/", format::orbax::kArrayMetadatasFolder)));
    }
  }
  return OkStatus();
}

Result<ExportReport> Build(Store& store, StepReader& reader, Prepared prepared,
                           const ExportOptions& options, const CheckpointBuild& build,
                           ExportFolder* folder) {
  ExportPlan& plan = prepared.plan;
  STEPWELL_RETURN_IF_ERROR(MakeItemDirectories(prepared, folder));
  auto placed =
      PlaceBytes({build.file_system, &store, folder, &plan, &options, build.linked_store});
  if (!placed.ok()) return reader.Explain(placed.status());
  STEPWELL_RETURN_IF_ERROR(CheckStillThere(reader));
  // All that progress is told of is there.
  const auto go_on = [&] {
    const uint64_t done = plan.stored_bytes;
    if (!options.progress || options.progress(done, done)) return OkStatus();
    return CancelledError("the export was cancelled");
  };
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const size_t rewritten = prepared.rewritten.size();
    STEPWELL_RETURN_IF_ERROR(RewriteArrays(reader,
                                           StrCat(plan.items[i].folder, "/", kExportRewrittenFile),
                                           go_on, folder, &plan.items[i], &prepared.rewritten));
    if (prepared.rewritten.size() > rewritten) {
      placed->items[i].AddRewritten(std::string(kExportRewrittenFile));
    }
  }
  ExportReport report;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const std::string below = plan.items[i].folder + "/";
    STEPWELL_RETURN_IF_ERROR(WriteFiles(prepared.item_files[i], below, folder));
    DatabaseInfo info;
    info.uuid = RandomUuid();
    info.commit_time_ns = static_cast<uint64_t>(std::max<int64_t>(reader.step().time_ns, 0));
    info.zarr_format = options.zarr_format;
    STEPWELL_ASSIGN_OR_RETURN(const auto database,
                              EncodeDatabase(plan.items[i], placed->items[i], info));
    STEPWELL_RETURN_IF_ERROR(WriteFiles(database, below, folder));
    if (options.layout == ExportLayout::kV0) {
      STEPWELL_RETURN_IF_ERROR(folder->Write(
          StrCat(below, format::orbax::kCommitSuccessName),
          format::orbax::EncodeCommitSuccess(StrCat(folder->path(), "/", plan.items[i].folder))));
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(
      const auto marks, EncodeCheckpointFiles(plan, reader.step(), options.layout, folder->path()));
  STEPWELL_RETURN_IF_ERROR(WriteFiles(marks, "", folder));
  STEPWELL_RETURN_IF_ERROR(WriteFiles(build.extra, "", folder));
  STEPWELL_RETURN_IF_ERROR(folder->Commit());
  report.path = folder->path();
  report.mode = placed->mode;
  report.leaves = plan.leaves;
  report.chunks = plan.chunks;
  report.step_bytes = plan.stored_bytes;
  report.apparent_bytes = folder->written_bytes() + placed->linked_bytes;
  report.written_bytes = folder->written_bytes() - placed->cloned_bytes;
  report.skipped = std::move(plan.skipped);
  report.widened = std::move(plan.widened);
  report.as_numpy = std::move(plan.as_numpy);
  return report;
}

Result<ExportReport> MakeFolder(Store& store, StepReader& reader, Prepared prepared,
                                const ExportOptions& options, const CheckpointBuild& build) {
  STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                            ExportFolder::Create(build.file_system, build.path, build.folder));
  return Build(store, reader, std::move(prepared), options, build, folder.get());
}

}  // namespace

Status CheckExportOptions(const ExportOptions& options) {
  if (options.zarr_format == 2 || options.zarr_format == 3) return OkStatus();
  return InvalidArgumentError(StrCat("zarr is 2 or 3, not ", options.zarr_format));
}

Result<ExportReport> BuildCheckpoint(Store& store, StepReader& reader, const ExportOptions& options,
                                     const CheckpointBuild& build) {
  const auto& group = reader.step().group;
  if (group && group->part != 0 && !build.linked_store.empty()) {
    return UnimplementedError(StrCat("the store has a share of step ", reader.step().step,
                                     " only; a view of its root shows whole steps"));
  }
  STEPWELL_ASSIGN_OR_RETURN(Prepared prepared, Prepare(reader, options, /*makes_root=*/false));
  return MakeFolder(store, reader, std::move(prepared), options, build);
}

Result<ExportReport> Export(Store& store, uint64_t step, const std::string& destination,
                            const ExportOptions& options) {
  std::string path = WithoutTrailingSlashes(destination);
  if (path.empty()) return InvalidArgumentError("an export needs a destination");
  STEPWELL_RETURN_IF_ERROR(CheckExportOptions(options));
  io::FileSystem* const file_system =
      options.file_system != nullptr ? options.file_system : io::LocalFileSystem();
  STEPWELL_RETURN_IF_ERROR(CheckOutside(file_system, store.path(), path));
  STEPWELL_ASSIGN_OR_RETURN(const auto reader, store.Read(step));
  std::string new_root;
  if (options.layout == ExportLayout::kV0) {
    STEPWELL_ASSIGN_OR_RETURN(const std::string name, ExportStepName(step, options));
    if (!file_system->Stat(path).ok()) new_root = path;
    path += "/" + name;
  }
  CheckpointBuild build;
  build.file_system = file_system;
  build.path = path;
  build.folder.file_mode = options.file_mode;
  STEPWELL_ASSIGN_OR_RETURN(Prepared prepared, Prepare(*reader, options, !new_root.empty()));
  bool is_new = false;
  if (!new_root.empty()) {
    STEPWELL_ASSIGN_OR_RETURN(is_new, MakeRoot(file_system, new_root));
  }
  if (!is_new) {
    if (!prepared.plan.root_metadata.empty()) {
      return UnavailableError(StrCat(new_root, " appeared meanwhile: export again"));
    }
    return MakeFolder(store, *reader, std::move(prepared), options, build);
  }
  const std::string metadata = prepared.plan.root_metadata;
  Status status = WriteRootMetadata(file_system, new_root, metadata, options.file_mode);
  const bool has_metadata = status.ok() && !metadata.empty();
  if (status.ok()) {
    auto report = MakeFolder(store, *reader, std::move(prepared), options, build);
    if (report.ok()) return report;
    status = report.status();
  }
  RemoveRoot(file_system, new_root, has_metadata);
  return status;
}

}  // namespace stepwell::db
