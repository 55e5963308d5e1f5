// SPDX-License-Identifier: Apache-2.0
// The options of a save, and the handle of one under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <stepwell/export.h>
#include <stepwell/status.h>

namespace stepwell {

enum class CodecPolicy {
  kAuto,  // per array, from a sample: bitshuffle + LZ4 where it at least halves the bytes, else raw
  kRaw,
  kBlosc,
};

enum class IfExists { kError, kReplace, kSkip };

// A save under way. Copies share; dropping it is harmless. Thread-safe; outlives the store. One
// made without a save is done, with kFailedPrecondition.
class STEPWELL_API SaveHandle {
 public:
  struct State;
  SaveHandle() = default;
  explicit SaveHandle(std::shared_ptr<State> state) : state_(std::move(state)) {}

  uint64_t step() const;
  bool done() const;
  // Returns true if the save finished within `timeout` (negative: wait without limit).
  bool WaitFor(std::chrono::milliseconds timeout) const;
  // Waits; OK means durable and visible.
  Status Wait() const;
  // The outcome of a finished save (kFailedPrecondition before).
  Status status() const;
  // True for if_exists=kSkip of a step that was there.
  bool skipped() const;
  // Runs `callback` once when done (at once if it is), on the store's callback thread, which may
  // call the store.
  void OnComplete(std::function<void(const Status&)> callback) const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace stepwell
