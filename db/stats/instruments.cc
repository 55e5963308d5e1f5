// SPDX-License-Identifier: Apache-2.0
#include "db/stats/instruments.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>

#include "io/guard.h"

namespace stepwell::db {
namespace {

constexpr size_t kRetiredNamedMax = 8;

// "800.2 MB", powers of 1000.
std::string Bytes(double bytes) {
  constexpr std::array kUnits{"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text.data();
}

std::string Seconds(int64_t nanos) {
  std::array<char, 48> text;
  const double seconds = static_cast<double>(nanos) / 1e9;
  if (seconds < 1) {
    std::snprintf(text.data(), text.size(), "%.1f ms", seconds * 1e3);
  } else {
    std::snprintf(text.data(), text.size(), "%.2f s", seconds);
  }
  return text.data();
}

std::string RetiredText(std::span<const uint64_t> steps) {
  if (steps.empty()) return "";
  std::string text = steps.size() == 1 ? ", retired step " : ", retired steps ";
  const size_t named = std::min(steps.size(), kRetiredNamedMax);
  for (size_t i = 0; i < named; ++i) text += StrCat(i == 0 ? "" : ", ", steps[i]);
  if (named < steps.size()) text += StrCat(" and ", steps.size() - named, " more");
  return text;
}

using Lane = Trace::Lane;
using Span = Trace::Span;

constexpr size_t kWriteBytes = size_t{1} << 20;
constexpr std::array kLaneNames{"caller", "engine", "worker", "index", "reclaim", "disk", "commit"};
// Rows of one lane follow each other in the display.
constexpr uint32_t kRowsPerLane = 1000;

uint32_t RowId(Lane lane, uint32_t row) {
  return static_cast<uint32_t>(lane) * kRowsPerLane + std::min(row, kRowsPerLane - 1) + 1;
}

// Outer spans before those inside them.
bool Before(const Span& a, const Span& b) {
  return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
}

// Spans of the device overlap: each goes to the first row that is free when it begins.
void SpreadDisk(std::vector<Span>* sorted) {
  std::vector<int64_t> free_from;
  for (Span& span : *sorted) {
    if (span.lane != Lane::kDisk) continue;
    size_t row = 0;
    while (row < free_from.size() && free_from[row] > span.start_ns) ++row;
    if (row == free_from.size()) free_from.push_back(0);
    free_from[row] = span.end_ns;
    span.row = static_cast<uint32_t>(row);
  }
}

// Appends to a file in pieces.
class Output {
 public:
  explicit Output(io::File* file) : file_(file) {}
  Status Add(std::string_view text) {
    pending_ += text;
    return pending_.size() < kWriteBytes ? OkStatus() : Flush();
  }
  Status Flush() {
    STEPWELL_RETURN_IF_ERROR(file_->WriteAt(offset_, AsBytes(pending_)));
    offset_ += pending_.size();
    pending_.clear();
    return OkStatus();
  }

 private:
  io::File* const file_;
  std::string pending_;
  uint64_t offset_ = 0;
};

std::string Text(const nlohmann::json& event) {
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Metadata(const char* what, uint32_t row, const char* key, const nlohmann::json& value) {
  return Text({{"ph", "M"}, {"pid", 1}, {"tid", row}, {"name", what}, {"args", {{key, value}}}});
}

std::string Event(const Span& span, int64_t start_ns) {
  // Chrome's times are microseconds.
  const auto us = [](int64_t ns) { return static_cast<double>(std::max<int64_t>(ns, 0)) / 1000; };
  nlohmann::json args{{"bytes", span.bytes}};
  if (span.step != Trace::kNoStep) args["step"] = span.step;
  return Text({{"ph", "X"},
               {"pid", 1},
               {"tid", RowId(span.lane, span.row)},
               {"name", span.name},
               {"cat", kLaneNames[static_cast<size_t>(span.lane)]},
               {"ts", us(span.start_ns - start_ns)},
               {"dur", us(span.end_ns - span.start_ns)},
               {"args", std::move(args)}});
}

}  // namespace

void Instruments::Committed(const SaveTimes& times, const BatchTimes& batch, size_t row,
                            uint64_t step, uint64_t logical_bytes,
                            std::span<const uint64_t> retired) {
  const int64_t now = Now();
  ++saves_;
  bytes_saved_ += logical_bytes;
  snapshot_.Record(times.snapshot_end_ns - times.start_ns);
  encode_.Record(times.encode_ns.load());
  write_.Record(times.last_write_ns - times.first_write_ns);
  commit_.Record(now - batch.start_ns);
  durable_.Record(now - times.start_ns);
  if (trace != nullptr) {
    const auto add = [&](const char* name, int64_t start, int64_t end) {
      trace->Add({.name = name,
                  .lane = Trace::Lane::kCommit,
                  .row = static_cast<uint32_t>(row),
                  .start_ns = start,
                  .end_ns = end,
                  .step = step,
                  .bytes = logical_bytes});
    };
    add("commit", batch.start_ns, now);
    add("frames", batch.start_ns, batch.frames_ns);
    add("sync", batch.frames_ns, now);
  }
  if (!log_) return;
  const double seconds = std::max(static_cast<double>(now - times.start_ns) / 1e9, 1e-9);
  Log(log_, LogLevel::kInfo,
      StrCat(store_path_, ": saved step ", step, ": ", Bytes(static_cast<double>(logical_bytes)),
             " in ", Seconds(now - times.start_ns), ", ",
             Bytes(static_cast<double>(logical_bytes) / seconds), "/s, the caller waited ",
             Seconds(times.snapshot_end_ns - times.start_ns), ", ",
             Bytes(static_cast<double>(times.bytes_written)), " written", RetiredText(retired)));
}

void Instruments::Failed(uint64_t step, const Status& why) {
  ++saves_failed_;
  Log(log_, LogLevel::kError,
      StrCat(store_path_, ": saving step ", step, " failed: ", why.message()));
}

void Instruments::Fill(StoreStats* stats) const {
  stats->saves = saves_.load();
  stats->saves_failed = saves_failed_.load();
  stats->bytes_saved = bytes_saved_.load();
  stats->bytes_moved = bytes_moved.load();
  stats->bytes_punched = bytes_punched.load();
  stats->segments_removed = segments_removed.load();
  stats->segments_recycled = segments_recycled.load();
  stats->snapshot = snapshot_.Summary();
  stats->encode = encode_.Summary();
  stats->write = write_.Summary();
  stats->commit = commit_.Summary();
  stats->index = index.Summary();
  stats->durable = durable_.Summary();
}

size_t Histogram::StepOf(uint64_t us) {
  us = std::min(us, (uint64_t{1} << kBitsMax) - 1);
  const auto bits = static_cast<int>(std::bit_width(us));
  if (bits <= kStepBits) return us;
  const int shift = bits - 1 - kStepBits;  // leaves the leading one and kStepBits behind it
  return (static_cast<size_t>(shift) << kStepBits) + (us >> shift);
}

uint64_t Histogram::UpperEnd(size_t step) {
  constexpr size_t kExact = size_t{1} << kStepBits;
  if (step < 2 * kExact) return step;
  const size_t shift = (step >> kStepBits) - 1;
  const uint64_t first = kExact + (step & (kExact - 1));
  return ((first + 1) << shift) - 1;
}

void Histogram::Record(int64_t nanos) {
  const uint64_t us = nanos <= 0 ? 0 : static_cast<uint64_t>(nanos) / 1000;
  counts_[StepOf(us)].fetch_add(1, std::memory_order_relaxed);
  total_us_.fetch_add(us, std::memory_order_relaxed);
  uint64_t seen = max_us_.load(std::memory_order_relaxed);
  while (us > seen && !max_us_.compare_exchange_weak(seen, us, std::memory_order_relaxed)) {
  }
}

LatencyStats Histogram::Summary() const {
  std::array<uint64_t, kSteps> counts;
  LatencyStats out;
  for (size_t i = 0; i < kSteps; ++i) {
    counts[i] = counts_[i].load(std::memory_order_relaxed);
    out.count += counts[i];
  }
  out.total_us = total_us_.load(std::memory_order_relaxed);
  out.max_us = max_us_.load(std::memory_order_relaxed);
  const auto percentile = [&](uint64_t percent) -> uint64_t {
    // The smallest value that at least `percent` of all do not exceed.
    const uint64_t rank = std::max<uint64_t>((out.count * percent + 99) / 100, 1);
    uint64_t below = 0;
    for (size_t i = 0; i < kSteps; ++i) {
      below += counts[i];
      if (below >= rank) return std::min(UpperEnd(i), out.max_us);
    }
    return 0;
  };
  out.p50_us = percentile(50);
  out.p99_us = percentile(99);
  return out;
}

Trace::Trace(std::unique_ptr<io::File> file, io::Clock* clock, std::string process_name,
             size_t spans_max)
    : file_(std::move(file)),
      clock_(clock),
      process_name_(std::move(process_name)),
      start_ns_(clock->MonotonicNanos()),
      spans_max_(spans_max) {}

// A thread stays in the lane of its first span (one thread may do everything, in the simulation).
uint32_t Trace::ThreadRow(Lane lane) {
  const auto [it, is_new] = threads_.try_emplace(std::this_thread::get_id(), lane, 0);
  if (is_new) {
    uint32_t row = 0;
    for (const auto& [id, where] : threads_) {
      if (id != it->first && where.first == lane) ++row;
    }
    it->second.second = row;
  }
  return it->second.second;
}

void Trace::Add(Span span) {
  io::Quietly([&] {  // in destructors; without memory it is not there
    const io::MutexLock lock(&mutex_);
    if (span.lane < Lane::kDisk) {
      span.row = ThreadRow(span.lane);
      span.lane = threads_[std::this_thread::get_id()].first;
    }
    if (spans_.size() < spans_max_) {
      spans_.push_back(span);
    } else {
      spans_[added_ % spans_max_] = span;
    }
    ++added_;
  });
}

uint64_t Trace::dropped() const {
  const io::MutexLock lock(&mutex_);
  return added_ - spans_.size();
}

Status Trace::Write() {
  std::vector<Span> spans;
  {
    const io::MutexLock lock(&mutex_);
    spans = spans_;
  }
  std::sort(spans.begin(), spans.end(), Before);
  SpreadDisk(&spans);
  STEPWELL_RETURN_IF_ERROR(file_->Truncate(0));
  Output out(file_.get());
  STEPWELL_RETURN_IF_ERROR(out.Add(StrCat(
      "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":", dropped(),
      "},\"traceEvents\":[\n", Metadata("process_name", 0, "name", "stepwell " + process_name_))));
  std::map<uint32_t, std::string> rows;
  for (const Span& span : spans) {
    std::string& name = rows[RowId(span.lane, span.row)];
    if (!name.empty()) continue;
    name = kLaneNames[static_cast<size_t>(span.lane)];
    if (span.row > 0 || span.lane == Lane::kWorker) name += StrCat(" ", span.row + 1);
  }
  for (const auto& [row, name] : rows) {
    STEPWELL_RETURN_IF_ERROR(out.Add(",\n" + Metadata("thread_name", row, "name", name) + ",\n" +
                                     Metadata("thread_sort_index", row, "sort_index", row)));
  }
  for (const Span& span : spans) {
    STEPWELL_RETURN_IF_ERROR(out.Add(",\n" + Event(span, start_ns_)));
  }
  STEPWELL_RETURN_IF_ERROR(out.Add("\n]}\n"));
  return out.Flush();
}

}  // namespace stepwell::db
