// SPDX-License-Identifier: Apache-2.0
// Measures the store: counters, latencies, the trace, one log line a save. Thread-safe. The store,
// the engine and the index keeper share it, and it outlives all of them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "db/store.h"
#include "io/clock.h"
#include "io/disk.h"
#include "io/log.h"
#include "io/mutex.h"

namespace stepwell::db {

// Latencies in logarithmic steps of at most 1/16. Thread-safe; recording is a few relaxed atomic
// additions.
class Histogram {
 public:
  void Record(int64_t nanos);
  // Summarizes the recorded values. A percentile is the upper end of its step, at most the maximum.
  LatencyStats Summary() const;

 private:
  // Below 16 microseconds each has its own step, above 16 steps to each power of two, to 2^40.
  static constexpr int kStepBits = 4;
  static constexpr int kBitsMax = 40;
  static constexpr size_t kSteps = (kBitsMax - kStepBits + 1) << kStepBits;
  static size_t StepOf(uint64_t us);
  static uint64_t UpperEnd(size_t step);

  std::array<std::atomic<uint64_t>, kSteps> counts_{};
  std::atomic<uint64_t> total_us_{0};
  std::atomic<uint64_t> max_us_{0};
};

// 64 bytes each: 16 MiB, some thousands of saves.
constexpr size_t kTraceSpansMax = size_t{1} << 18;

// Records the times of the save pipeline in a file for chrome://tracing or ui.perfetto.dev (JSON
// Trace Event Format). Thread-safe. Bounded: the newest kTraceSpansMax spans are kept.
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
  uint32_t ThreadRow(Lane lane) STEPWELL_REQUIRES(mutex_);

  const std::unique_ptr<io::File> file_;
  io::Clock* const clock_;
  const std::string process_name_;
  const int64_t start_ns_;
  const size_t spans_max_;
  mutable io::Mutex mutex_;
  std::vector<Span> spans_ STEPWELL_GUARDED_BY(mutex_);  // a ring once it is full
  uint64_t added_ STEPWELL_GUARDED_BY(mutex_) = 0;
  std::map<std::thread::id, std::pair<Lane, uint32_t>> threads_ STEPWELL_GUARDED_BY(mutex_);
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

// Moments of one save, in nanoseconds of the monotonic clock; 0: not reached.
struct SaveTimes {
  int64_t start_ns = 0;         // Save was called; caller's thread, as the next
  int64_t snapshot_end_ns = 0;  // the caller may change its state again
  int64_t first_write_ns = 0;   // engine thread, as the next three
  int64_t last_write_ns = 0;
  uint64_t bytes_written = 0;
  std::atomic<int64_t> encode_ns{0};  // of all workers together
};

// The batch of commits under way; engine thread.
struct BatchTimes {
  int64_t start_ns = 0;   // frames were encoded and submitted
  int64_t frames_ns = 0;  // were written
};

class Instruments {
 public:
  Instruments(io::Clock* clock, std::string store_path, LogSink log)
      : clock_(clock), store_path_(std::move(store_path)), log_(std::move(log)) {}

  int64_t Now() const { return clock_->MonotonicNanos(); }

  // Off (null) unless it is set before the threads start.
  std::unique_ptr<Trace> trace;

  // A save became durable and visible; `row` is its place in the batch, `retired` the steps that
  // it took away. Engine thread.
  void Committed(const SaveTimes& times, const BatchTimes& batch, size_t row, uint64_t step,
                 uint64_t logical_bytes, std::span<const uint64_t> retired);
  // Any thread.
  void Failed(uint64_t step, const Status& why);
  // A write or sync of the device ended.
  void DiskSpan(const char* name, int64_t start_ns, uint64_t step, uint64_t bytes) {
    if (trace == nullptr) return;
    trace->Add({.name = name,
                .lane = Trace::Lane::kDisk,
                .row = 0,
                .start_ns = start_ns,
                .end_ns = Now(),
                .step = step,
                .bytes = bytes});
  }
  void Wrote(SaveTimes* times, int64_t start_ns, uint64_t step, uint64_t bytes) {
    times->last_write_ns = Now();
    times->bytes_written += bytes;
    DiskSpan("write", start_ns, step, bytes);
  }
  void Fill(StoreStats* stats) const;

  Histogram index;                         // the keeper's thread records it
  std::atomic<uint64_t> bytes_written{0};  // to segments
  std::atomic<uint64_t> syncs{0};
  std::atomic<uint64_t> bytes_moved{0};
  std::atomic<uint64_t> bytes_punched{0};
  std::atomic<uint64_t> segments_removed{0};
  std::atomic<uint64_t> segments_recycled{0};
  // The last pass of reclaim found these bytes dead, but a reader may need them, or they have
  // another link.
  std::atomic<uint64_t> bytes_pinned{0};
  std::atomic<uint64_t> bytes_linked{0};

 private:
  io::Clock* const clock_;
  const std::string store_path_;
  const LogSink log_;
  Histogram snapshot_, encode_, write_, commit_, durable_;
  std::atomic<uint64_t> saves_{0};
  std::atomic<uint64_t> saves_failed_{0};
  std::atomic<uint64_t> bytes_saved_{0};
};

// A worker's encoding of one block.
class EncodeTimer {
 public:
  EncodeTimer(Instruments* instruments, SaveTimes* times, uint64_t step, uint64_t bytes)
      : instruments_(instruments),
        times_(times),
        start_ns_(instruments->Now()),
        span_(instruments->trace.get(), Trace::Lane::kWorker, "encode", step, bytes) {}
  ~EncodeTimer() { times_->encode_ns += instruments_->Now() - start_ns_; }
  EncodeTimer(const EncodeTimer&) = delete;
  EncodeTimer& operator=(const EncodeTimer&) = delete;

 private:
  Instruments* const instruments_;
  SaveTimes* const times_;
  const int64_t start_ns_;
  const TraceSpan span_;
};

}  // namespace stepwell::db
