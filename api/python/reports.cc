// SPDX-License-Identifier: Apache-2.0
#include "api/python/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "db/store.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

void BindStats(nb::module_& m) {
  using db::LatencyStats;
  nb::class_<LatencyStats> latency(m, "LatencyStats");
  const auto seconds = [&](const char* name, uint64_t LatencyStats::*us) {
    latency.def_prop_ro(
        name, [us](const LatencyStats& stats) { return static_cast<double>(stats.*us) / 1e6; });
  };
  latency.def_ro("count", &LatencyStats::count);
  seconds("total_s", &LatencyStats::total_us);
  seconds("p50_s", &LatencyStats::p50_us);
  seconds("p99_s", &LatencyStats::p99_us);
  seconds("max_s", &LatencyStats::max_us);

  using db::SpaceStats;
  nb::class_<SpaceStats>(m, "SpaceStats")
      .def_ro("total_bytes", &SpaceStats::total_bytes)
      .def_ro("live_bytes", &SpaceStats::live_bytes)
      .def_ro("padding_bytes", &SpaceStats::padding_bytes)
      .def_ro("overhead_bytes", &SpaceStats::overhead_bytes)
      .def_ro("dead_bytes", &SpaceStats::dead_bytes)
      .def_ro("reserved_bytes", &SpaceStats::reserved_bytes)
      .def_ro("index_bytes", &SpaceStats::index_bytes)
      .def_ro("other_bytes", &SpaceStats::other_bytes)
      .def_ro("pinned_by_readers_bytes", &SpaceStats::pinned_by_readers_bytes)
      .def_ro("linked_bytes", &SpaceStats::linked_bytes);

  using db::ViewStats;
  nb::class_<ViewStats>(m, "ViewStats")
      .def_ro("path", &ViewStats::path)
      .def_ro("shown", &ViewStats::shown)
      .def_ro("held", &ViewStats::held)
      .def_ro("not_shown", &ViewStats::not_shown)
      .def_ro("made", &ViewStats::made)
      .def_ro("removed", &ViewStats::removed)
      .def_ro("errors", &ViewStats::errors)
      .def_ro("last_error", &ViewStats::last_error)
      .def_ro("following", &ViewStats::following);

  using db::StoreStats;
  nb::class_<StoreStats>(m, "StoreStats")
      .def_ro("steps", &StoreStats::steps)
      .def_ro("pinned_steps", &StoreStats::pinned_steps)
      .def_ro("segments", &StoreStats::segments)
      .def_ro("segment_bytes", &StoreStats::segment_bytes)
      .def_ro("space", &StoreStats::space)
      .def_ro("staging_bytes", &StoreStats::staging_bytes)
      .def_ro("staging_bytes_max", &StoreStats::staging_bytes_max)
      .def_ro("saves_in_flight", &StoreStats::saves_in_flight)
      .def_ro("saves", &StoreStats::saves)
      .def_ro("saves_failed", &StoreStats::saves_failed)
      .def_ro("bytes_saved", &StoreStats::bytes_saved)
      .def_ro("bytes_written", &StoreStats::bytes_written)
      .def_ro("syncs", &StoreStats::syncs)
      .def_ro("bytes_moved", &StoreStats::bytes_moved)
      .def_ro("bytes_punched", &StoreStats::bytes_punched)
      .def_ro("segments_removed", &StoreStats::segments_removed)
      .def_ro("segments_recycled", &StoreStats::segments_recycled)
      // The latencies of the stages are fields of the stats themselves.
      .def_prop_ro(
          "latency", [](const StoreStats& stats) -> const StoreStats& { return stats; },
          nb::rv_policy::reference_internal)
      .def_ro("snapshot", &StoreStats::snapshot)
      .def_ro("encode", &StoreStats::encode)
      .def_ro("write", &StoreStats::write)
      .def_ro("commit", &StoreStats::commit)
      .def_ro("index", &StoreStats::index)
      .def_ro("durable", &StoreStats::durable)
      .def_ro("disk", &StoreStats::disk)
      .def_ro("index_state", &StoreStats::index_state)
      .def_ro("old_pins", &StoreStats::old_pins)
      .def_ro("views", &StoreStats::views);
}

}  // namespace

void BindReports(nb::module_& m) {
  BindStats(m);

  using db::RecoveryReport;
  nb::class_<RecoveryReport>(m, "RecoveryReport")
      .def_ro("clean", &RecoveryReport::clean)
      .def_ro("commits_recovered", &RecoveryReport::commits_recovered)
      .def_ro("commits_rejected", &RecoveryReport::commits_rejected)
      .def_ro("index_rebuilt", &RecoveryReport::index_rebuilt)
      .def_ro("problems", &RecoveryReport::problems);

  using db::ReclaimReport;
  nb::class_<ReclaimReport>(m, "ReclaimReport")
      .def_ro("bytes_before", &ReclaimReport::bytes_before)
      .def_ro("bytes_after", &ReclaimReport::bytes_after)
      .def_ro("segments_removed", &ReclaimReport::segments_removed)
      .def_ro("segments_recycled", &ReclaimReport::segments_recycled)
      .def_ro("bytes_punched", &ReclaimReport::bytes_punched)
      .def_ro("bytes_moved", &ReclaimReport::bytes_moved)
      .def_ro("bytes_pinned_by_readers", &ReclaimReport::bytes_pinned_by_readers)
      .def_ro("bytes_linked", &ReclaimReport::bytes_linked);

  using db::RepairReport;
  nb::class_<RepairReport>(m, "RepairReport")
      .def_ro("steps_rewritten", &RepairReport::steps_rewritten)
      .def_ro("losses", &RepairReport::losses)
      .def_ro("losses_accepted", &RepairReport::losses_accepted);

  using db::SaveStats;
  const auto seconds = [](std::chrono::nanoseconds SaveStats::*time) {
    return [time](const SaveStats& stats) {
      return std::chrono::duration<double>(stats.*time).count();
    };
  };
  nb::class_<SaveStats>(m, "SaveStats")
      .def_ro("logical_bytes", &SaveStats::logical_bytes)
      .def_ro("stored_bytes", &SaveStats::stored_bytes)
      .def_ro("referenced_bytes", &SaveStats::referenced_bytes)
      .def_prop_ro("owned_bytes", &SaveStats::owned_bytes)
      .def_ro("chunks", &SaveStats::chunks)
      .def_prop_ro("snapshot_s", seconds(&SaveStats::snapshot_time))
      .def_prop_ro("durable_s", seconds(&SaveStats::durable_time));

  using db::RetentionReport;
  nb::class_<RetentionReport::Step>(m, "StepRetention")
      .def_ro("step", &RetentionReport::Step::step)
      .def_ro("pinned", &RetentionReport::Step::pinned)
      .def_ro("kept_by", &RetentionReport::Step::kept_by)
      .def_ro("goes_next", &RetentionReport::Step::goes_next)
      .def_ro("newest_untainted", &RetentionReport::Step::newest_untainted);
  nb::class_<RetentionReport>(m, "RetentionReport")
      .def_ro("rules", &RetentionReport::rules)
      .def_ro("steps", &RetentionReport::steps)
      .def_ro("warnings", &RetentionReport::warnings);

  using db::VerifyProblem;
  nb::class_<VerifyProblem>(m, "VerifyProblem")
      .def_ro("step", &VerifyProblem::step)
      .def_ro("item", &VerifyProblem::item)
      .def_ro("path", &VerifyProblem::path)
      .def_ro("file", &VerifyProblem::file)
      .def_ro("offset_bytes", &VerifyProblem::offset_bytes)
      .def_ro("message", &VerifyProblem::message)
      .def_ro("unchecked", &VerifyProblem::unchecked);
  using db::VerifyReport;
  nb::class_<VerifyReport>(m, "VerifyReport")
      .def_ro("steps", &VerifyReport::steps)
      .def_ro("leaves", &VerifyReport::leaves)
      .def_ro("chunks", &VerifyReport::chunks)
      .def_ro("bytes", &VerifyReport::bytes)
      .def_ro("problems", &VerifyReport::problems);
}

}  // namespace stepwell::python
