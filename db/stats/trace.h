// SPDX-License-Identifier: Apache-2.0
// What the save pipeline did when, as a file for chrome://tracing or ui.perfetto.dev (JSON Trace
// Event Format). Thread-safe. Bounded: the newest kTraceSpansMax spans are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "io/clock.h"
#include "io/disk.h"

namespace stepwell::db {

// 64 bytes each: 16 MiB, some thousands of saves.
constexpr size_t kTraceSpansMax = size_t{1} << 18;

class Trace {
 public:
  // The first five are threads. A thread's spans nest. What the device and commit batches do
  // belongs to no thread: such spans overlap and are spread over as many rows as they need.
  enum class Lane : uint8_t { kCaller, kEngine, kWorker, kIndex, kReclaim, kDisk, kCommit };
  struct Span {
    const char* name = "";  // a literal; needs no escapes in JSON
    Lane lane = Lane::kCaller;
    uint32_t row = 0;  // threads: set by Add; kCommit: the row that the caller chose
    int64_t start_ns = 0;
    int64_t end_ns = 0;
    uint64_t step = kNoStep;
    uint64_t bytes = 0;
  };
  static constexpr uint64_t kNoStep = UINT64_MAX;

  // `file` gets the trace at Write; `process_name` heads the display.
  Trace(std::unique_ptr<io::File> file, io::Clock* clock, std::string process_name,
        size_t spans_max = kTraceSpansMax);

  int64_t Now() const { return clock_->MonotonicNanos(); }
  void Add(Span span);
  // Replaces the file's contents by what was recorded.
  Status Write();
  uint64_t dropped() const;

 private:
  uint32_t ThreadRow(Lane lane);

  const std::unique_ptr<io::File> file_;
  void AddOrThrow(Span span);

  io::Clock* const clock_;
  const std::string process_name_;
  const int64_t start_ns_;
  const size_t spans_max_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;  // guarded by mutex_, as all below; a ring once it is full
  uint64_t added_ = 0;
  std::map<std::thread::id, std::pair<Lane, uint32_t>> threads_;
};

// Records what its scope takes, on the calling thread. Without a trace this is one branch.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Trace::Lane lane, const char* name, uint64_t step = Trace::kNoStep,
            uint64_t bytes = 0)
      : trace_(trace) {
    if (trace_ == nullptr) return;
    span_ = {.name = name,
             .lane = lane,
             .row = 0,
             .start_ns = trace->Now(),
             .end_ns = 0,
             .step = step,
             .bytes = bytes};
  }
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    span_.end_ns = trace_->Now();
    trace_->Add(span_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
  Trace::Span span_;
};

}  // namespace stepwell::db
