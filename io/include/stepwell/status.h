// SPDX-License-Identifier: Apache-2.0
// Status: the one error type of Stepwell's C++ code. Errors are values: nothing here throws, but
// for std::bad_alloc. (Exceptions of Cap'n Proto and of Python are caught at their borders.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <stepwell/export.h>

namespace stepwell {

// Numbered as in absl and gRPC, but for the last two, which are Stepwell's own. What each one means
// here. An error of a change says that it was not done, with one exception: kOutcomeUnknown.
enum class StatusCode : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,     // the caller's mistake
  kDeadlineExceeded = 4,    // a wait with a timeout ran out; the work goes on
  kNotFound = 5,            // no such step, path or file
  kAlreadyExists = 6,       // the step or file is there already
  kPermissionDenied = 7,    // EACCES, EPERM, EROFS
  kResourceExhausted = 8,   // ENOSPC, EDQUOT, EFBIG: no room; nothing was lost
  kFailedPrecondition = 9,  // closed, frozen, or used after fork
  kAborted = 10,            // given up because of an earlier error (named in the message)
  kOutOfRange = 11,
  kUnimplemented = 12,   // not a store, or a format this version cannot read
  kInternal = 13,        // a bug in Stepwell
  kUnavailable = 14,     // another process holds the store's lock
  kDataLoss = 15,        // bytes that were read are wrong, or missing; with file and offset
  kOutcomeUnknown = 32,  // a change that may or may not be durable; the next open decides
  kIoError = 33,         // a disk or the operating system failed (EIO, EMFILE, ENOMEM, ...), which
                         // says nothing about what is stored
};

// The code's name in plain words, e.g. "data loss".
STEPWELL_API std::string_view StatusCodeName(StatusCode code);

// OK is a null pointer; an error owns its code, message and (if any) errno. Copying shares.
class [[nodiscard]] STEPWELL_API Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, int os_error = 0)
      : rep_(code == StatusCode::kOk
                 ? nullptr
                 : std::make_shared<const Rep>(Rep{code, os_error, std::move(message)})) {}

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  // errno of the failed system call, or 0.
  int os_error() const { return rep_ ? rep_->os_error : 0; }
  const std::string& message() const;
  std::string ToString() const;

  // The same error with `context + ": "` before its message; OK stays OK.
  Status WithContext(std::string_view context) const;
  // Drops an error on purpose; `why` is for the reader of the code.
  void IgnoreError(std::string_view why) const { (void)why; }

 private:
  struct Rep {
    StatusCode code;
    int os_error;
    std::string message;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status OkStatus() { return {}; }
STEPWELL_API Status CancelledError(std::string message);
STEPWELL_API Status InvalidArgumentError(std::string message);
STEPWELL_API Status DeadlineExceededError(std::string message);
STEPWELL_API Status NotFoundError(std::string message);
STEPWELL_API Status AlreadyExistsError(std::string message);
STEPWELL_API Status ResourceExhaustedError(std::string message);
STEPWELL_API Status FailedPreconditionError(std::string message);
STEPWELL_API Status AbortedError(std::string message);
STEPWELL_API Status UnimplementedError(std::string message);
STEPWELL_API Status InternalError(std::string message);
STEPWELL_API Status UnavailableError(std::string message);
STEPWELL_API Status DataLossError(std::string message);
STEPWELL_API Status OutcomeUnknownError(std::string message, int os_error = 0);
STEPWELL_API Status IoError(std::string message);

// The status for a failed system call: "<context>: <strerror>". ENOSPC, EDQUOT and EFBIG are
// kResourceExhausted, EIO and all that have no code of their own kIoError; see the table in
// status.cc.
STEPWELL_API Status ErrnoStatus(int os_error, std::string_view context);

}  // namespace stepwell

#define STEPWELL_CONCAT_INNER_(a, b) a##b
#define STEPWELL_CONCAT_(a, b) STEPWELL_CONCAT_INNER_(a, b)

#define STEPWELL_RETURN_IF_ERROR(expr)                                          \
  do {                                                                          \
    if (::stepwell::Status stepwell_status_ = (expr); !stepwell_status_.ok()) { \
      return stepwell_status_;                                                  \
    }                                                                           \
  } while (false)
