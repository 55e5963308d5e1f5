// SPDX-License-Identifier: Apache-2.0
#include "api/python/errors.h"

#include <string>

namespace stepwell::python {
namespace {

namespace nb = nanobind;

const char* ClassName(const Status& status, bool opening) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return "InvalidArgumentError";
    case StatusCode::kNotFound:
      return opening ? "StoreNotFoundError" : "StepNotFoundError";
    case StatusCode::kAlreadyExists:
      return "StepExistsError";
    case StatusCode::kPermissionDenied:
      return "PermissionDeniedError";
    case StatusCode::kResourceExhausted:
      return "NoSpaceError";
    case StatusCode::kDataLoss:
      return "CorruptionError";
    case StatusCode::kOutcomeUnknown:
      return "OutcomeUnknownError";
    case StatusCode::kIoError:
      return "StorageError";
    case StatusCode::kUnavailable:
      return "LockedError";
    case StatusCode::kUnimplemented:  // with an errno: what the file system or the kernel lacks
      return status.os_error() != 0 ? "StorageError" : "FormatError";
    case StatusCode::kFailedPrecondition:
      if (status.message().find(" is pinned; unpin it to ") != std::string::npos) {
        return "StepPinnedError";
      }
      return status.message().find("fork") != std::string::npos ? "ForkError" : "Error";
    default:
      return status.os_error() != 0 ? "StorageError" : "Error";
  }
}

nb::object ExceptionOf(const char* class_name, const Status& status) {
  const std::string& text = status.message();
  nb::object message = nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (!message.is_valid()) nb::raise_python_error();
  nb::object exception = nb::module_::import_("stepwell.errors").attr(class_name)(message);
  // Only OSError has errno; its text stays the message alone, as strerror is not set.
  if (status.os_error() != 0 && PyObject_IsInstance(exception.ptr(), PyExc_OSError) == 1) {
    exception.attr("errno") = status.os_error();
  }
  return exception;
}

void Raise(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  nb::raise_python_error();
}

}  // namespace

nb::object MakeException(const Status& status, bool opening) {
  if (status.ok()) return nb::none();
  if (opening && status.code() == StatusCode::kUnavailable) {
    return ExceptionOf("LockedError",
                       UnavailableError(status.message() +
                                        "; open it with mode=\"r\" to read beside the writer; "
                                        "`stepwell rm`, `stepwell pin` and `stepwell reclaim` send "
                                        "their request to that process"));
  }
  if (opening && status.message().find("its owner's alone unless") != std::string::npos) {
    return ExceptionOf("PermissionDeniedError",
                       Status(status.code(),
                              StrCat(status.message(),
                                     "; stepwell.open(..., private=False) makes stores that the "
                                     "umask opens up"),
                              status.os_error()));
  }
  return ExceptionOf(ClassName(status, opening), status);
}

Status StatusOf(const nb::python_error& error) {
  if (error.matches(PyExc_KeyboardInterrupt)) {
    PyErr_SetInterrupt();  // for the caller's own thread, as soon as it is back in Python
    return CancelledError("interrupted");
  }
  const nb::object classes = nb::module_::import_("stepwell.errors");
  const auto is = [&](const nb::handle& type) { return error.matches(type); };
  StatusCode code = StatusCode::kIoError;
  if (is(PyExc_FileNotFoundError) || is(classes.attr("StepNotFoundError"))) {
    code = StatusCode::kNotFound;
  } else if (is(classes.attr("CorruptionError"))) {
    code = StatusCode::kDataLoss;
  } else if (is(classes.attr("FormatError"))) {
    code = StatusCode::kUnimplemented;
  } else if (is(PyExc_PermissionError)) {
    code = StatusCode::kPermissionDenied;
  } else if (is(PyExc_MemoryError)) {
    code = StatusCode::kResourceExhausted;
  }
  return {code, std::string(nb::str(error.value()).c_str())};
}

void ThrowIfError(const Status& status, bool opening) {
  if (!status.ok()) Raise(MakeException(status, opening));
}

void ThrowIfPathError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kNotFound:
      return Raise(ExceptionOf("PathNotFoundError", status));
    case StatusCode::kInvalidArgument:
      return Raise(ExceptionOf("AmbiguousPathError", status));
    default:
      ThrowIfError(status);
  }
}

}  // namespace stepwell::python
