// SPDX-License-Identifier: Apache-2.0
#include "db/commit/ballast.h"

#include <algorithm>
#include <vector>

#include "db/layout.h"
#include "db/log/segment_files.h"
#include "db/log/segment_scan.h"

namespace stepwell::db {
namespace {

// Enough for a delete, the frames of an open, and RocksDB's files of an open, which grow with the
// store; on a small disk a share of what is free. XFS makes no file where less than 1 MiB or so is
// free: there it does for stores from 8 MiB on.
constexpr uint64_t kBallastBytesMax = uint64_t{16} << 20;
constexpr uint64_t kBallastBytesMin = uint64_t{128} << 10;
constexpr uint64_t kBallastShareOfStore = 8;
constexpr uint64_t kBallastShareOfFree = 8;

uint64_t SegmentBytes(io::FileSystem* file_system, const std::string& store_path) {
  uint64_t bytes = 0;
  const auto ids = SegmentIds(file_system, store_path);
  for (const uint64_t id : ids.ok() ? *ids : std::vector<uint64_t>()) {
    const auto info = file_system->Stat(SegmentPath(store_path, id));
    if (info.ok()) bytes += info->allocated_bytes;
  }
  return bytes;
}

}  // namespace

void KeepBallast(io::FileSystem* file_system, const std::string& store_path, bool anew) {
  const std::string path = BallastFilePath(store_path);
  const auto info = file_system->Stat(path);
  if (info.ok() ? info->link_count > 1 : !anew || info.status().code() != StatusCode::kNotFound) {
    return;
  }
  const auto free = file_system->FreeBytes(store_path);
  if (!free.ok()) return;
  // A power cut may have left the name without the space.
  const uint64_t has = info.ok() ? info->allocated_bytes : 0;
  const uint64_t wanted = std::clamp(SegmentBytes(file_system, store_path) / kBallastShareOfStore,
                                     kBallastBytesMin, kBallastBytesMax);
  const bool too_large = has / 2 > wanted;
  const uint64_t affordable = std::min((*free + has) / kBallastShareOfFree, io::FileBytesMax());
  const uint64_t bytes = AlignDown(too_large ? wanted : std::min(wanted, affordable), kGrainBytes);
  if (!too_large && (bytes < kBallastBytesMin || has >= bytes - bytes / 2)) return;
  auto ballast = file_system->Open(path, {.write = true, .create = true});
  if (!ballast.ok()) return;
  Status status = too_large ? (*ballast)->Truncate(bytes) : (*ballast)->Allocate(0, bytes);
  const auto made = (*ballast)->Info();
  if (status.ok() && made.ok() && made->allocated_bytes >= bytes) return;
  // Without fallocate only what is written takes space.
  const std::string zeros(kBallastBytesMin, '\0');
  for (uint64_t at = 0; status.ok() && at < bytes; at += zeros.size()) {
    const size_t size = std::min<uint64_t>(zeros.size(), bytes - at);
    status = (*ballast)->WriteAt(at, AsBytes(std::string_view(zeros).substr(0, size)));
  }
  if (!status.ok() && has > 0) status = (*ballast)->Truncate(has);
  if (!status.ok()) file_system->Remove(path).IgnoreError("best effort");
}

}  // namespace stepwell::db
