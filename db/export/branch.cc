// SPDX-License-Identifier: Apache-2.0
#include "db/export/branch.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "db/export/orbax/folder.h"
#include "db/layout.h"
#include "db/log/footprint.h"
#include "db/log/pins.h"
#include "db/log/segment_files.h"
#include "db/log/segment_scan.h"
#include "format/records.h"
#include "io/small_file.h"

namespace stepwell::db {
namespace {

// Some slots of kSlotBytes; more is the file of something else.
constexpr uint64_t kSlotFileBytesMax = 16 * format::kSlotBytes;

Status CheckOneProcess(const StoreSnapshot& snapshot) {
  const bool shared = std::any_of(snapshot.steps.begin(), snapshot.steps.end(),
                                  [](const auto& step) { return step.group.has_value(); });
  if (!shared) return OkStatus();
  return FailedPreconditionError(
      "the store has steps that several processes saved: it cannot be branched; export a step and "
      "import it into another store");
}

Status LinkSegment(io::FileSystem* file_system, const std::string& from, const std::string& to) {
  const Status status = file_system->Link(from, to);
  if (status.os_error() != EXDEV && status.os_error() != EPERM && status.os_error() != EMLINK) {
    return status;
  }
  return {StatusCode::kFailedPrecondition,
          StrCat(status.message(), " (a branch needs hard links: one file system that has them)"),
          status.os_error()};
}

}  // namespace

// First STEPWELL is read, then the segments that are there are sealed and linked: together they are
// a store that was killed at that instant. What is written meanwhile lies in later segments. Under
// RECLAIM, from before the first look on, nothing of it is erased. A segment that is not written
// any more may have no seal, because it got a second name before, or for want of space: it is
// scanned.
Status Branch(StoreReader& store, const std::string& destination, io::FileSystem* file_system) {
  io::FileSystem* const own = store.file_system();
  STEPWELL_ASSIGN_OR_RETURN(
      auto folder,
      ExportFolder::Create(file_system, destination, {.file_mode = ExportFileMode(store, 0)}));
  STEPWELL_ASSIGN_OR_RETURN(const auto lock,
                            ReclaimLock::Acquire(own, store.path(), io::LockKind::kShared));
  STEPWELL_ASSIGN_OR_RETURN(const std::string slots,
                            io::ReadSmallFile(own, SlotFilePath(store.path()), kSlotFileBytesMax));
  STEPWELL_ASSIGN_OR_RETURN(const auto snapshot, store.Snapshot());
  STEPWELL_RETURN_IF_ERROR(CheckOneProcess(*snapshot));
  STEPWELL_ASSIGN_OR_RETURN(const auto there, SegmentIds(own, store.path()));
  STEPWELL_ASSIGN_OR_RETURN(const bool idle, store.SealSegments({there.begin(), there.end()}));
  if (!idle) {
    return UnavailableError(StrCat(
        store.path(), ": saves are writing its segments; wait for the saves, then try again"));
  }

  STEPWELL_RETURN_IF_ERROR(folder->Write("STEPWELL", slots));
  STEPWELL_RETURN_IF_ERROR(folder->MakeDirectory("segments"));
  SegmentFiles files(own, store.path(), /*direct=*/false);
  FootprintCache edges(&files);
  for (const uint64_t segment : there) {
    const std::string path = SegmentPath(store.path(), segment);
    const auto found = edges.EdgesOf(segment);
    // One without a header is not written any more: a crash cut it off, or its header is damaged.
    const bool headless = found.status().code() == StatusCode::kNotFound;
    if (!headless) STEPWELL_RETURN_IF_ERROR(found.status());
    // The file of another store, or of another number, to which nothing here refers.
    if (!headless && !found->own) continue;
    STEPWELL_ASSIGN_OR_RETURN(const auto file, files.Get(segment));
    STEPWELL_RETURN_IF_ERROR(file->Sync());
    STEPWELL_RETURN_IF_ERROR(
        LinkSegment(file_system, path, folder->Now(SegmentPath("", segment).substr(1))));
  }
  return folder->Commit();
}

}  // namespace stepwell::db
