// SPDX-License-Identifier: Apache-2.0
#include "io/open_disk.h"

#include <cstdlib>

namespace stepwell::io {
namespace {

Result<DiskKind> Resolve(DiskKind kind) {
  const char* text = std::getenv("STEPWELL_DISK");
  if (kind != DiskKind::kAuto || text == nullptr) return kind;
  const std::string_view value = text;
  if (value.empty()) return DiskKind::kAuto;
  if (value == "uring") return DiskKind::kUring;
  if (value == "posix") return DiskKind::kPosix;
  return InvalidArgumentError(StrCat("STEPWELL_DISK is '", value, "'; use 'uring' or 'posix'"));
}

}  // namespace

Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options) {
  STEPWELL_ASSIGN_OR_RETURN(const DiskKind kind, Resolve(options.kind));
  if (kind == DiskKind::kPosix) return MakePosixDisk();
  Result<std::unique_ptr<Disk>> uring = MakeUringDisk(options.depth);
  if (uring.ok()) return uring;
  const Status& error = uring.status();
  if (kind == DiskKind::kUring) {
    return Status(StatusCode::kUnimplemented,
                  StrCat("io_uring was asked for but cannot be used: ", error.message()),
                  error.os_error());
  }
  Log(options.log, LogLevel::kInfo,
      StrCat("io_uring is not available here (", error.message(), "); using posix I/O"));
  return MakePosixDisk();
}

}  // namespace stepwell::io
