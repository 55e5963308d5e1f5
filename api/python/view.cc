// SPDX-License-Identifier: Apache-2.0
#include "api/python/view.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/events.h"
#include "api/python/gil.h"
#include "api/python/interrupt.h"
#include "db/layout.h"
#include "db/view/shown.h"
#include "io/open_disk.h"

namespace stepwell::python {
namespace {

namespace nb = nanobind;
using std::chrono::milliseconds;

milliseconds Milliseconds(double seconds) {
  return std::chrono::ceil<milliseconds>(std::chrono::duration<double>(seconds));
}

std::optional<db::ShownStep> MadeByView(const std::string& path) {
  return Call([&] { return db::FindShownStep(path); });
}

std::vector<std::string> StoresIn(const std::string& directory) {
  const GilReleased release;
  return db::StoresIn(io::LocalFileSystem(), directory);
}

}  // namespace

View::View(std::shared_ptr<db::OrbaxView> view) : view_(std::move(view)), pid_(getpid()) {}

View::~View() {
  // The store has it, too; in a forked child it is the parent's.
  if (pid_ != getpid()) (void)new auto(std::move(view_));
}

bool View::Wait(double timeout_s) {
  return RunInterruptible([&](const std::function<bool()>& keep_waiting) {
    return view_->WaitUntilCurrent(Milliseconds(timeout_s), keep_waiting);
  });
}

void View::Close(bool keep) {
  Status status;
  {
    GilReleased release;
    status = view_->Close(keep);
  }
  ThrowIfError(status);
}

std::unique_ptr<View> OpenView(db::StoreReader* store, const std::string& path,
                               const ExportOptions& checkpoint, bool beside, double poll_s) {
  db::ViewOptions options;
  options.checkpoint = checkpoint;
  options.beside = beside;
  options.poll = Milliseconds(poll_s);
  options.log = [](LogLevel level, std::string_view text) { EventQueue::Get().Log(level, text); };
  std::optional<Result<std::shared_ptr<db::OrbaxView>>> view;
  {
    GilReleased release;
    view.emplace(db::OpenView(*store, path, options));
  }
  return std::make_unique<View>(ValueOrThrow(*std::move(view)));
}

void BindView(nb::module_& m) {
  nb::class_<db::ShownStep>(m, "ShownStep")
      .def_ro("store_path", &db::ShownStep::store_path)
      .def_ro("step", &db::ShownStep::step);
  m.def("made_by_view", &MadeByView, nb::arg("path"));
  m.def("stores_in", &StoresIn, nb::arg("directory"));
  nb::class_<View>(m, "View")
      .def_prop_ro("path", &View::path)
      .def("path_of", &View::PathOf, nb::arg("step"))
      .def("wait", &View::Wait, nb::arg("timeout_s"))
      .def("close", &View::Close, nb::arg("keep"))
      .def("stats", &View::Stats);
}

}  // namespace stepwell::python
