// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or the Status that says why there is none.
#pragma once

#include <optional>
#include <utility>

#include "io/check.h"
#include "io/status.h"

namespace stepwell {

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    STEPWELL_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    STEPWELL_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    STEPWELL_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    STEPWELL_CHECK(ok(), status_.message());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
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
