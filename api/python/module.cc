// SPDX-License-Identifier: Apache-2.0
// The module stepwell._stepwell: the engine's door (db/store.h) for the package stepwell, which
// does everything that needs Python objects. Not for users.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/events.h"
#include "api/python/exit.h"
#include "api/python/export.h"
#include "api/python/gil.h"
#include "api/python/group.h"
#include "api/python/handle.h"
#include "api/python/host_copies.h"
#include "api/python/import.h"
#include "api/python/interrupt.h"
#include "api/python/leaves.h"
#include "api/python/over_time.h"
#include "api/python/reader.h"
#include "api/python/run.h"
#include "api/python/survey.h"
#include "api/python/transfer.h"
#include "api/python/view.h"
#include "api/python/watch.h"
#include "db/export/branch.h"
#include "db/import/import.h"
#include "db/layout.h"
#include "db/mesh/sharding.h"
#include "db/store.h"
#include "db/store/roll_back.h"
#include "io/open_disk.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;

// ---- the store --------------------------------------------------------------------------------

class Core {
 public:
  Core(const std::string& path, db::StoreOptions options) : pid_(getpid()) {
    options.log = [](LogLevel level, std::string_view text) { EventQueue::Get().Log(level, text); };
    std::optional<Result<std::unique_ptr<db::Store>>> store;
    {
      GilReleased release;
      store.emplace(db::Store::Open(path, options));
    }
    ThrowIfError(store->status(), /*opening=*/true);
    store_ = std::move(*store).value();
  }
  explicit Core(std::unique_ptr<db::Store> store) : store_(std::move(store)), pid_(getpid()) {}

  ~Core() {
    // In a forked child the threads, the lock and the ring are the parent's: leave them alone.
    if (pid_ != getpid()) {
      (void)store_.release();
      (void)new auto(std::move(left_));
      (void)new auto(std::move(saved_arrays_));
      return;
    }
    saved_arrays_.reset();
    GilReleased release;
    left_.clear();  // waits; they use the store
    store_.reset();
  }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  std::unique_ptr<Handle> Save(db::SaveRequest request, const nb::list& items, nb::object to_numpy,
                               const nb::object& host_copies) {
    auto far = std::make_shared<HostCopies>(host_copies, /*keeps_error=*/!request.far_behind);
    auto saved = std::make_shared<SavedArrays>(++tickets_);
    // Only the save right before this one is compared with: one of another thread, which is
    // still under way or has failed, may have had other arrays.
    std::shared_ptr<const SavedArrays> before = saved_arrays_;
    if (before != nullptr && before->ticket() + 1 != saved->ticket()) before = nullptr;
    request.items =
        ItemsFromPython(items, std::move(to_numpy), far.get(), before.get(), saved.get());
    if (!far->empty()) request.far = far;
    request.ticket = saved->ticket();
    const auto save = [&](const std::function<bool()>& keep_waiting) {
      request.keep_waiting = keep_waiting;
      return store_->Save(std::move(request));
    };
    std::unique_ptr<Handle> handle;
    try {
      handle = std::make_unique<Handle>(RunInterruptible(save));
    } catch (const nb::python_error& failed) {
      std::optional<nb::python_error> raised = far->TakeError();
      if (!raised) throw;
      raised->value().attr("add_note")(nb::str(failed.value()));  // which leaf it was
      throw std::move(*raised);
    }
    if (saved_arrays_ == nullptr || saved_arrays_->ticket() < saved->ticket()) {
      saved_arrays_ = std::move(saved);
    }
    return handle;
  }

  // A signal's handler that runs within a save's copy.
  bool IsCopying() const { return db::store_copied_into == store_.get(); }
  nb::bytes Id() const { return BytesOfId(store_->id()); }
  nb::bytes Path() const { return nb::bytes(store_->path().data(), store_->path().size()); }
  db::GroupStatus GroupStatus() {
    return Call([&] { return store_->Group(); });
  }
  db::Decided Decide(const db::Decision& decision) {
    return Call([&] { return store_->Decide(decision); });
  }

  std::unique_ptr<Handle> Import(const db::SaveRequest& request, ImportPlan& plan,
                                 const db::ImportShare& share) {
    return std::make_unique<Handle>(plan.Save(store_.get(), request, share));
  }

  std::unique_ptr<PushPlan> PlanPush(const Reader& reader, const std::vector<nb::bytes>& lists) {
    return std::make_unique<PushPlan>(store_.get(), reader, lists);
  }
  std::unique_ptr<PullPlan> PlanPull(const nb::bytes& list, std::vector<std::string> items) {
    return std::make_unique<PullPlan>(store_.get(), list, std::move(items));
  }
  std::unique_ptr<Handle> SavePulled(const db::SaveRequest& request, PullPlan& plan) {
    return std::make_unique<Handle>(plan.Save(store_.get(), request));
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

  // Each commit changes the file, so that other processes see it.
  std::unique_ptr<Watch> WatchCommits() {
    return std::make_unique<Watch>(store_->path(), db::SlotFilePath("").substr(1));
  }

  // None without a step.
  std::optional<uint64_t> Newest() {
    return Call([&] { return store_->Newest(); });
  }
  // Returns the `last` highest steps, ascending; all for None.
  std::vector<uint64_t> StepNumbers(std::optional<size_t> last, bool tainted) {
    return Call([&] { return store_->StepNumbers(last.value_or(SIZE_MAX), tainted); });
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

  db::StoreReader& reads() { return *store_; }
  std::unique_ptr<Reader> Read(uint64_t step) {
    return std::make_unique<Reader>(Call([&] { return store_->Read(step); }));
  }

  std::vector<std::optional<Selection>> FindInSteps(const std::vector<uint64_t>& steps,
                                                    nb::handle path, bool gone_ok) {
    return python::FindInSteps(*store_, steps, path, gone_ok);
  }

  // None without a step.
  std::unique_ptr<Reader> ReadNewest() {
    auto reader = Call([&] { return store_->ReadNewest(); });
    return reader == nullptr ? nullptr : std::make_unique<Reader>(std::move(reader));
  }

  // Reads this part's share of a step whose other shares lie on other machines' disks.
  std::unique_ptr<Reader> ReadShare(uint64_t step) {
    return std::make_unique<Reader>(Call([&] { return store_->ReadShare(step); }));
  }

  // Ctrl-C ends the waiting for these, not what they do.
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
  void SetTaint(std::vector<uint64_t> steps, std::string why) {
    ThrowIfError(WaitFor([this, steps = std::move(steps), why = std::move(why)] {
      return store_->SetTaint(steps, why);
    }));
  }
  std::vector<uint64_t> RollBack(uint64_t to, std::string taint) {
    auto above = std::make_shared<std::vector<uint64_t>>();
    ThrowIfError(WaitFor([this, above, to, taint = std::move(taint)]() -> Status {
      STEPWELL_ASSIGN_OR_RETURN(*above, db::RollBack(*store_, to, taint));
      return OkStatus();
    }));
    return *above;
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
  // For a thread that verifies in the background. Calls `pace(done_bytes)` now and then, which
  // waits as long as it likes. None: it said false, and the verification ended.
  std::optional<db::VerifyReport> VerifyAtPace(uint64_t step, bool others, const nb::object& pace) {
    std::optional<nb::python_error> raised;
    db::VerifyOptions options;
    options.step = step;
    options.progress = [&](uint64_t done_bytes, uint64_t) {
      const GilHeld acquire;
      try {
        return nb::cast<bool>(pace(done_bytes));
      } catch (nb::python_error& error) {
        raised.emplace(std::move(error));
        return false;
      }
    };
    std::optional<Result<db::VerifyReport>> report;
    {
      const GilReleased release;
      report.emplace(others ? store_->Verify(options) : store_->VerifyShare(options));
    }
    if (raised) throw std::move(*raised);
    if (report->status().code() == StatusCode::kCancelled) return std::nullopt;
    return ValueOrThrow(*std::move(report));
  }

  db::ExportReport Export(uint64_t step, const std::string& destination,
                          const db::ExportOptions& options, nb::object progress) {
    return ExportStep(store_.get(), step, destination, options, std::move(progress));
  }
  db::ExportReport ExportArchive(uint64_t step, const std::string& destination,
                                 const db::ArchiveOptions& options, nb::object progress) {
    return ExportStepAsArchive(store_.get(), step, destination, options, std::move(progress));
  }
  // `share`: of read_share, of part 0.
  std::unique_ptr<PartsExport> BeginExport(const Reader& share,
                                           const std::map<uint32_t, nb::bytes>& others,
                                           const std::string& destination,
                                           const db::ExportOptions& options) {
    return BeginPartsExport(store_.get(), share.reader(), others, destination, options);
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

  db::StoreStats Stats() {
    const GilReleased release;
    return store_->Stats();
  }
  db::RetentionReport Retention() {
    return Call([&] { return store_->Retention(); });
  }
  // For no steps those of all.
  std::map<uint64_t, std::optional<uint64_t>> FreesBytes(const std::vector<uint64_t>& steps) {
    return Call([&] { return store_->FreesBytes(steps); });
  }
  const db::RecoveryReport& Recovery() const { return store_->recovery(); }

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
  std::shared_ptr<const SavedArrays> saved_arrays_;  // of the newest save; under the GIL
  uint64_t tickets_ = 0;                             // of saves
  std::vector<std::future<Status>> left_;  // the waits that were interrupted; under the GIL
  const pid_t pid_;
};

}  // namespace
}  // namespace stepwell::python

NB_MODULE(_stepwell, m) {
  namespace nb = nanobind;
  namespace sp = stepwell::python;
  using nb::arg;

  sp::EventQueue::InstallForkHandler();
  sp::InstallExitHandler();
  sp::LetThreadsSleepInCalls();
  nb::set_leak_warnings(false);  // stores may live until the process ends

  m.doc() = "The engine of stepwell; use the package stepwell instead.";
  sp::BindEvents(m);
  sp::BindPaths(m);
  sp::BindRows(m);
  sp::BindFlatten(m);
  sp::BindRecords(m);
  sp::BindTree(m);
  sp::BindMatched(m);
  sp::BindImport(m);
  sp::BindView(m);
  sp::BindWatch(m);
  sp::BindExport(m);
  sp::BindDurable(m);
  m.def("fail_at_exit", &sp::FailAtExit);

  nb::class_<sp::Handle>(m, "Handle")
      .def_prop_ro("step", &sp::Handle::step)
      .def_prop_ro("skipped", &sp::Handle::skipped)
      .def_prop_ro("stats", &sp::Handle::stats)
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

  sp::BindRequests(m);
  sp::BindGroup(m);
  sp::BindReader(m);
  sp::BindTransfer(m);
  sp::BindArchive(m);
  sp::BindOverTime(m);
  sp::BindUpdate(m);
  sp::BindSurvey(m);
  sp::BindReports(m);

  nb::class_<sp::Core>(m, "Core")
      .def(nb::init<const std::string&, stepwell::db::StoreOptions>(), arg("path"), arg("options"))
      .def_static(
          "of_run",
          [](nb::object objects, const std::string& name,
             const stepwell::db::StoreOptions& options) {
            return std::make_unique<sp::Core>(
                sp::ValueOrThrow(sp::OpenRun(std::move(objects), name, options)));
          },
          arg("objects"), arg("name"), arg("options"))
      .def("id", &sp::Core::Id)
      .def_prop_ro("path", &sp::Core::Path)
      .def("group_status", &sp::Core::GroupStatus)
      .def("read_share", &sp::Core::ReadShare, arg("step"))
      .def(
          "verify_share",
          [](sp::Core& core, std::optional<uint64_t> step) { return core.Verify(step, false); },
          arg("step").none() = nb::none())
      .def("decide", &sp::Core::Decide, arg("decision"))
      .def("save", &sp::Core::Save, arg("request"), arg("items"), arg("to_numpy"),
           arg("host_copies") = nb::none(),
           nb::sig("def save(self, request: SaveRequest, items: list[ItemRows], "
                   "to_numpy: object, host_copies: object = None) -> Handle"))
      .def("import_orbax", &sp::Core::Import, arg("request"), arg("plan"), arg("share"))
      .def("plan_push", &sp::Core::PlanPush, arg("reader"), arg("lists"))
      .def("plan_pull", &sp::Core::PlanPull, arg("list"), arg("items"))
      .def("save_pulled", &sp::Core::SavePulled, arg("request"), arg("plan"))
      .def("verify_import", &sp::Core::VerifyImport, arg("step"), arg("path"), arg("items"))
      .def("is_copying", &sp::Core::IsCopying)
      .def("wait", &sp::Core::Wait)
      .def("watch_commits", &sp::Core::WatchCommits)
      .def("steps", &sp::Core::Steps)
      .def("newest", &sp::Core::Newest)
      .def("step_numbers", &sp::Core::StepNumbers, arg("last") = nb::none(), arg("tainted") = true)
      .def("metrics", &sp::Core::Metrics)
      .def("survey_metrics", [](sp::Core& core) { return sp::SurveyMetrics(core.reads()); })
      .def(
          "survey",
          [](sp::Core& core, const std::vector<uint64_t>& steps, const sp::SurveyLimits& limits) {
            return sp::SurveyLeaves(core.reads(), steps, limits);
          },
          arg("steps"), arg("limits"))
      .def("read", &sp::Core::Read, arg("step"))
      .def("read_newest", &sp::Core::ReadNewest, nb::sig("def read_newest(self) -> Reader | None"))
      .def("find_in_steps", &sp::Core::FindInSteps, arg("steps"), arg("path").none(),
           arg("gone_ok"),
           nb::sig("def find_in_steps(self, steps: collections.abc.Sequence[int], "
                   "path: str | tuple[typing.Hashable, ...] | None, gone_ok: bool) -> "
                   "list[Selection | None]"))
      .def("delete", &sp::Core::Delete, arg("steps"))
      .def("delete_items", &sp::Core::DeleteItems, arg("step"), arg("items"))
      .def("set_pinned", &sp::Core::SetPinned, arg("steps"), arg("pinned"))
      .def("set_taint", &sp::Core::SetTaint, arg("steps"), arg("why"))
      .def("roll_back", &sp::Core::RollBack, arg("to"), arg("taint"))
      .def("repair", &sp::Core::Repair, arg("accept"))
      .def("reclaim", &sp::Core::Reclaim)
      .def("branch", &sp::Core::Branch, arg("destination"))
      .def(
          "verify",
          [](sp::Core& core, std::optional<uint64_t> step) { return core.Verify(step, true); },
          arg("step").none() = nb::none())
      .def("verify_at_pace", &sp::Core::VerifyAtPace, arg("step"), arg("others"), arg("pace"),
           nb::sig("def verify_at_pace(self, step: int, others: bool, "
                   "pace: collections.abc.Callable[[int], bool]) -> VerifyReport | None"))
      .def("export", &sp::Core::Export, arg("step"), arg("destination"), arg("options"),
           arg("progress").none() = nb::none(),
           nb::sig("def export(self, step: int, destination: str, options: OrbaxOptions, "
                   "progress: collections.abc.Callable[[int, int], object] | None = None) -> "
                   "ExportReport"))
      .def("export_archive", &sp::Core::ExportArchive, arg("step"), arg("destination"),
           arg("options"), arg("progress").none() = nb::none(),
           nb::sig("def export_archive(self, step: int, destination: str, "
                   "options: ArchiveOptions, "
                   "progress: collections.abc.Callable[[int, int], object] | None = None) -> "
                   "ExportReport"))
      .def("begin_export", &sp::Core::BeginExport, arg("share"), arg("others"), arg("destination"),
           arg("options"))
      .def("copy_part", &sp::Core::CopyPart, arg("share"), arg("files"), arg("mode"),
           arg("file_mode"), arg("progress").none(),
           nb::sig("def copy_part(self, share: Reader, "
                   "files: collections.abc.Sequence[PartFile], mode: ExportMode, file_mode: int, "
                   "progress: collections.abc.Callable[[int, int], object] | None) -> bool"))
      .def("open_view", &sp::Core::OpenView, arg("path"), arg("checkpoint"), arg("beside"),
           arg("poll_s"))
      .def("stats", &sp::Core::Stats)
      .def("retention", &sp::Core::Retention)
      .def("frees_bytes", &sp::Core::FreesBytes, arg("steps"))
      .def("recovery", &sp::Core::Recovery, nb::rv_policy::copy)
      .def("close", &sp::Core::Close);
}
