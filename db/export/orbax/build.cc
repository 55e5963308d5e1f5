// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/build.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

#include "db/environment.h"
#include "db/export/orbax/rewrite.h"
#include "db/layout.h"
#include "format/key.h"
#include "io/guard.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

constexpr std::string_view kMetadataFolder = "metadata";

// Returns the leaves to export, in key order.
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

// Long strings and integers, and files, are in chunks of their own; Orbax has the strings in a JSON
// file.
Status LoadStrings(StepReader& reader, std::vector<LeafRecord>* leaves) {
  std::vector<std::pair<LeafRecord*, std::string>> texts;
  for (LeafRecord& leaf : *leaves) {
    if (leaf.kind != format::LeafKind::kValue || leaf.chunk_count == 0) continue;
    if (leaf.value_type != format::ValueType::kStr && leaf.value_type != format::ValueType::kInt &&
        leaf.value_type != format::ValueType::kBytes) {
      continue;
    }
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

Status WriteFiles(const std::vector<ExportFile>& files, const std::string& below,
                  ExportFolder* folder) {
  for (const ExportFile& file : files) {
    STEPWELL_RETURN_IF_ERROR(folder->Write(below + file.name, file.bytes));
  }
  return OkStatus();
}

// Collects the digests of all written files and of all chunks.
Result<ExportDigests> DigestsOf(const ExportPlan& plan, const PlacedBytes& placed,
                                const ExportFolder& folder) {
  ExportDigests digests;
  digests.step = plan.step;
  digests.left_out = plan.left_out;
  digests.files = folder.digests();
  // It names the place, and is written anew where a push takes the checkpoint elsewhere.
  std::erase_if(digests.files,
                [](const auto& file) { return file.name.ends_with("commit_success.txt"); });
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (plan.items[i].kind == format::ItemKind::kFiles) {
      digests.file_items.push_back(plan.items[i].folder);
    }
    const size_t first = digests.data.size();
    for (const std::string& file : placed.items[i].files()) {
      DataDigest& data = digests.data.emplace_back();
      data.name = StrCat(plan.items[i].folder, "/", file);
      STEPWELL_ASSIGN_OR_RETURN(data.bytes, folder.SizeOf(data.name));
    }
    for (const ExportArray& array : plan.items[i].arrays) {
      if (array.leaf == nullptr) continue;
      for (const format::ChunkRecord& chunk : array.leaf->chunks) {
        STEPWELL_ASSIGN_OR_RETURN(const ChunkPlaces::Place place,
                                  placed.items[i].Find(chunk.part, chunk));
        digests.data[first + place.file].chunks.push_back(
            {place.offset_bytes, chunk.stored_bytes, chunk.crc});
      }
    }
  }
  for (DataDigest& data : digests.data) {
    std::sort(data.chunks.begin(), data.chunks.end(),
              [](const auto& a, const auto& b) { return a.offset_bytes < b.offset_bytes; });
    data.chunks.erase(std::unique(data.chunks.begin(), data.chunks.end()), data.chunks.end());
  }
  return digests;
}

}  // namespace

Status CheckExportOptions(const ExportOptions& options) {
  if (options.zarr_format == 2 || options.zarr_format == 3) return OkStatus();
  return InvalidArgumentError(StrCat("zarr is 2 or 3, not ", options.zarr_format));
}

Result<ExportTarget> FindExportTarget(io::FileSystem* file_system, const std::string& store,
                                      uint64_t step, const std::string& destination,
                                      const ExportOptions& options) {
  ExportTarget target;
  target.path = WithoutTrailingSlashes(destination);
  if (target.path.empty()) return InvalidArgumentError("an export needs a destination");
  STEPWELL_RETURN_IF_ERROR(CheckOutside(file_system, store, target.path));
  if (options.layout != ExportLayout::kV0) return target;
  STEPWELL_ASSIGN_OR_RETURN(const std::string name, ExportStepName(step, options));
  if (!file_system->Stat(target.path).ok()) target.new_root = target.path;
  target.path += "/" + name;
  return target;
}

NewRoot::NewRoot(io::FileSystem* file_system, std::string path)
    : file_system_(file_system), path_(std::move(path)) {}

// Removes what a failed export made. Files that others have put there meanwhile stay.
NewRoot::~NewRoot() {
  if (!made_) return;
  constexpr const char* kWhy = "another program uses it by now, or the file system failed";
  io::Quietly([this] {
    if (has_metadata_) {
      file_system_->Remove(StrCat(path_, "/", format::orbax::kRootMetadataName)).IgnoreError(kWhy);
      file_system_->RemoveDirectory(StrCat(path_, "/", kMetadataFolder)).IgnoreError(kWhy);
    }
    file_system_->RemoveDirectory(path_).IgnoreError(kWhy);
  });
}

Status NewRoot::Make(const std::string& custom_metadata, uint32_t file_mode) {
  if (path_.empty()) return OkStatus();
  const Status made = file_system_->CreateDirectory(path_);
  if (made.code() == StatusCode::kAlreadyExists) {
    if (custom_metadata.empty()) return OkStatus();
    return UnavailableError(StrCat(path_, " appeared meanwhile: export again"));
  }
  if (made.code() == StatusCode::kNotFound) {
    STEPWELL_RETURN_IF_ERROR(CheckIsDirectory(file_system_, ParentOf(path_)));
  }
  STEPWELL_RETURN_IF_ERROR(made);
  made_ = true;
  STEPWELL_RETURN_IF_ERROR(file_system_->SyncDirectory(ParentOf(path_)));
  return custom_metadata.empty() ? OkStatus() : WriteMetadata(custom_metadata, file_mode);
}

Status NewRoot::WriteMetadata(const std::string& custom_metadata, uint32_t file_mode) {
  format::orbax::RootMetadata metadata;
  metadata.custom_metadata = custom_metadata;
  STEPWELL_ASSIGN_OR_RETURN(const std::string text, format::orbax::EncodeRootMetadata(metadata));
  STEPWELL_ASSIGN_OR_RETURN(const auto folder,
                            ExportFolder::Create(file_system_, StrCat(path_, "/", kMetadataFolder),
                                                 {.file_mode = file_mode}));
  const std::string_view name = format::orbax::kRootMetadataName;
  STEPWELL_RETURN_IF_ERROR(folder->Write(name.substr(kMetadataFolder.size() + 1), text));
  STEPWELL_RETURN_IF_ERROR(folder->Commit());
  has_metadata_ = true;
  return OkStatus();
}

Result<PreparedExport> PrepareExport(StepReader& reader, const ExportOptions& options,
                                     bool makes_root) {
  PreparedExport prepared;
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

Status MakeItemDirectories(const PreparedExport& prepared, ExportFolder* folder) {
  for (size_t i = 0; i < prepared.plan.items.size(); ++i) {
    const ExportItem& item = prepared.plan.items[i];
    STEPWELL_RETURN_IF_ERROR(folder->MakeDirectory(item.folder));
    for (const std::string& name : item.directories) {
      STEPWELL_RETURN_IF_ERROR(folder->MakeDirectory(StrCat(item.folder, "/", name)));
    }
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

Status RewriteArrays(const LoadArrays& load, const ExportOptions& options, ExportFolder* folder,
                     PreparedExport* prepared, PlacedBytes* placed) {
  ExportPlan& plan = prepared->plan;
  // All that progress is told of is there.
  const auto go_on = [&] {
    const uint64_t done = plan.stored_bytes;
    if (!options.progress || options.progress(done, done)) return OkStatus();
    return CancelledError("the export was cancelled");
  };
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const size_t rewritten = prepared->rewritten.size();
    STEPWELL_RETURN_IF_ERROR(RewriteItem(load,
                                         StrCat(plan.items[i].folder, "/", kExportRewrittenFile),
                                         go_on, folder, &plan.items[i], &prepared->rewritten));
    if (prepared->rewritten.size() > rewritten) {
      placed->items[i].AddRewritten(std::string(kExportRewrittenFile));
    }
  }
  return OkStatus();
}

Result<ExportReport> FinishCheckpoint(const format::StepRecord& step, PreparedExport prepared,
                                      const PlacedBytes& placed, const ExportOptions& options,
                                      const std::vector<ExportFile>& extra, ExportFolder* folder) {
  ExportPlan& plan = prepared.plan;
  std::random_device device;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const std::string below = plan.items[i].folder + "/";
    STEPWELL_RETURN_IF_ERROR(WriteFiles(prepared.item_files[i], below, folder));
    DatabaseInfo info;
    info.uuid = std::bit_cast<format::orbax::OcdbtUuid>(
        RandomId([&device] { return uint64_t{device()} << 32 | device(); }));
    info.commit_time_ns = static_cast<uint64_t>(std::max<int64_t>(step.time_ns, 0));
    info.zarr_format = options.zarr_format;
    STEPWELL_ASSIGN_OR_RETURN(const auto database,
                              EncodeDatabase(plan.items[i], placed.items[i], info));
    STEPWELL_RETURN_IF_ERROR(WriteFiles(database, below, folder));
    if (options.layout == ExportLayout::kV0) {
      STEPWELL_RETURN_IF_ERROR(folder->Write(
          StrCat(below, format::orbax::kCommitSuccessName),
          format::orbax::EncodeCommitSuccess(StrCat(folder->path(), "/", plan.items[i].folder))));
    }
  }
  STEPWELL_ASSIGN_OR_RETURN(const auto marks,
                            EncodeCheckpointFiles(plan, step, options.layout, folder->path()));
  STEPWELL_RETURN_IF_ERROR(WriteFiles(marks, "", folder));
  STEPWELL_RETURN_IF_ERROR(WriteFiles(extra, "", folder));
  STEPWELL_ASSIGN_OR_RETURN(const ExportDigests digests, DigestsOf(plan, placed, *folder));
  STEPWELL_RETURN_IF_ERROR(folder->Write(kDigestsName, EncodeDigests(digests)));
  STEPWELL_RETURN_IF_ERROR(folder->Commit());
  ExportReport report;
  report.path = folder->path();
  report.mode = placed.mode;
  report.leaves = plan.leaves;
  report.chunks = plan.chunks;
  report.step_bytes = plan.stored_bytes;
  report.apparent_bytes = folder->written_bytes() + placed.linked_bytes;
  report.written_bytes = folder->written_bytes() - placed.cloned_bytes;
  report.skipped = std::move(plan.skipped);
  report.widened = std::move(plan.widened);
  report.as_numpy = std::move(plan.as_numpy);
  report.as_text = std::move(plan.as_text);
  return report;
}

}  // namespace stepwell::db
