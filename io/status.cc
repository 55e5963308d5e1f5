// SPDX-License-Identifier: Apache-2.0
#include "io/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell {
namespace {

const std::string kNoMessage;
// Made ahead, when there is memory.
const Status kErrorWithoutMessage =
    IoError("an operation failed, and there was no memory to say why");

// Maps an errno to its meaning for the engine. kResourceExhausted is only for "no room on the
// disk": it is the one failure of a write that does not freeze, so nothing else may have this code.
// kDataLoss is only for damage that file systems report of themselves (EUCLEAN, EBADMSG): a device
// that fails a call (EIO) may give the bytes at the next one.
StatusCode CodeOfErrno(int os_error) {
  using enum StatusCode;
  constexpr std::pair<int, StatusCode> kErrnos[] = {
      {ENOENT, kNotFound},
      {ENOTDIR, kNotFound},
      {EEXIST, kAlreadyExists},
      {EACCES, kPermissionDenied},
      {EPERM, kPermissionDenied},
      {EROFS, kPermissionDenied},
      {ENOSPC, kResourceExhausted},
      {EDQUOT, kResourceExhausted},
      {EFBIG, kResourceExhausted},
      {EUCLEAN, kDataLoss},
      {EBADMSG, kDataLoss},
      {EINVAL, kInvalidArgument},
      {EISDIR, kInvalidArgument},
      {ELOOP, kInvalidArgument},
      {ENAMETOOLONG, kInvalidArgument},
      {ENOTEMPTY, kFailedPrecondition},
      {EXDEV, kFailedPrecondition},
      {EBUSY, kFailedPrecondition},
      {ETXTBSY, kFailedPrecondition},
      {ENOSYS, kUnimplemented},
      {EOPNOTSUPP, kUnimplemented},
      {ECANCELED, kCancelled},
      {EAGAIN, kUnavailable},
  };
  for (const auto& [known, code] : kErrnos) {
    if (known == os_error) return code;
  }
  return kIoError;
}

}  // namespace

std::string_view StatusCodeName(StatusCode code) {
  using enum StatusCode;
  constexpr std::pair<StatusCode, std::string_view> kNames[] = {
      {kOk, "OK"},
      {kCancelled, "cancelled"},
      {kUnknown, "unknown error"},
      {kInvalidArgument, "invalid argument"},
      {kDeadlineExceeded, "deadline exceeded"},
      {kNotFound, "not found"},
      {kAlreadyExists, "already exists"},
      {kPermissionDenied, "permission denied"},
      {kResourceExhausted, "out of space"},
      {kFailedPrecondition, "failed precondition"},
      {kAborted, "aborted"},
      {kOutOfRange, "out of range"},
      {kUnimplemented, "unimplemented"},
      {kInternal, "internal error"},
      {kUnavailable, "unavailable"},
      {kDataLoss, "data loss"},
      {kOutcomeUnknown, "outcome unknown"},
      {kIoError, "I/O error"},
  };
  for (const auto& [known, name] : kNames) {
    if (known == code) return name;
  }
  return "unknown code";
}

const std::string& Status::message() const { return rep_ ? rep_->message : kNoMessage; }

std::string Status::ToString() const {
  if (ok()) return "OK";
  return StrCat(StatusCodeName(code()), ": ", message());
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return {code(), StrCat(context, ": ", message()), os_error()};
}

// The constructors that take a message alone.
#define STEPWELL_ERROR_(Name) \
  Status Name##Error(std::string message) { return {StatusCode::k##Name, std::move(message)}; }
STEPWELL_ERROR_(Cancelled)
STEPWELL_ERROR_(InvalidArgument)
STEPWELL_ERROR_(DeadlineExceeded)
STEPWELL_ERROR_(NotFound)
STEPWELL_ERROR_(AlreadyExists)
STEPWELL_ERROR_(ResourceExhausted)
STEPWELL_ERROR_(FailedPrecondition)
STEPWELL_ERROR_(Aborted)
STEPWELL_ERROR_(Unimplemented)
STEPWELL_ERROR_(Internal)
STEPWELL_ERROR_(Unavailable)
STEPWELL_ERROR_(DataLoss)
#undef STEPWELL_ERROR_
Status IoError(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
Status OutcomeUnknownError(std::string message, int os_error) {
  return {StatusCode::kOutcomeUnknown, std::move(message), os_error};
}

Status ErrnoStatus(int os_error, std::string_view context) {
  try {
    return {CodeOfErrno(os_error), StrCat(context, ": ", std::generic_category().message(os_error)),
            os_error};
  } catch (const std::bad_alloc&) {  // threads of ours come here, too
    return kErrorWithoutMessage;
  }
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: stepwell check failed: %s: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

void NoValue(const Status& status) {
  CheckFailed(__FILE__, __LINE__, "result.ok()", status.ToString());
}

Status NotOk(Status status) {
  return status.ok() ? InternalError("a Result was made of OK and no value") : status;
}

}  // namespace internal
}  // namespace stepwell
