// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/bytes.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "db/layout.h"
#include "db/log/footprint.h"
#include "db/log/pins.h"
#include "db/log/segment_files.h"

namespace stepwell::db {
namespace {

// Between two looks at whether the caller wants to go on.
constexpr uint64_t kPartBytes = uint64_t{64} << 20;
constexpr uint32_t kWriteModes = 0222;
constexpr uint32_t kReadModes = 0444;

bool IsWholeStep(const ExportOptions& options) {
  return options.items.empty() && options.subtree_key.empty();
}

class Placer {
 public:
  Placer(StoreReader& store, const ExportPlan& plan, const ExportOptions& options,
         const ViewPlacing* view, ExportFolder* folder)
      : store_(store),
        plan_(plan),
        options_(options),
        view_(view),
        folder_(folder),
        file_system_(store.file_system()) {
    for (const ExportItem& item : plan_.items) {
      item_segments_.push_back(SegmentsOf(item));
      segments_.insert(item_segments_.back().begin(), item_segments_.back().end());
    }
    linkable_ = view_ == nullptr ? segments_ : SegmentsWithMuch(view_->link_bytes_min);
  }

  Result<PlacedBytes> Run() {
    if (view_ != nullptr) return ShowInView();
    const ExportMode wanted = options_.mode;
    if (wanted == ExportMode::kLink) return Link(/*automatic=*/false);
    if (wanted == ExportMode::kCopy) return Pack(/*clone=*/false);
    if (wanted == ExportMode::kAuto && IsWholeStep(options_)) {
      auto linked = Link(/*automatic=*/true);
      if (linked.ok() || !MayTryNext(linked.status())) return linked;
    }
    auto cloned = Pack(/*clone=*/true);
    if (cloned.ok()) return cloned;
    if (wanted == ExportMode::kReflink) return CannotClone(cloned.status());
    return MayTryNext(cloned.status()) ? Pack(/*clone=*/false) : cloned;
  }

 private:
  // Clones keep just the step's bytes, and the store goes on using its segments as it likes.
  Result<PlacedBytes> ShowInView() {
    if (view_->may_clone) {
      auto cloned = Pack(/*clone=*/true);
      if (cloned.ok() || !MayTryNext(cloned.status())) return cloned;
    }
    if (!linkable_.empty()) {
      auto linked = Link(/*automatic=*/true);
      if (linked.ok() || !MayTryNext(linked.status())) return linked;
    }
    return Pack(/*clone=*/false);
  }

  std::set<PartSegment> SegmentsWithMuch(uint64_t bytes_min) const {
    std::map<PartSegment, uint64_t> bytes;
    for (const ExportItem& item : plan_.items) {
      for (const ExportArray& array : item.arrays) {
        if (array.leaf == nullptr || array.rewrite) continue;
        for (const format::ChunkRecord& chunk : array.leaf->chunks) {
          bytes[{chunk.part, chunk.segment}] += chunk.stored_bytes;
        }
      }
    }
    std::set<PartSegment> segments;
    for (const auto& [segment, sum] : bytes) {
      if (sum >= bytes_min) segments.insert(segment);
    }
    return segments;
  }

  std::string StoreOf(uint32_t part) const { return PartPath(store_.path(), part); }
  std::string PathOf(PartSegment segment) const {
    return SegmentPath(StoreOf(segment.part), segment.segment);
  }
  std::string InItem(size_t item, std::string_view name) const {
    return StrCat(plan_.items[item].folder, "/", name);
  }

  Status Progress(uint64_t done, uint64_t total) const {
    if (!options_.progress || options_.progress(done, total)) return OkStatus();
    return CancelledError("the export was cancelled");
  }

  // kFailedPrecondition: why links are not possible, or for `automatic` ones not wanted.
  Status CheckLinkable(bool automatic) const {
    if (store_.untrusted()) {
      return FailedPreconditionError(
          "the store is open as untrusted: nothing is linked to its files; use mode copy");
    }
    const io::FileInfo& own = folder_->own_file();
    for (const PartSegment segment : linkable_) {
      STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_system_->Stat(PathOf(segment)));
      if (info.device != own.device) {
        return FailedPreconditionError(
            StrCat(folder_->path(), " is on another file system than ", StoreOf(segment.part),
                   ": there are no hard links between them; use mode copy"));
      }
      if (!automatic) continue;
      if (info.owner != own.owner || (info.mode | kWriteModes) != (own.mode | kWriteModes)) {
        return FailedPreconditionError("the segments have another owner or mode");
      }
    }
    return OkStatus();
  }

  // Segments that are sealed get a second name. Of what a writer, here or elsewhere, still appends
  // to and seals later, the step's ranges are cloned or copied: so nothing of the export changes.
  Result<PlacedBytes> Link(bool automatic) {
    STEPWELL_RETURN_IF_ERROR(CheckLinkable(automatic));
    STEPWELL_RETURN_IF_ERROR(Progress(0, 0));
    STEPWELL_RETURN_IF_ERROR(SealOwn());
    std::vector<std::string> made;
    auto placed = LinkAndPack(&made);
    if (placed.ok()) return placed;
    for (const std::string& name : made)
      folder_->Remove(name);  // not in the way of another attempt
    return placed;
  }

  Result<PlacedBytes> LinkAndPack(std::vector<std::string>* made) {
    std::set<uint32_t> parts;
    for (const PartSegment segment : linkable_) parts.insert(segment.part);
    std::set<PartSegment> open = segments_;
    for (const uint32_t part : parts) STEPWELL_RETURN_IF_ERROR(LinkPart(part, &open, made));
    PlacedBytes placed;
    for (const std::string& name : *made) {
      STEPWELL_ASSIGN_OR_RETURN(const uint64_t bytes, folder_->SizeOf(name));
      placed.linked_bytes += bytes;
    }
    placed.mode = ExportMode::kLink;
    std::vector<std::vector<ByteRun>> runs(item_segments_.size());
    if (!open.empty()) {
      const bool clones = view_ == nullptr || view_->may_clone;
      auto packed = PackRuns(clones, &open);
      const bool cloned = clones && packed.ok();
      if (clones && !cloned && MayTryNext(packed.status())) {
        packed = PackRuns(/*clone=*/false, &open);
      }
      STEPWELL_ASSIGN_OR_RETURN(runs, std::move(packed));
      for (const auto& each : runs) placed.cloned_bytes += cloned ? RunsEnd(each) : 0;
      if (made->empty()) placed.mode = cloned ? ExportMode::kReflink : ExportMode::kCopy;
    }
    for (size_t i = 0; i < item_segments_.size(); ++i) {
      std::set<PartSegment> linked = item_segments_[i];
      for (const PartSegment segment : open) linked.erase(segment);
      placed.items.push_back(ChunkPlaces::Linked(linked, std::move(runs[i])));
    }
    return placed;
  }

  // Seals the segments of this process, as far as that can be done soon.
  Status SealOwn() const {
    std::set<uint64_t> own;
    for (const PartSegment segment : linkable_) {
      if (segment.part == 0) own.insert(segment.segment);
    }
    return store_.SealSegments(own).status();
  }

  // Links sealed segments and takes them out of `open`. RECLAIM is held shared, because reclaim
  // looks at link counts and changes segments under the exclusive lock. So a segment either gets
  // its second name before that, or was changed before (and then had nothing of a pinned step).
  // Each part reclaims, and is locked, by itself.
  Status LinkPart(uint32_t part, std::set<PartSegment>* open,
                  std::vector<std::string>* made) const {
    const auto lock = ReclaimLock::Acquire(file_system_, StoreOf(part), io::LockKind::kShared);
    if (lock.status().code() == StatusCode::kPermissionDenied) {
      return FailedPreconditionError(
          StrCat(lock.status().message(), " (links are made under this lock; use mode copy)"));
    }
    STEPWELL_RETURN_IF_ERROR(lock.status());
    SegmentFiles files(file_system_, StoreOf(part), /*direct=*/false);
    FootprintCache edges(&files);
    for (const PartSegment segment : linkable_) {
      if (segment.part != part) continue;
      const auto found = edges.EdgesOf(segment.segment);
      if (!found.ok() || !found->own || !found->sealed) continue;
      // A writer that died may have synced neither the step nor the seal, and then the next one
      // would seal it again.
      STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(segment.segment));
      STEPWELL_RETURN_IF_ERROR(file->Sync());
      open->erase(segment);
      for (size_t i = 0; i < item_segments_.size(); ++i) {
        if (!item_segments_[i].contains(segment)) continue;
        const std::string name = InItem(i, LinkedName(segment));
        STEPWELL_RETURN_IF_ERROR(LinkOne(segment, folder_->Now(name)));
        made->push_back(name);
      }
      STEPWELL_RETURN_IF_ERROR(AddReadMode(segment));
      STEPWELL_RETURN_IF_ERROR(RemoveWriteMode(segment));
    }
    return OkStatus();
  }

  Status LinkOne(PartSegment segment, const std::string& name) const {
    const bool elsewhere = view_ != nullptr && view_->links != nullptr;
    io::FileSystem* const links = elsewhere ? view_->links : file_system_;
    const std::string from =
        elsewhere ? SegmentPath(PartPath(view_->store_path, segment.part), segment.segment)
                  : PathOf(segment);
    const Status status = links->Link(from, name);
    if (status.os_error() == EXDEV || status.os_error() == EPERM || status.os_error() == EMLINK) {
      return {StatusCode::kFailedPrecondition,
              StrCat(status.message(), " (hard links are not possible here; use mode copy)"),
              status.os_error()};
    }
    return status;
  }

  Status AddReadMode(PartSegment segment) const {
    const uint32_t wanted = options_.file_mode & kReadModes;
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_system_->Stat(PathOf(segment)));
    if ((info.mode & wanted) == wanted) return OkStatus();
    const Status status = file_system_->SetMode(PathOf(segment), info.mode | wanted);
    if (status.code() != StatusCode::kPermissionDenied) return status;
    return FailedPreconditionError(
        StrCat(status.message(), " (only its owner can let others read it; use mode copy)"));
  }

  // Makes a segment read-only before it is linked. A segment that was linked once is never written
  // to again, even when the other name is gone: whoever opened it there may be reading it still.
  // Reclaim knows such segments by their mode. The owner of an export removes it. The steps of a
  // view go by themselves, so for them a mode that cannot be changed is an error.
  Status RemoveWriteMode(PartSegment segment) const {
    STEPWELL_ASSIGN_OR_RETURN(const io::FileInfo info, file_system_->Stat(PathOf(segment)));
    if ((info.mode & kWriteModes) == 0) return OkStatus();
    const Status status = file_system_->SetMode(PathOf(segment), info.mode & ~kWriteModes);
    if (status.ok() || view_ == nullptr) return OkStatus();
    return FailedPreconditionError(status.message());
  }

  Result<PlacedBytes> Pack(bool clone) {
    STEPWELL_ASSIGN_OR_RETURN(auto runs, PackRuns(clone, nullptr));
    PlacedBytes placed;
    placed.mode = clone ? ExportMode::kReflink : ExportMode::kCopy;
    for (std::vector<ByteRun>& each : runs) {
      if (clone) placed.cloned_bytes += RunsEnd(each);
      placed.items.push_back(ChunkPlaces::Packed(kExportDataFile, std::move(each)));
    }
    return placed;
  }

  // Makes the data files of all items, and says what is in them. On failure there are none.
  Result<std::vector<std::vector<ByteRun>>> PackRuns(bool clone,
                                                     const std::set<PartSegment>* only) {
    // A selection takes none of its neighbours' bytes along.
    const uint64_t granule = clone || IsWholeStep(options_) ? kCloneGranuleBytes : 1;
    const uint64_t wanted = options_.data_file_bytes;
    const uint64_t file_bytes_max = wanted == 0 ? UINT64_MAX : AlignUp(wanted, kCloneGranuleBytes);
    std::vector<std::vector<ByteRun>> runs;
    uint64_t total = 0;
    for (const ExportItem& item : plan_.items) {
      runs.push_back(PlanRuns(item.arrays, granule, file_bytes_max, only));
      total += RunsEnd(runs.back());
    }
    uint64_t done = 0;
    STEPWELL_RETURN_IF_ERROR(Progress(done, total));
    std::vector<std::string> made;
    Status status;
    for (size_t i = 0; i < runs.size(); ++i) {
      for (size_t begin = 0, end = 0; status.ok() && begin < runs[i].size(); begin = end) {
        while (end < runs[i].size() && runs[i][end].file == runs[i][begin].file) ++end;
        made.push_back(InItem(i, DataFileName(kExportDataFile, runs[i], runs[i][begin].file)));
        status = PackFile(made.back(), std::span(runs[i]).subspan(begin, end - begin), clone, &done,
                          total);
      }
    }
    if (status.ok()) return runs;
    for (const std::string& name : made) folder_->Remove(name);
    return status;
  }

  Status PackFile(const std::string& name, std::span<const ByteRun> runs, bool clone,
                  uint64_t* done, uint64_t total) {
    STEPWELL_ASSIGN_OR_RETURN(const auto file, folder_->NewFile(name));
    const Status status = FillFromRuns(
        file_system_, [this](PartSegment segment) { return PathOf(segment); }, runs, clone,
        [&](uint64_t bytes) {
          *done += bytes;
          return Progress(*done, total);
        },
        file.get());
    return status.ok() ? folder_->Finish(file.get()) : status;
  }

  StoreReader& store_;
  const ExportPlan& plan_;
  const ExportOptions& options_;
  const ViewPlacing* const view_;  // null: an export
  ExportFolder* const folder_;
  io::FileSystem* const file_system_;
  std::vector<std::set<PartSegment>> item_segments_;
  std::set<PartSegment> segments_;
  std::set<PartSegment> linkable_;  // of these, that get a second name where that is possible
};

}  // namespace

std::vector<ByteRun> PlanRuns(const std::vector<ExportArray>& arrays, uint64_t granule_bytes,
                              uint64_t file_bytes_max, const std::set<PartSegment>* only) {
  std::vector<ByteRun> runs;
  for (const ExportArray& array : arrays) {
    if (array.leaf == nullptr || array.rewrite) continue;
    for (const format::ChunkRecord& chunk : array.leaf->chunks) {
      format::EachPayload(chunk, [&](const format::StoredPayload& payload) {
        if (only != nullptr && !only->contains({chunk.part, payload.segment})) return;
        const uint64_t from = AlignDown(payload.offset_bytes, granule_bytes);
        const uint64_t end = AlignUp(payload.offset_bytes + payload.stored_bytes, granule_bytes);
        runs.push_back(
            {.segment = payload.segment, .from = from, .length = end - from, .part = chunk.part});
      });
    }
  }
  std::sort(runs.begin(), runs.end(), [](const ByteRun& a, const ByteRun& b) {
    return std::tuple(a.part, a.segment, a.from) < std::tuple(b.part, b.segment, b.from);
  });
  size_t count = 0;
  for (ByteRun run : runs) {
    ByteRun* last = count == 0 ? nullptr : &runs[count - 1];
    const bool same_file =
        last != nullptr && last->part == run.part && last->segment == run.segment;
    if (same_file && run.from <= last->from + last->length) {
      const uint64_t length = std::max(last->length, run.from + run.length - last->from);
      if (length == last->length || last->to + length <= file_bytes_max) {
        last->length = length;
        continue;
      }
    }
    if (last != nullptr) {
      const uint64_t end = last->to + last->length;
      const bool fits = run.length <= file_bytes_max && end <= file_bytes_max - run.length;
      run.file = fits ? last->file : last->file + 1;
      run.to = fits ? end : 0;
    }
    runs[count++] = run;
  }
  runs.resize(count);
  return runs;
}

std::vector<uint32_t> SplitByPart(std::vector<ByteRun>* runs) {
  std::vector<uint32_t> parts;
  uint64_t begin = 0;
  for (ByteRun& run : *runs) {
    if (parts.empty() || parts.back() != run.part) {
      parts.push_back(run.part);
      begin = run.to;
    }
    run.file = parts.size() - 1;
    run.to -= begin;
  }
  return parts;
}

uint64_t RunsEnd(const std::vector<ByteRun>& runs) {
  uint64_t bytes = 0;
  for (const ByteRun& run : runs) bytes += run.length;
  return bytes;
}

std::string DataFileName(std::string_view name, const std::vector<ByteRun>& runs, size_t file) {
  if (runs.empty() || runs.back().file == 0) return std::string(name);
  char number[32];
  std::snprintf(number, sizeof(number), "-%06zu", file);
  return StrCat(name, number);
}

std::string LinkedName(PartSegment segment) {
  char name[48];
  std::snprintf(name, sizeof(name), "d/segment-%010llu",
                static_cast<unsigned long long>(segment.segment));
  if (segment.part == 0) return name;
  return StrCat(name, "-part-", segment.part);
}

std::set<PartSegment> SegmentsOf(const ExportItem& item) {
  std::set<PartSegment> segments;
  for (const ExportArray& array : item.arrays) {
    if (array.leaf == nullptr || array.rewrite) continue;
    for (const format::ChunkRecord& chunk : array.leaf->chunks) {
      segments.insert({chunk.part, chunk.segment});
    }
  }
  return segments;
}

ChunkPlaces ChunkPlaces::Linked(const std::set<PartSegment>& segments, std::vector<ByteRun> runs) {
  ChunkPlaces places = Packed(kExportDataFile, std::move(runs));
  for (const PartSegment segment : segments) {
    places.by_segment_[segment] = places.files_.size();
    places.files_.push_back(LinkedName(segment));
  }
  return places;
}

ChunkPlaces ChunkPlaces::Packed(std::string_view file, std::vector<ByteRun> runs) {
  ChunkPlaces places;
  for (size_t i = 0; !runs.empty() && i <= runs.back().file; ++i) {
    places.files_.push_back(DataFileName(file, runs, i));
  }
  places.runs_ = std::move(runs);
  return places;
}

ChunkPlaces ChunkPlaces::Packed(std::vector<std::string> files, std::vector<ByteRun> runs) {
  ChunkPlaces places;
  places.files_ = std::move(files);
  places.runs_ = std::move(runs);
  return places;
}

void ChunkPlaces::AddRewritten(std::string file) {
  by_segment_[{}] = files_.size();
  files_.push_back(std::move(file));
}

Result<ChunkPlaces::Place> ChunkPlaces::Find(uint32_t part,
                                             const format::StoredPayload& payload) const {
  if (const auto it = by_segment_.find({part, payload.segment}); it != by_segment_.end()) {
    return Place{it->second, payload.offset_bytes};
  }
  const auto next = std::upper_bound(runs_.begin(), runs_.end(), payload,
                                     [part](const format::StoredPayload& what, const ByteRun& run) {
                                       return std::tuple(part, what.segment, what.offset_bytes) <
                                              std::tuple(run.part, run.segment, run.from);
                                     });
  if (next == runs_.begin()) return InternalError("a chunk outside of what is linked or copied");
  const ByteRun& run = *std::prev(next);
  return Place{run.file, run.to + (payload.offset_bytes - run.from)};
}

Status FillFromRuns(io::FileSystem* file_system,
                    const std::function<std::string(PartSegment)>& path_of,
                    std::span<const ByteRun> runs, bool clone,
                    const std::function<Status(uint64_t)>& advance, io::File* file) {
  if (!clone) {
    STEPWELL_RETURN_IF_ERROR(file->Allocate(0, runs.back().to + runs.back().length));
  }
  std::unique_ptr<io::File> segment;
  PartSegment opened;
  for (const ByteRun& run : runs) {
    const PartSegment wanted{run.part, run.segment};
    if (segment == nullptr || wanted != opened) {
      STEPWELL_ASSIGN_OR_RETURN(segment, file_system->Open(path_of(wanted), {}));
      opened = wanted;
    }
    for (uint64_t at = 0; at < run.length;) {
      const uint64_t part = std::min(run.length - at, kPartBytes);
      STEPWELL_RETURN_IF_ERROR(clone ? file->CloneFrom(*segment, run.from + at, part, run.to + at)
                                     : file->CopyFrom(*segment, run.from + at, part, run.to + at));
      at += part;
      STEPWELL_RETURN_IF_ERROR(advance(part));
    }
  }
  return OkStatus();
}

bool MayTryNext(const Status& status) {
  return status.code() == StatusCode::kUnimplemented ||
         status.code() == StatusCode::kFailedPrecondition ||
         status.code() == StatusCode::kPermissionDenied;
}

Status CannotClone(const Status& status) {
  const bool missing = status.code() == StatusCode::kUnimplemented;
  if (!missing && status.code() != StatusCode::kFailedPrecondition) return status;
  return FailedPreconditionError(
      StrCat(status.message(), missing ? " share blocks" : "", "; use mode copy"));
}

Result<PlacedBytes> PlaceBytes(StoreReader& store, const ExportPlan& plan,
                               const ExportOptions& options, const ViewPlacing* view,
                               ExportFolder* folder) {
  return Placer(store, plan, options, view, folder).Run();
}

}  // namespace stepwell::db
