// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or the Status that says why there is none.
#pragma once

#include <optional>
#include <utility>

#include <stepwell/status.h>

namespace stepwell {

namespace internal {
// For value() on an error: prints the error and aborts.
[[noreturn]] STEPWELL_API void NoValue(const Status& status);
// OK in place of a value is a bug, too.
STEPWELL_API Status NotOk(Status status);
}  // namespace internal

// Look at ok() first: value(), * and -> abort the process when there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status)                          // NOLINT(google-explicit-constructor)
      : status_(internal::NotOk(std::move(status))) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    RequireValue();
    return *value_;
  }
  const T& value() const& {
    RequireValue();
    return *value_;
  }
  // By value, so that `for (x : *F())` and `auto&& x = F().value()` stay valid.
  T value() && {
    RequireValue();
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  T operator*() && { return std::move(*this).value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void RequireValue() const {
    if (!ok()) [[unlikely]]
      internal::NoValue(status_);
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace stepwell

// STEPWELL_ASSIGN_OR_RETURN(auto x, F()); returns the error, else declares or assigns x.
#define STEPWELL_ASSIGN_OR_RETURN(lhs, expr) \
  STEPWELL_ASSIGN_OR_RETURN_IMPL_(STEPWELL_CONCAT_(stepwell_result_, __LINE__), lhs, expr)
#define STEPWELL_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return tmp.status();                   \
  lhs = std::move(tmp).value()
