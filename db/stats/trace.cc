// SPDX-License-Identifier: Apache-2.0
#include "db/stats/trace.h"
#include "io/guard.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace stepwell::db {
namespace {

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

std::string Metadata(const char* what, uint32_t row, const char* key, const nlohmann::json& value) {
  const nlohmann::json event{
      {"ph", "M"}, {"pid", 1}, {"tid", row}, {"name", what}, {"args", {{key, value}}}};
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Event(const Span& span, int64_t start_ns) {
  std::array<char, 320> text;
  const auto us = [](int64_t ns) { return std::pair(ns / 1000, ns % 1000); };
  const auto [at, at_rest] = us(std::max<int64_t>(span.start_ns - start_ns, 0));
  const auto [took, took_rest] = us(std::max<int64_t>(span.end_ns - span.start_ns, 0));
  std::string args = "\"bytes\":" + std::to_string(span.bytes);
  if (span.step != Trace::kNoStep) args = "\"step\":" + std::to_string(span.step) + "," + args;
  // Chrome's times are microseconds.
  const int length = std::snprintf(
      text.data(), text.size(),
      "{\"ph\":\"X\",\"pid\":1,\"tid\":%" PRIu32
      ",\"name\":\"%s\",\"cat\":\"%s\","
      "\"ts\":%" PRId64 ".%03" PRId64 ",\"dur\":%" PRId64 ".%03" PRId64 ",\"args\":{%s}}",
      RowId(span.lane, span.row), span.name, kLaneNames[static_cast<size_t>(span.lane)], at,
      at_rest, took, took_rest, args.c_str());
  return {text.data(), static_cast<size_t>(length)};
}

}  // namespace

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
  io::Quietly([&] { AddOrThrow(span); });  // in destructors; without memory it is not there
}

void Trace::AddOrThrow(Span span) {
  const std::lock_guard lock(mutex_);
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
}

uint64_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return added_ - spans_.size();
}

Status Trace::Write() {
  std::vector<Span> spans;
  {
    const std::lock_guard lock(mutex_);
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
