// SPDX-License-Identifier: Apache-2.0
// The state that the public classes share: the engine's store, and whether it is still open.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include <stepwell/store.h>

#include "db/store.h"
#include "format/records.h"

namespace stepwell {

// Lives until the Store and every Step of it are gone: a step's reader uses the engine's.
struct [[gnu::visibility("hidden")]] Store::Core {
  explicit Core(std::unique_ptr<db::Store> opened) : store(std::move(opened)) {}
  ~Core() {
    // In a forked child the threads, the lock and the ring are the parent's: leave them alone.
    if (pid != getpid()) (void)store.release();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // OK while the store may be used.
  Status Check() const {
    if (pid != getpid()) {
      return FailedPreconditionError(
          store->path() + ": opened by the parent process, before fork; open it again here");
    }
    if (closed.load()) return FailedPreconditionError(store->path() + ": the store is closed");
    return OkStatus();
  }

  // The engine's request for a public one, containers made up from the paths (save.cc).
  static Result<db::SaveRequest> ToEngine(SaveRequest request);

  std::unique_ptr<db::Store> store;
  const pid_t pid = getpid();
  std::atomic<bool> closed{false};
};

// Bytes of a value (records.h: ValueType says which) and back (value.cc).
struct EncodedValue {
  format::ValueType type;
  std::string bytes;
};
Result<EncodedValue> EncodeValue(Value value);
Result<Value> DecodeValue(format::ValueType type, std::string bytes);

}  // namespace stepwell
