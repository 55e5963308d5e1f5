// SPDX-License-Identifier: Apache-2.0
#include "io/disk.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>

#include "io/buffer.h"

namespace stepwell::io {
namespace {

constexpr size_t kCopyBlockBytes = size_t{4} << 20;

// Made ahead, when there is memory.
const Status kRefusalWithoutMessage = AbortedError("not done after an earlier failure");

// Returns true for errors of lock calls that the kernel, the file system or its server does not
// support.
bool IsLockUnsupported(int os_error) {
  return os_error == ENOSYS || os_error == EOPNOTSUPP || os_error == ENOLCK || os_error == EINVAL;
}

}  // namespace

Status LockStatus(int os_error, const std::string& path) {
  if (!IsLockUnsupported(os_error)) return ErrnoStatus(os_error, "lock " + path);
  return {
      StatusCode::kIoError,
      StrCat(path, ": its file system cannot lock files (",
             std::generic_category().message(os_error),
             "), and Stepwell writes under locks: mount it with locks, or write on another file "
             "system; reading needs none"),
      os_error};
}

bool LacksLocks(const Status& status) {
  return status.code() == StatusCode::kIoError && IsLockUnsupported(status.os_error());
}

void Freeze::Trip(const Status& error) {
  const MutexLock lock(&mutex_);
  if (!error_.ok()) return;
  error_ = error.ok() ? InternalError("frozen without an error") : error;
  try {
    refusal_ = {StatusCode::kAborted,
                StrCat("not done after an earlier failure: ", error_.message()), error_.os_error()};
  } catch (const std::bad_alloc&) {
    refusal_ = kRefusalWithoutMessage;
  }
  frozen_.store(true, std::memory_order_release);
}

Status Freeze::Check() const {
  if (!frozen()) return OkStatus();
  const MutexLock lock(&mutex_);
  return refusal_;
}

Status Freeze::first_error() const {
  const MutexLock lock(&mutex_);
  return error_;
}

uint64_t FileBytesMax() {
  struct rlimit limit {};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

Result<bool> IsNamed(FileSystem* file_system, File* file) {
  const Result<FileInfo> named = file_system->Stat(file->path());
  if (named.status().code() == StatusCode::kNotFound) return false;
  STEPWELL_RETURN_IF_ERROR(named.status());
  STEPWELL_ASSIGN_OR_RETURN(const FileInfo opened, file->Info());
  return IsSameFile(opened, *named);
}

Result<std::shared_ptr<const void>> FileSystem::HoldRoot() { return std::shared_ptr<const void>(); }

Status FileSystem::Exchange(const std::string& one, const std::string&) {
  return UnimplementedError(StrCat(one, ": names cannot be exchanged here"));
}

std::unique_ptr<WholeSync> FileSystem::TakeWholeSync(const std::string&) { return nullptr; }

Status File::CloneFrom(File&, uint64_t, uint64_t, uint64_t) {
  return UnimplementedError(StrCat("clone into ", path(), ": the file system cannot"));
}

Status File::CopyFrom(File& source, uint64_t source_offset, uint64_t length, uint64_t offset) {
  AlignedBuffer buffer(std::min<uint64_t>(length, kCopyBlockBytes));
  if (length > 0 && !buffer) return ResourceExhaustedError("no memory to copy a file");
  for (uint64_t done = 0; done < length;) {
    const size_t part = std::min<uint64_t>(length - done, kCopyBlockBytes);
    STEPWELL_ASSIGN_OR_RETURN(
        const size_t read, source.ReadAt(source_offset + done, MutableBytes(buffer.data(), part)));
    if (read < part) {
      return DataLossError(
          StrCat(source.path(), ": ends before offset ", source_offset + done + part));
    }
    STEPWELL_RETURN_IF_ERROR(WriteAt(offset + done, ConstBytes(buffer.data(), part)));
    done += part;
  }
  return OkStatus();
}

}  // namespace stepwell::io
