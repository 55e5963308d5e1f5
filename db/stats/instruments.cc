// SPDX-License-Identifier: Apache-2.0
#include "db/stats/instruments.h"

#include <algorithm>
#include <array>
#include <cstdio>

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

}  // namespace stepwell::db
