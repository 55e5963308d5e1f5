// SPDX-License-Identifier: Apache-2.0
#include "io/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>

#include "io/bytes.h"
#include "io/check.h"
#include "io/result.h"

namespace stepwell {
namespace {

const std::string kNoMessage;
// Made ahead, when there is memory.
const Status kErrorWithoutWords =
    IoError("an operation failed, and there was no memory to say why");

// What an errno means to the engine. kResourceExhausted is only for "no room on the disk": it is
// the one failure of a write that does not freeze, so nothing else may be called that. kDataLoss is
// only for what file systems say of their own damage (EUCLEAN, EBADMSG): a device that fails a call
// (EIO) may give the bytes at the next one.
StatusCode CodeOfErrno(int os_error) {
  switch (os_error) {
    case ENOENT:
    case ENOTDIR:
      return StatusCode::kNotFound;
    case EEXIST:
      return StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return StatusCode::kResourceExhausted;
    case EUCLEAN:
    case EBADMSG:
      return StatusCode::kDataLoss;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return StatusCode::kInvalidArgument;
    case ENOTEMPTY:
    case EXDEV:
    case EBUSY:
    case ETXTBSY:
      return StatusCode::kFailedPrecondition;
    case ENOSYS:
    case EOPNOTSUPP:
      return StatusCode::kUnimplemented;
    case ECANCELED:
      return StatusCode::kCancelled;
    case EAGAIN:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kIoError;
  }
}

}  // namespace

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kUnknown:
      return "unknown error";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kAlreadyExists:
      return "already exists";
    case StatusCode::kPermissionDenied:
      return "permission denied";
    case StatusCode::kResourceExhausted:
      return "out of space";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kAborted:
      return "aborted";
    case StatusCode::kOutOfRange:
      return "out of range";
    case StatusCode::kUnimplemented:
      return "unimplemented";
    case StatusCode::kInternal:
      return "internal error";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kOutcomeUnknown:
      return "outcome unknown";
    case StatusCode::kIoError:
      return "I/O error";
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

Status CancelledError(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }
Status InvalidArgumentError(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
Status DeadlineExceededError(std::string message) {
  return {StatusCode::kDeadlineExceeded, std::move(message)};
}
Status NotFoundError(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
Status AlreadyExistsError(std::string message) {
  return {StatusCode::kAlreadyExists, std::move(message)};
}
Status ResourceExhaustedError(std::string message) {
  return {StatusCode::kResourceExhausted, std::move(message)};
}
Status FailedPreconditionError(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
Status AbortedError(std::string message) { return {StatusCode::kAborted, std::move(message)}; }
Status UnimplementedError(std::string message) {
  return {StatusCode::kUnimplemented, std::move(message)};
}
Status InternalError(std::string message) { return {StatusCode::kInternal, std::move(message)}; }
Status UnavailableError(std::string message) {
  return {StatusCode::kUnavailable, std::move(message)};
}
Status DataLossError(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
Status OutcomeUnknownError(std::string message, int os_error) {
  return {StatusCode::kOutcomeUnknown, std::move(message), os_error};
}
Status IoError(std::string message) { return {StatusCode::kIoError, std::move(message)}; }

Status ErrnoStatus(int os_error, std::string_view context) {
  try {
    return {CodeOfErrno(os_error), StrCat(context, ": ", std::generic_category().message(os_error)),
            os_error};
  } catch (const std::bad_alloc&) {  // threads of ours come here, too
    return kErrorWithoutWords;
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
