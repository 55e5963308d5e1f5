// SPDX-License-Identifier: Apache-2.0
// The options of a save, and the handle of one under way.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

// Says what becomes of a save whose arrays have elements that are NaN or infinite.
enum class OnNonfinite {
  kIgnore,
  kWarn,   // a log line that names step, leaves and counts
  kError,  // kInvalidArgument, and nothing of the step is committed
};

// The sizes and times of a save. In a group of processes: of this process's part.
struct SaveStats {
  uint64_t logical_bytes = 0;     // the state's, as in memory
  uint64_t stored_bytes = 0;      // of the step's chunks, encoded
  uint64_t referenced_bytes = 0;  // of these: chunks that did not change, which earlier steps wrote
  uint64_t chunks = 0;
  std::chrono::nanoseconds snapshot_time{0};  // Save held the caller
  std::chrono::nanoseconds durable_time{0};   // from the call of Save until the step was durable

  // The bytes of chunks that this save wrote.
  uint64_t owned_bytes() const { return stored_bytes - referenced_bytes; }
};

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
  // Nothing before it is done, where it failed, and where it was skipped.
  std::optional<SaveStats> stats() const;
  // Runs `callback` once when done (at once if it is), on the store's callback thread, which may
  // call the store.
  void OnComplete(std::function<void(const Status&)> callback) const;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace stepwell
