// SPDX-License-Identifier: Apache-2.0
#include "api/python/bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "db/commit/retention.h"
#include "db/import/import.h"
#include "db/store.h"

namespace stepwell::python {

namespace nb = nanobind;

void BindRequests(nb::module_& m) {
  using nb::arg;
  // The names of the values are those that users give.
  nb::enum_<db::CodecPolicy>(m, "CodecPolicy")
      .value("auto", db::CodecPolicy::kAuto)
      .value("raw", db::CodecPolicy::kRaw)
      .value("blosc", db::CodecPolicy::kBlosc);
  nb::enum_<db::OnNonfinite>(m, "OnNonfinite")
      .value("ignore", db::OnNonfinite::kIgnore)
      .value("warn", db::OnNonfinite::kWarn)
      .value("error", db::OnNonfinite::kError);
  nb::enum_<db::IfExists>(m, "IfExists")
      .value("error", db::IfExists::kError)
      .value("replace", db::IfExists::kReplace)
      .value("skip", db::IfExists::kSkip);

  using db::KeepRule;
  nb::enum_<KeepRule::Kind>(m, "KeepKind", nb::is_arithmetic())
      .value("LATEST", KeepRule::Kind::kLatest)
      .value("EVERY", KeepRule::Kind::kEvery)
      .value("BEST", KeepRule::Kind::kBest)
      .value("DURATION", KeepRule::Kind::kDuration)
      .value("BYTES", KeepRule::Kind::kBytes)
      .value("PINNED", KeepRule::Kind::kPinned)
      .value("LAST_VERIFIED", KeepRule::Kind::kLastVerified);
  nb::class_<KeepRule>(m, "KeepRule")
      .def(
          "__init__",
          [](KeepRule* self, KeepRule::Kind kind, uint64_t count, int64_t duration_ns,
             std::string metric, bool larger_is_better) {
            new (self) KeepRule{kind, count, std::chrono::nanoseconds(duration_ns),
                                std::move(metric), larger_is_better};
          },
          nb::kw_only(), arg("kind"), arg("count"), arg("duration_ns"), arg("metric"),
          arg("larger_is_better"))
      .def_ro("kind", &KeepRule::kind)
      .def_ro("count", &KeepRule::count)
      .def_prop_ro("duration_ns",
                   [](const KeepRule& rule) -> int64_t { return rule.duration.count(); })
      .def_ro("metric", &KeepRule::metric)
      .def_ro("larger_is_better", &KeepRule::larger_is_better);

  using db::StoreOptions;
  nb::class_<StoreOptions>(m, "OpenOptions")
      .def(nb::init<>())
      .def_rw("read_only", &StoreOptions::read_only)
      .def_rw("create", &StoreOptions::create)
      .def_rw("untrusted", &StoreOptions::untrusted)
      .def_rw("private_files", &StoreOptions::private_files)
      .def_rw("keep", &StoreOptions::keep)
      .def_rw("codec", &StoreOptions::codec)
      .def_rw("delta", &StoreOptions::delta)
      .def_rw("statistics", &StoreOptions::statistics)
      .def_rw("on_nonfinite", &StoreOptions::on_nonfinite)
      .def_rw("staging_bytes", &StoreOptions::staging_bytes)
      .def_rw("far_window_bytes", &StoreOptions::far_window_bytes)
      .def_rw("warm", &StoreOptions::warm)
      .def_rw("threads", &StoreOptions::threads)
      .def_rw("reclaim_bytes_per_second", &StoreOptions::reclaim_bytes_per_second)
      .def_rw("trace_path", &StoreOptions::trace_path)
      .def_rw("unpublished", &StoreOptions::unpublished)
      .def_rw("group", &StoreOptions::group, nb::for_setter(arg("value").none()));

  // Which of `count` steps, by place, stays below tainted ones once that at `added` is saved.
  m.def(
      "kept_untainted",
      [](size_t count, const std::vector<size_t>& tainted, size_t added) {
        std::vector<db::KeepCandidate> steps(count);
        for (const size_t at : tainted) steps.at(at).tainted = true;
        return db::KeptUntainted(steps, added);
      },
      arg("count"), arg("tainted"), arg("added"));

  using db::SaveRequest;
  nb::class_<SaveRequest>(m, "SaveRequest")
      .def(
          "__init__",
          [](SaveRequest* self, uint64_t step, db::IfExists if_exists, std::string metadata_json,
             std::string metrics_json, std::vector<uint64_t> retire,
             std::optional<db::GroupSave> group, bool is_copy, bool far_behind) {
            new (self) SaveRequest{.step = step,
                                   .items = {},
                                   .metadata_json = std::move(metadata_json),
                                   .metrics_json = std::move(metrics_json),
                                   .if_exists = if_exists,
                                   .group = std::move(group),
                                   .retire = std::move(retire),
                                   .taint = {},
                                   .is_copy = is_copy,
                                   .far = {},
                                   .far_behind = far_behind,
                                   .keep_waiting = {}};
          },
          nb::kw_only(), arg("step"), arg("if_exists"), arg("metadata_json") = "",
          arg("metrics_json") = "", arg("retire") = std::vector<uint64_t>(),
          arg("group").none() = nb::none(), arg("is_copy") = false, arg("far_behind") = false,
          nb::sig("def __init__(self, *, step: int, if_exists: IfExists, metadata_json: str = '', "
                  "metrics_json: str = '', retire: collections.abc.Sequence[int] = (), "
                  "group: GroupSave | None = None, is_copy: bool = False, "
                  "far_behind: bool = False) -> None"))
      .def_ro("step", &SaveRequest::step)
      .def_ro("if_exists", &SaveRequest::if_exists)
      .def_ro("metadata_json", &SaveRequest::metadata_json)
      .def_ro("metrics_json", &SaveRequest::metrics_json)
      .def_ro("retire", &SaveRequest::retire)
      .def_ro("is_copy", &SaveRequest::is_copy)
      .def_ro("far_behind", &SaveRequest::far_behind);

  using db::ImportShare;
  nb::class_<ImportShare>(m, "ImportShare")
      .def(
          "__init__",
          [](ImportShare* self, uint32_t index, uint32_t count) {
            new (self) ImportShare{index, count};
          },
          nb::kw_only(), arg("index") = 0, arg("count") = 1)
      .def_ro("index", &ImportShare::index)
      .def_ro("count", &ImportShare::count);
}

}  // namespace stepwell::python
