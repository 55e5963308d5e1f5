// SPDX-License-Identifier: Apache-2.0
#include "api/python/stats.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "api/python/view.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

// Seconds.
nb::dict LatencyDict(const db::LatencyStats& stats) {
  const auto seconds = [](uint64_t us) { return static_cast<double>(us) / 1e6; };
  nb::dict out;
  out["count"] = stats.count;
  out["total_s"] = seconds(stats.total_us);
  out["p50_s"] = seconds(stats.p50_us);
  out["p99_s"] = seconds(stats.p99_us);
  out["max_s"] = seconds(stats.max_us);
  return out;
}

nb::dict SpaceDict(const db::SpaceStats& space) {
  nb::dict out;
  out["total_bytes"] = space.total_bytes;
  out["live_bytes"] = space.live_bytes;
  out["overhead_bytes"] = space.overhead_bytes;
  out["dead_bytes"] = space.dead_bytes;
  out["reserved_bytes"] = space.reserved_bytes;
  out["index_bytes"] = space.index_bytes;
  out["other_bytes"] = space.other_bytes;
  out["shared_bytes"] = space.shared_bytes;
  out["pinned_by_readers_bytes"] = space.pinned_by_readers_bytes;
  out["linked_bytes"] = space.linked_bytes;
  return out;
}

}  // namespace

nb::dict StatsDict(const db::StoreStats& stats) {
  nb::dict latency;
  latency["snapshot"] = LatencyDict(stats.snapshot);
  latency["encode"] = LatencyDict(stats.encode);
  latency["write"] = LatencyDict(stats.write);
  latency["commit"] = LatencyDict(stats.commit);
  latency["index"] = LatencyDict(stats.index);
  latency["durable"] = LatencyDict(stats.durable);
  nb::dict out;
  out["steps"] = stats.steps;
  out["pinned_steps"] = stats.pinned_steps;
  out["segments"] = stats.segments;
  out["segment_bytes"] = stats.segment_bytes;
  out["space"] = SpaceDict(stats.space);
  out["staging_bytes"] = stats.staging_bytes;
  out["staging_bytes_max"] = stats.staging_bytes_max;
  out["saves_in_flight"] = stats.saves_in_flight;
  out["saves"] = stats.saves;
  out["saves_failed"] = stats.saves_failed;
  out["bytes_saved"] = stats.bytes_saved;
  out["bytes_written"] = stats.bytes_written;
  out["syncs"] = stats.syncs;
  out["bytes_moved"] = stats.bytes_moved;
  out["bytes_punched"] = stats.bytes_punched;
  out["segments_removed"] = stats.segments_removed;
  out["segments_recycled"] = stats.segments_recycled;
  out["latency"] = latency;
  out["disk"] = stats.disk;
  out["index"] = stats.index_state;
  out["old_pins"] = stats.old_pins;
  nb::list views;
  for (const db::ViewStats& view : stats.views) views.append(ViewStatsDict(view));
  out["views"] = views;
  return out;
}

}  // namespace stepwell::python
