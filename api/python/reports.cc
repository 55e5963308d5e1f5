// SPDX-License-Identifier: Apache-2.0
#include "api/python/reports.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "api/python/group.h"
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
  out["padding_bytes"] = space.padding_bytes;
  out["overhead_bytes"] = space.overhead_bytes;
  out["dead_bytes"] = space.dead_bytes;
  out["reserved_bytes"] = space.reserved_bytes;
  out["index_bytes"] = space.index_bytes;
  out["other_bytes"] = space.other_bytes;
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

nb::dict RecoveryDict(const db::RecoveryReport& report) {
  nb::dict out;
  out["clean"] = report.clean;
  out["commits_recovered"] = report.commits_recovered;
  out["commits_rejected"] = report.commits_rejected;
  out["index_rebuilt"] = report.index_rebuilt;
  out["problems"] = report.problems;
  return out;
}

void BindReports(nb::module_& m) {
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

  using format::StepRecord;
  nb::class_<StepRecord>(m, "StepRecord")
      .def_ro("step", &StepRecord::step)
      .def_ro("commit", &StepRecord::commit)
      .def_ro("pinned", &StepRecord::pinned)
      // Of a step of many processes: (save id, parts).
      .def_prop_ro("group", &SaveOfStep,
                   nb::sig("def group(self) -> tuple[bytes, list[int]] | None"));
  using db::GroupStatus;
  nb::class_<GroupStatus>(m, "GroupStatus")
      .def_ro("part", &GroupStatus::part)
      .def_ro("decision_number", &GroupStatus::decision_number)
      // [(step, save id)]: what is prepared and not decided.
      .def_prop_ro("prepared", [](const GroupStatus& status) {
        std::vector<std::pair<uint64_t, nb::bytes>> prepared;
        for (const StepRecord& step : status.prepared) {
          prepared.emplace_back(step.step, BytesOfId(step.group->save_id));
        }
        return prepared;
      });
}

}  // namespace stepwell::python
