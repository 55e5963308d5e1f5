// SPDX-License-Identifier: Apache-2.0
// Which store a thread is saving into. Store::Save asks SaveRequest::keep_waiting while a step is
// partly copied. That callback must not wait for the store's changes or close the store: the step
// comes before them, and goes on when the callback returns.
#pragma once

#include <utility>

namespace stepwell::db {

class Store;

// The store whose step this thread copies at the moment; null: none.
inline thread_local const Store* store_copied_into = nullptr;

class CopiedInto {
 public:
  explicit CopiedInto(const Store* store) : before_(std::exchange(store_copied_into, store)) {}
  ~CopiedInto() { store_copied_into = before_; }
  CopiedInto(const CopiedInto&) = delete;
  CopiedInto& operator=(const CopiedInto&) = delete;

 private:
  const Store* const before_;
};

}  // namespace stepwell::db
