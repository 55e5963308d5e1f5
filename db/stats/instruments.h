// SPDX-License-Identifier: Apache-2.0
// What the store measures of itself: counters, latencies, the trace, one log line a save.
// Thread-safe; shared by the store, the engine and the index keeper, outlived by none of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "db/stats/histogram.h"
#include "db/stats/trace.h"
#include "io/clock.h"
#include "io/log.h"

namespace stepwell::db {

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

  Histogram index;  // the keeper's thread records it
  std::atomic<uint64_t> bytes_moved{0};
  std::atomic<uint64_t> bytes_punched{0};
  std::atomic<uint64_t> segments_removed{0};
  std::atomic<uint64_t> segments_recycled{0};

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
