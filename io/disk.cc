// SPDX-License-Identifier: Apache-2.0
#include "io/disk.h"

namespace stepwell::io {

void Freeze::Trip(const Status& error) {
  STEPWELL_CHECK(!error.ok(), "only an error freezes");
  std::lock_guard lock(mutex_);
  if (!error_.ok()) return;
  error_ = error;
  frozen_.store(true, std::memory_order_release);
}

Status Freeze::Check() const {
  if (!frozen()) return OkStatus();
  const Status first = first_error();
  return {StatusCode::kAborted, StrCat("not done after an earlier failure: ", first.message()),
          first.os_error()};
}

Status Freeze::first_error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace stepwell::io
