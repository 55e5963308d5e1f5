// SPDX-License-Identifier: Apache-2.0
// The module stepwell._stepwell: the engine's door (db/store.h) for the package stepwell, which
// does everything that needs Python objects. Not for users.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "api/python/durable.h"
#include "api/python/errors.h"
#include "api/python/events.h"
#include "api/python/exit.h"
#include "api/python/export.h"
#include "api/python/group.h"
#include "api/python/handle.h"
#include "api/python/import.h"
#include "api/python/interrupt.h"
#include "api/python/leaves.h"
#include "api/python/paths.h"
#include "api/python/reader.h"
#include "api/python/records.h"
#include "api/python/reports.h"
#include "api/python/view.h"
#include "db/export/branch.h"
#include "db/import/import.h"
#include "db/mesh/sharding.h"
#include "db/store.h"
#include "io/open_disk.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using std::chrono::milliseconds;

// ---- the store --------------------------------------------------------------------------------

class Core {
 public:
  Core(std::string path, bool read_only, std::vector<db::KeepRule> keep, uint64_t staging_bytes,
       size_t threads, int codec, std::string trace,
       std::optional<uint64_t> reclaim_bytes_per_second, const std::optional<GroupPair>& group,
       bool untrusted, bool private_files, bool create)
      : pid_(getpid()) {
    db::StoreOptions options;
    options.read_only = read_only;
    options.untrusted = untrusted;
    options.private_files = private_files;
    options.create = create;
    options.group = GroupFromPython(group);
    options.keep = std::move(keep);
    options.trace_path = std::move(trace);
    if (reclaim_bytes_per_second) options.reclaim_bytes_per_second = *reclaim_bytes_per_second;
    options.staging_bytes = staging_bytes;
    options.threads = threads;
    options.codec = static_cast<db::CodecPolicy>(codec);
    options.log = [](LogLevel level, std::string_view text) { EventQueue::Get().Log(level, text); };
    std::optional<Result<std::unique_ptr<db::Store>>> store;
    {
      nb::gil_scoped_release release;
      store.emplace(db::Store::Open(path, options));
    }
    ThrowIfError(store->status(), /*opening=*/true);
    store_ = std::move(*store).value();
  }

  ~Core() {
    // In a forked child the threads, the lock and the ring are the parent's: leave them alone.
    if (pid_ != getpid()) {
      (void)store_.release();
      (void)new auto(std::move(left_));
      return;
    }
    nb::gil_scoped_release release;
    left_.clear();  // waits; they use the store
    store_.reset();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  std::unique_ptr<Handle> Save(uint64_t step, nb::list items, std::string metadata,
                               std::string metrics, int if_exists, nb::object to_numpy,
                               const std::optional<GroupSavePair>& group,
                               std::vector<uint64_t> retire) {
    db::SaveRequest request;
    request.step = step;
    request.retire = std::move(retire);
    request.group = GroupSaveFromPython(group);
    request.items = ItemsFromPython(std::move(items), std::move(to_numpy));
    request.metadata_json = std::move(metadata);
    request.metrics_json = std::move(metrics);
    request.if_exists = static_cast<db::IfExists>(if_exists);
    return std::make_unique<Handle>(
        RunInterruptible([&](const std::function<bool()>& keep_waiting) {
          request.keep_waiting = keep_waiting;
          return store_->Save(std::move(request));
        }));
  }

  // A signal's handler that runs within a save's copy.
  bool IsCopying() const { return db::store_copied_into == store_.get(); }
  nb::bytes Id() const { return BytesOfId(store_->id()); }
  db::GroupStatus GroupStatus() {
    return Call([&] { return store_->Group(); });
  }
  // (steps that died with it, decision number), as db::Decided.
  std::pair<std::vector<uint64_t>, uint64_t> Decide(uint64_t step, const nb::bytes& save_id,
                                                    bool commit, std::vector<uint64_t> dead,
                                                    uint64_t decision_number, bool wait) {
    const db::Decision decision{.step = step,
                                .save_id = IdFromPython(save_id),
                                .commit = commit,
                                .dead = std::move(dead),
                                .decision_number = decision_number,
                                .wait = wait};
    db::Decided decided = Call([&] { return store_->Decide(decision); });
    return {std::move(decided.dead), decided.decision_number};
  }

  // `share`: (index, count)
  std::unique_ptr<Handle> Import(uint64_t step, ImportPlan& plan,
                                 std::pair<uint32_t, uint32_t> share, int if_exists,
                                 const std::optional<GroupSavePair>& group) {
    return std::make_unique<Handle>(plan.Save(store_.get(), step, {share.first, share.second},
                                              if_exists, GroupSaveFromPython(group)));
  }

  void VerifyImport(uint64_t step, const std::string& path, std::vector<std::string> items) {
    RunInterruptible([&](const std::function<bool()>& keep_waiting) -> Result<bool> {
      db::ImportOptions options;
      options.items = std::move(items);
      options.keep_waiting = keep_waiting;
      STEPWELL_RETURN_IF_ERROR(
          db::VerifyImport(*store_, step, path, options, io::LocalFileSystem()));
      return true;
    });
  }

  void Wait() {
    Call([&] { return store_->Wait(); });
  }

  // None without a step.
  std::optional<uint64_t> Newest() {
    return Call([&] { return store_->Newest(); });
  }
  // Of the `last` highest steps, ascending; None: of all.
  std::vector<uint64_t> StepNumbers(std::optional<size_t> last) {
    return Call([&] { return store_->StepNumbers(last.value_or(SIZE_MAX)); });
  }
  // Each step's metrics, as JSON; "" for none.
  std::map<uint64_t, std::string> Metrics() {
    return Call([&]() -> Result<std::map<uint64_t, std::string>> {
      STEPWELL_ASSIGN_OR_RETURN(auto texts, store_->Texts(SIZE_MAX));
      std::map<uint64_t, std::string> metrics;
      for (db::StepTexts& each : texts) {
        STEPWELL_RETURN_IF_ERROR(each.status);
        metrics.emplace_hint(metrics.end(), each.step, std::move(each.metrics_json));
      }
      return metrics;
    });
  }
  // Ascending.
  std::vector<format::StepRecord> Steps() {
    return Call([&] { return store_->Steps(); });
  }

  std::unique_ptr<Reader> Read(uint64_t step) {
    return std::make_unique<Reader>(Call([&] { return store_->Read(step); }));
  }

  // What this part has of a step, where the others are on other machines' disks.
  std::unique_ptr<Reader> ReadShare(uint64_t step) {
    return std::make_unique<Reader>(Call([&] { return store_->ReadShare(step); }));
  }

  // Ctrl-C ends the waiting for these four, not what they do.
  void Delete(std::vector<uint64_t> steps) {
    ThrowIfError(WaitFor([this, steps = std::move(steps)] { return store_->Delete(steps); }));
  }
  void DeleteItems(uint64_t step, std::vector<std::string> items) {
    ThrowIfError(WaitFor(
        [this, step, items = std::move(items)] { return store_->DeleteItems(step, items); }));
  }
  void SetPinned(std::vector<uint64_t> steps, bool pinned) {
    ThrowIfError(WaitFor(
        [this, steps = std::move(steps), pinned] { return store_->SetPinned(steps, pinned); }));
  }
  db::ReclaimReport Reclaim() {
    auto report = std::make_shared<db::ReclaimReport>();
    ThrowIfError(WaitFor([this, report]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(*report, store_->Reclaim());
      return OkStatus();
    }));
    return *report;
  }
  void Branch(const std::string& destination) {
    ThrowIfError(WaitFor([this, destination] { return db::Branch(*store_, destination); }));
  }
  db::RepairReport Repair(bool accept) {
    auto report = std::make_shared<db::RepairReport>();
    ThrowIfError(WaitFor([this, report, accept]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(*report, store_->Repair(accept));
      return OkStatus();
    }));
    return *report;
  }

  // Ctrl-C stops it. Not `others`: of what this part has.
  db::VerifyReport Verify(std::optional<uint64_t> step, bool others) {
    return RunCancellable([&](const std::atomic<bool>& cancelled) {
      db::VerifyOptions options;
      options.step = step;
      options.progress = [&cancelled](uint64_t, uint64_t) { return !cancelled.load(); };
      return others ? store_->Verify(options) : store_->VerifyShare(options);
    });
  }

  db::ExportReport Export(uint64_t step, const std::string& destination,
                          const db::ExportOptions& options, const Subtree& subtree,
                          nb::object progress) {
    return ExportStep(store_.get(), step, destination, options, subtree, std::move(progress));
  }
  db::ExportReport ExportArchive(uint64_t step, const std::string& destination,
                                 ArchiveFormat format, OnUnsupported on_unsupported,
                                 const Subtree& subtree, nb::object progress) {
    return ExportStepAsArchive(store_.get(), step, destination, format, on_unsupported, subtree,
                               std::move(progress));
  }
  // `share`: of read_share, of part 0.
  std::unique_ptr<PartsExport> BeginExport(
      const Reader& share, const std::vector<std::pair<uint32_t, nb::bytes>>& others,
      const std::string& destination, const db::ExportOptions& options, const Subtree& subtree) {
    return BeginPartsExport(store_.get(), share.reader(), others, destination, options, subtree);
  }
  bool CopyPart(const Reader& share, const std::vector<db::PartFile>& files, ExportMode mode,
                uint32_t file_mode, nb::object progress) {
    return python::CopyPart(store_.get(), share.reader().get(), files, mode, file_mode,
                            std::move(progress));
  }

  std::unique_ptr<View> OpenView(const std::string& path, const db::ExportOptions& checkpoint,
                                 bool beside, double poll_s) {
    return python::OpenView(store_.get(), path, checkpoint, beside, poll_s);
  }

  nb::dict Stats() {
    db::StoreStats stats;
    {
      nb::gil_scoped_release release;
      stats = store_->Stats();
    }
    return StatsDict(stats);
  }

  // ([(kind, count, duration_ns, metric, larger_is_better)], [(step, pinned, rules, goes next)],
  // warnings).
  nb::tuple Retention() {
    const db::RetentionReport report = Call([&] { return store_->Retention(); });
    nb::list rules;
    for (const db::KeepRule& rule : report.rules) {
      rules.append(nb::make_tuple(static_cast<int>(rule.kind), rule.count, rule.duration.count(),
                                  rule.metric, rule.larger_is_better));
    }
    nb::list steps;
    for (const auto& step : report.steps) {
      steps.append(nb::make_tuple(step.step, step.pinned, step.kept_by, step.goes_next));
    }
    return nb::make_tuple(rules, steps, report.warnings);
  }

  nb::dict Recovery() { return RecoveryDict(store_->recovery()); }

  void Close() {
    Call([&] { return store_->Close(); });
  }

 private:
  // Runs `function` on a thread of its own. Ctrl-C raises here while it goes on there.
  Status WaitFor(const std::function<Status()>& function) {
    std::future<Status> future = StartAside(function);
    while (!WaitSlice(future)) {
      if (PyErr_CheckSignals() != 0) {
        left_.push_back(std::move(future));
        nb::raise_python_error();
      }
    }
    return future.get();
  }

  std::unique_ptr<db::Store> store_;
  std::vector<std::future<Status>> left_;  // of interrupted waits; under the GIL
  const pid_t pid_;
};

// ([(level, text)], [token]); drops the references that the engine has let go.
nb::tuple TakeEvents(double timeout_s) {
  EventQueue::Events events;
  {
    nb::gil_scoped_release release;
    events = EventQueue::Get().Take(milliseconds(static_cast<int64_t>(timeout_s * 1e3)));
  }
  for (PyObject* object : events.drops) Py_DECREF(object);
  nb::list logs;
  for (const auto& [level, text] : events.logs) {
    nb::object message = nb::steal(PyUnicode_DecodeUTF8(
        text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
    logs.append(nb::make_tuple(static_cast<int>(level), message));
  }
  nb::list completions;
  for (uint64_t token : events.completions) completions.append(token);
  return nb::make_tuple(logs, completions);
}

}  // namespace
}  // namespace stepwell::python

NB_MODULE(_stepwell, m) {
  namespace nb = nanobind;
  namespace sp = stepwell::python;
  using nb::arg;

  sp::EventQueue::InstallForkHandler();
  sp::InstallExitHandler();
  nb::set_leak_warnings(false);  // stores may live until the process ends

  m.doc() = "The engine of stepwell; use the package stepwell instead.";
  m.def("take_events", &sp::TakeEvents, arg("timeout"),
        nb::sig("def take_events(timeout: float) -> tuple[list[tuple[int, str]], list[int]]"));
  m.def(
      "set_log_level", [](int level) { sp::EventQueue::Get().SetLevel(level); }, arg("level"));
  sp::BindPaths(m);
  sp::BindRows(m);
  sp::BindRecords(m);
  sp::BindImport(m);
  sp::BindView(m);
  sp::BindExport(m);
  sp::BindDurable(m);
  m.def("wake_events", [] { sp::EventQueue::Get().Wake(); });
  m.def("fail_at_exit", &sp::FailAtExit);

  nb::class_<sp::Handle>(m, "Handle")
      .def_prop_ro("step", &sp::Handle::step)
      .def_prop_ro("skipped", &sp::Handle::skipped)
      .def("done", &sp::Handle::done)
      .def("error", &sp::Handle::error, nb::sig("def error(self) -> BaseException | None"))
      .def("wait", &sp::Handle::Wait, arg("timeout").none() = nb::none())
      .def("notify", &sp::Handle::Notify, arg("token"));

  m.def(
      "sharding_text",
      [](const std::vector<uint64_t>& shape, const std::string& json) {
        return stepwell::db::ShardingText(shape, json);
      },
      arg("shape"), arg("sharding"));

  sp::BindReader(m);
  sp::BindReports(m);

  using stepwell::db::KeepRule;
  nb::enum_<KeepRule::Kind>(m, "KeepKind")
      .value("LATEST", KeepRule::Kind::kLatest)
      .value("EVERY", KeepRule::Kind::kEvery)
      .value("BEST", KeepRule::Kind::kBest)
      .value("DURATION", KeepRule::Kind::kDuration)
      .value("BYTES", KeepRule::Kind::kBytes)
      .value("PINNED", KeepRule::Kind::kPinned);
  nb::class_<KeepRule>(m, "KeepRule")
      .def(
          "__init__",
          [](KeepRule* self, KeepRule::Kind kind, uint64_t count, int64_t duration_ns,
             std::string metric, bool larger_is_better) {
            new (self) KeepRule{kind, count, std::chrono::nanoseconds(duration_ns),
                                std::move(metric), larger_is_better};
          },
          arg("kind"), arg("count"), arg("duration_ns"), arg("metric"), arg("larger_is_better"));

  nb::class_<sp::Core>(m, "Core")
      .def(nb::init<std::string, bool, std::vector<stepwell::db::KeepRule>, uint64_t, size_t, int,
                    std::string, std::optional<uint64_t>, const std::optional<sp::GroupPair>&, bool,
                    bool, bool>(),
           arg("path"), arg("read_only"), arg("keep"), arg("staging_bytes"), arg("threads"),
           arg("codec"), arg("trace"), arg("reclaim_bytes_per_second").none(), arg("group").none(),
           arg("untrusted"), arg("private_files"), arg("create"))
      .def("id", &sp::Core::Id)
      .def("group_status", &sp::Core::GroupStatus)
      .def("read_share", &sp::Core::ReadShare, arg("step"))
      .def(
          "verify_share",
          [](sp::Core& core, std::optional<uint64_t> step) { return core.Verify(step, false); },
          arg("step").none() = nb::none())
      .def("decide", &sp::Core::Decide, arg("step"), arg("save_id"), arg("commit"), arg("dead"),
           arg("decision_number"), arg("wait"))
      .def("save", &sp::Core::Save, arg("step"), arg("items"), arg("metadata"), arg("metrics"),
           arg("if_exists"), arg("to_numpy"), arg("group").none() = nb::none(),
           arg("retire") = std::vector<uint64_t>(),
           nb::sig("def save(self, step: int, "
                   "items: collections.abc.Sequence[tuple[str, list[Row], int]], metadata: str, "
                   "metrics: str, if_exists: int, to_numpy: object, "
                   "group: tuple[bytes, list[int]] | None = None, "
                   "retire: collections.abc.Sequence[int] = ()) -> Handle"))
      .def("import_orbax", &sp::Core::Import, arg("step"), arg("plan"), arg("share"),
           arg("if_exists"), arg("group").none() = nb::none())
      .def("verify_import", &sp::Core::VerifyImport, arg("step"), arg("path"), arg("items"))
      .def("is_copying", &sp::Core::IsCopying)
      .def("wait", &sp::Core::Wait)
      .def("steps", &sp::Core::Steps)
      .def("newest", &sp::Core::Newest)
      .def("step_numbers", &sp::Core::StepNumbers, arg("last") = nb::none())
      .def("metrics", &sp::Core::Metrics)
      .def("read", &sp::Core::Read, arg("step"))
      .def("delete", &sp::Core::Delete, arg("steps"))
      .def("delete_items", &sp::Core::DeleteItems, arg("step"), arg("items"))
      .def("set_pinned", &sp::Core::SetPinned, arg("steps"), arg("pinned"))
      .def("repair", &sp::Core::Repair, arg("accept"))
      .def("reclaim", &sp::Core::Reclaim)
      .def("branch", &sp::Core::Branch, arg("destination"))
      .def(
          "verify",
          [](sp::Core& core, std::optional<uint64_t> step) { return core.Verify(step, true); },
          arg("step").none() = nb::none())
      .def("export", &sp::Core::Export, arg("step"), arg("destination"), arg("options"),
           arg("subtree").none(), arg("progress").none() = nb::none(),
           nb::sig("def export(self, step: int, destination: str, options: OrbaxOptions, "
                   "subtree: tuple[str, list[tuple[int, object]]] | None, "
                   "progress: collections.abc.Callable[[int, int], object] | None = None) -> "
                   "ExportReport"))
      .def("export_archive", &sp::Core::ExportArchive, arg("step"), arg("destination"),
           arg("format"), arg("on_unsupported"), arg("subtree").none(),
           arg("progress").none() = nb::none(),
           nb::sig("def export_archive(self, step: int, destination: str, format: ArchiveFormat, "
                   "on_unsupported: OnUnsupported, "
                   "subtree: tuple[str, list[tuple[int, object]]] | None, "
                   "progress: collections.abc.Callable[[int, int], object] | None = None) -> "
                   "ExportReport"))
      .def("begin_export", &sp::Core::BeginExport, arg("share"), arg("others"), arg("destination"),
           arg("options"), arg("subtree").none(),
           nb::sig("def begin_export(self, share: Reader, others: list[tuple[int, bytes]], "
                   "destination: str, options: OrbaxOptions, "
                   "subtree: tuple[str, list[tuple[int, object]]] | None) -> PartsExport"))
      .def("copy_part", &sp::Core::CopyPart, arg("share"), arg("files"), arg("mode"),
           arg("file_mode"), arg("progress").none(),
           nb::sig("def copy_part(self, share: Reader, "
                   "files: collections.abc.Sequence[PartFile], mode: ExportMode, file_mode: int, "
                   "progress: collections.abc.Callable[[int, int], object] | None) -> bool"))
      .def("open_view", &sp::Core::OpenView, arg("path"), arg("checkpoint"), arg("beside"),
           arg("poll_s"))
      .def("stats", &sp::Core::Stats, nb::sig("def stats(self) -> dict[str, object]"))
      .def("retention", &sp::Core::Retention,
           nb::sig("def retention(self) -> tuple["
                   "list[tuple[int, int, int, str, bool]], "
                   "list[tuple[int, bool, list[int], bool]], list[str]]"))
      .def("recovery", &sp::Core::Recovery, nb::sig("def recovery(self) -> dict[str, object]"))
      .def("close", &sp::Core::Close);
}
