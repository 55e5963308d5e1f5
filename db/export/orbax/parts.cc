// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/parts.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "db/environment.h"
#include "db/group.h"
#include "db/layout.h"
#include "db/read/part_merge.h"
#include "db/read/restore.h"
#include "format/key.h"
#include "format/records.h"
#include "io/open_disk.h"

namespace stepwell::db {
namespace {

using format::LeafRecord;

// Chunks that are staged lie in the only segment of something laid out as the parts are.
constexpr uint64_t kStagedSegment = 1;

std::string PartName(uint32_t part) {
  return part == 0 ? std::string(kExportDataFile) : StrCat(kExportDataFile, "-part-", part);
}

std::string StagedPath(const std::string& mark, uint32_t part) {
  return SegmentPath(PartPath(mark, part), kStagedSegment);
}

std::string NewMarkName() {
  std::random_device device;
  char name[48];
  std::snprintf(name, sizeof(name), "stepwell-parts-%08x%08x", device(), device());
  return name;
}

io::FileSystem* FileSystemOf(const ExportOptions& options) {
  return options.file_system != nullptr ? options.file_system : io::LocalFileSystem();
}

// Decodes what a part's process has sent.
Result<std::vector<LeafRecord>> DecodeShare(uint32_t part, const std::string& bytes) {
  auto records = format::DecodeRecords(AsBytes(bytes));
  if (!records.ok()) return records.status().WithContext(StrCat("records of part ", part));
  for (const LeafRecord& leaf : *records) {
    for (const format::ChunkRecord& chunk : leaf.chunks) {
      bool has_place = true;
      format::EachPayload(chunk, [&has_place](const format::StoredPayload& payload) {
        has_place = has_place && payload.segment != 0;
      });
      if (has_place) continue;
      return DataLossError(
          StrCat("part ", part, ": ", LeafName(leaf), ": a chunk without a place"));
    }
  }
  return records;
}

Result<std::shared_ptr<StepReader>> MergedStep(const std::string& root,
                                               std::shared_ptr<StepReader> own,
                                               const std::map<uint32_t, std::string>& others) {
  const format::StepRecord& step = own->step();
  std::map<uint32_t, std::vector<LeafRecord>> records;
  for (const uint32_t part : HasOtherParts(step) ? step.group->parts : std::vector<uint32_t>()) {
    if (part == 0) continue;
    const auto found = others.find(part);
    if (found == others.end()) {
      return DataLossError(StrCat("step ", step.step, ": the records of part ", part,
                                  ", which has a share of it, are missing"));
    }
    STEPWELL_ASSIGN_OR_RETURN(records[part], DecodeShare(part, found->second));
  }
  return ReadWithRecords(std::move(own), std::move(records), root);
}

// The arrays that are written anew, as if their chunks were exported as they are.
std::vector<ExportArray> StagedArrays(const ExportPlan& plan) {
  std::vector<ExportArray> arrays;
  for (const ExportItem& item : plan.items) {
    for (const ExportArray& array : item.arrays) {
      if (array.rewrite) arrays.emplace_back().leaf = array.leaf;
    }
  }
  return arrays;
}

class PartCopier {
 public:
  PartCopier(StoreReader& store, const std::vector<PartFile>& files, const PartCopyOptions& options)
      : store_(store), files_(files), options_(options) {
    for (const PartFile& file : files) total_ += RunsEnd(file.runs);
  }

  bool HasWholeBlocks() const {
    return std::all_of(files_.begin(), files_.end(), [](const PartFile& file) {
      return std::all_of(file.runs.begin(), file.runs.end(), [](const ByteRun& run) {
        return run.from % kCloneGranuleBytes == 0 && run.length % kCloneGranuleBytes == 0;
      });
    });
  }

  Status Run(bool clone) {
    done_ = 0;
    STEPWELL_RETURN_IF_ERROR(Advance(0));
    for (const PartFile& file : files_) {
      const Status status = Make(file, clone);
      if (status.ok()) continue;
      for (const std::string& path : made_) {
        file_system_->Remove(path).IgnoreError("the export's own process removes what it made");
      }
      made_.clear();
      return status;
    }
    return OkStatus();
  }

 private:
  Status Advance(uint64_t bytes) {
    done_ += bytes;
    if (!options_.progress || options_.progress(done_, total_)) return OkStatus();
    return CancelledError("the export was cancelled");
  }

  Status Make(const PartFile& file, bool clone) {
    const io::FileOpenOptions anew = {.write = true, .create = true, .exclusive = true};
    STEPWELL_ASSIGN_OR_RETURN(const auto out, file_system_->Open(file.path, anew));
    made_.push_back(file.path);
    const auto path_of = [this](PartSegment segment) {
      return SegmentPath(store_.path(), segment.segment);
    };
    STEPWELL_RETURN_IF_ERROR(FillFromRuns(
        store_.file_system(), path_of, file.runs, clone,
        [this](uint64_t bytes) { return Advance(bytes); }, out.get()));
    if (const uint32_t mode = ExportFileMode(store_, options_.file_mode); mode != 0) {
      STEPWELL_RETURN_IF_ERROR(file_system_->SetMode(file.path, mode));
    }
    STEPWELL_RETURN_IF_ERROR(out->Sync());
    return file_system_->SyncDirectory(ParentOf(file.path));
  }

  io::FileSystem* const file_system_ = io::LocalFileSystem();
  StoreReader& store_;
  const std::vector<PartFile>& files_;
  const PartCopyOptions& options_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
  std::vector<std::string> made_;
};

}  // namespace

Result<std::unique_ptr<PartsExport>> PartsExport::Begin(
    StoreReader& store, std::shared_ptr<StepReader> own,
    const std::map<uint32_t, std::string>& others, const std::string& destination,
    const ExportOptions& options) {
  STEPWELL_RETURN_IF_ERROR(CheckExportOptions(options));
  if (options.mode == ExportMode::kLink) {
    return FailedPreconditionError(
        "mode link is not possible where a step's parts lie on disks of several machines; use "
        "mode copy");
  }
  io::FileSystem* const file_system = FileSystemOf(options);
  const uint64_t step = own->step().step;
  STEPWELL_ASSIGN_OR_RETURN(
      const ExportTarget target,
      FindExportTarget(file_system, store.path(), step, destination, options));
  STEPWELL_ASSIGN_OR_RETURN(auto reader, MergedStep(store.path(), std::move(own), others));
  std::unique_ptr<PartsExport> made(
      new PartsExport(file_system, options, target.new_root, std::move(reader)));
  STEPWELL_ASSIGN_OR_RETURN(made->prepared_,
                            PrepareExport(*made->reader_, options, !target.new_root.empty()));
  made->options_.file_mode = ExportFileMode(store, options.file_mode);
  STEPWELL_RETURN_IF_ERROR(
      made->root_.Make(made->prepared_.plan.root_metadata, made->options_.file_mode));
  STEPWELL_RETURN_IF_ERROR(made->MakeFolder(target.path));
  made->options_.progress = nullptr;  // it was of this call
  return made;
}

PartsExport::~PartsExport() = default;

Status PartsExport::MakeFolder(const std::string& path) {
  STEPWELL_ASSIGN_OR_RETURN(
      folder_, ExportFolder::Create(file_system_, path, {.file_mode = options_.file_mode}));
  STEPWELL_RETURN_IF_ERROR(MakeItemDirectories(prepared_, folder_.get()));
  mark_ = folder_->Now(NewMarkName());
  STEPWELL_RETURN_IF_ERROR(file_system_->CreateDirectory(mark_));
  for (const ExportItem& item : prepared_.plan.items) PlanItem(item);
  return PlanStaged();
}

// A selection takes none of its neighbours' bytes along, unless it has to be cloned.
void PartsExport::PlanItem(const ExportItem& item) {
  const bool whole = options_.items.empty() && options_.subtree_key.empty();
  const bool blocks = whole || options_.mode == ExportMode::kReflink;
  std::vector<ByteRun> runs = PlanRuns(item.arrays, blocks ? kCloneGranuleBytes : 1);
  std::vector<std::string> names;
  const size_t first = files_.size();
  for (const uint32_t part : SplitByPart(&runs)) {
    names.push_back(PartName(part));
    files_.push_back({part, folder_->Now(StrCat(item.folder, "/", names.back())), {}});
  }
  for (const ByteRun& run : runs) files_[first + run.file].runs.push_back(run);
  placed_.items.push_back(ChunkPlaces::Packed(std::move(names), std::move(runs)));
}

Status PartsExport::PlanStaged() {
  staged_begin_ = files_.size();
  std::vector<ByteRun> runs = PlanRuns(StagedArrays(prepared_.plan), kCloneGranuleBytes);
  std::vector<std::string> names;
  for (const uint32_t part : SplitByPart(&runs)) {
    const std::string store = PartPath(mark_, part);
    if (part != 0) STEPWELL_RETURN_IF_ERROR(file_system_->CreateDirectory(store));
    STEPWELL_RETURN_IF_ERROR(file_system_->CreateDirectory(SegmentsPath(store)));
    names.push_back(StagedPath(mark_, part));
    files_.push_back({part, names.back(), {}});
  }
  for (const ByteRun& run : runs) files_[staged_begin_ + run.file].runs.push_back(run);
  staged_ = ChunkPlaces::Packed(std::move(names), std::move(runs));
  return OkStatus();
}

Status PartsExport::CheckFiles() {
  for (size_t i = 0; i < files_.size(); ++i) {
    const PartFile& file = files_[i];
    const uint64_t wanted = RunsEnd(file.runs);
    const auto info = file_system_->Stat(file.path);
    if (info.status().code() == StatusCode::kNotFound) {
      return DataLossError(StrCat(file.path, " is missing; part ", file.part, " was to make it"));
    }
    if (!info.ok()) return info.status();
    if (info->size_bytes != wanted) {
      return DataLossError(StrCat(file.path, " has ", info->size_bytes, " bytes, and part ",
                                  file.part, " was to copy ", wanted));
    }
    if (i < staged_begin_) folder_->CountFile(wanted);
  }
  return OkStatus();
}

// From the copies of their chunks, which are of no other use.
Status PartsExport::RewriteStaged() {
  std::map<uint32_t, std::shared_ptr<SegmentFiles>> files;
  files[0] = std::make_shared<SegmentFiles>(file_system_, mark_, /*direct=*/false);
  for (size_t i = staged_begin_; i < files_.size(); ++i) {
    const uint32_t part = files_[i].part;
    if (part == 0) continue;
    files[part] = std::make_shared<SegmentFiles>(file_system_, PartPath(mark_, part), false);
    files[0]->SetPart(part, files[part]);
  }
  for (ExportItem& item : prepared_.plan.items) {
    for (ExportArray& array : item.arrays) {
      if (!array.rewrite) continue;
      LeafRecord& leaf = read_back_.emplace_back(*array.leaf);
      for (format::ChunkRecord& chunk : leaf.chunks) {
        std::vector<format::StoredPayload*> payloads = {&chunk};
        for (format::StoredPayload& base : chunk.bases) payloads.push_back(&base);
        for (format::StoredPayload* const payload : payloads) {
          STEPWELL_ASSIGN_OR_RETURN(const auto place, staged_.Find(chunk.part, *payload));
          payload->offset_bytes = place.offset_bytes;
          payload->segment = kStagedSegment;
        }
      }
      array.leaf = &leaf;
    }
  }
  if (read_back_.empty()) return OkStatus();
  STEPWELL_ASSIGN_OR_RETURN(const Environment environment, MakeEnvironment({}));
  Restorer restorer(files[0].get(), environment.workers.get(), environment.make_disk);
  const auto load = [&](std::span<const LoadRequest> requests) {
    return restorer.Load(requests).status().WithContext("in a copy of what the parts have");
  };
  return RewriteArrays(load, options_, folder_.get(), &prepared_, &placed_);
}

Result<ExportReport> PartsExport::Finish(bool cloned,
                                         const std::function<bool(uint64_t, uint64_t)>& progress) {
  options_.progress = progress;
  STEPWELL_RETURN_IF_ERROR(CheckFiles());
  STEPWELL_RETURN_IF_ERROR(RewriteStaged());
  RemoveTree(file_system_, mark_);
  if (const auto left = file_system_->Stat(mark_); left.status().code() != StatusCode::kNotFound) {
    return left.ok() ? FailedPreconditionError(StrCat(mark_, " cannot be removed")) : left.status();
  }
  placed_.mode = cloned ? ExportMode::kReflink : ExportMode::kCopy;
  for (size_t i = 0; cloned && i < staged_begin_; ++i) {
    placed_.cloned_bytes += RunsEnd(files_[i].runs);
  }
  auto report =
      FinishCheckpoint(reader_->step(), std::move(prepared_), placed_, options_, {}, folder_.get());
  if (report.ok()) root_.Keep();
  return report;
}

Result<std::string> RecordsOfShare(StepReader& share, const std::string& subtree_key) {
  STEPWELL_ASSIGN_OR_RETURN(const auto leaves, share.Leaves(subtree_key));
  return format::EncodeRecords(leaves);
}

Result<bool> CopyPartFiles(StoreReader& store, StepReader& share,
                           const std::vector<PartFile>& files, const PartCopyOptions& options) {
  PartCopier copier(store, files, options);
  if (options.mode == ExportMode::kReflink ||
      (options.mode == ExportMode::kAuto && copier.HasWholeBlocks())) {
    const Status cloned = copier.Run(/*clone=*/true);
    if (cloned.ok()) return true;
    if (options.mode == ExportMode::kReflink) return share.Explain(CannotClone(cloned));
    if (!MayTryNext(cloned)) return share.Explain(cloned);
  }
  const Status copied = copier.Run(/*clone=*/false);
  if (!copied.ok()) return share.Explain(copied);
  return false;
}

}  // namespace stepwell::db
