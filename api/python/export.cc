// SPDX-License-Identifier: Apache-2.0
#include "api/python/export.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "api/python/bindings.h"
#include "api/python/errors.h"
#include "api/python/gil.h"
#include "api/python/interrupt.h"

namespace stepwell::python {

namespace nb = nanobind;

namespace {

using ProgressFunction = std::function<bool(uint64_t done_bytes, uint64_t total_bytes)>;

// Runs function(progress), which gives a Result.
template <typename Function>
auto RunWithProgress(nb::object callable, Function run) {
  Progress progress(std::move(callable));
  return RunCancellable(
      [&](const std::atomic<bool>& cancelled) {
        const ProgressFunction function = [&](uint64_t done_bytes, uint64_t total_bytes) {
          progress.Set(done_bytes, total_bytes);
          return !cancelled.load();
        };
        return run(function);
      },
      [&] { progress.Report(); });
}

// An option of bytes that need not be UTF-8.
template <typename Options>
void BindSubtree(nb::class_<Options>& options) {
  options.def_prop_rw(
      "subtree_key",
      [](const Options& self) {
        return nb::bytes(self.subtree_key.data(), self.subtree_key.size());
      },
      [](Options& self, const nb::bytes& key) {
        self.subtree_key.assign(key.c_str(), key.size());
      });
}

}  // namespace

db::ExportReport ExportStep(db::StoreReader* store, uint64_t step, const std::string& destination,
                            db::ExportOptions options, nb::object progress) {
  return RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    options.progress = function;
    return db::Export(*store, step, destination, options);
  });
}

db::ExportReport ExportStepAsArchive(db::StoreReader* store, uint64_t step,
                                     const std::string& destination, db::ArchiveOptions options,
                                     nb::object progress) {
  return RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    options.progress = function;
    return db::ExportArchive(*store, step, destination, options);
  });
}

// ---- of a step whose parts lie on disks of several machines -------------------------------------

PartsExport::PartsExport(std::unique_ptr<db::PartsExport> made)
    : made_(std::move(made)), pid_(getpid()) {}

PartsExport::~PartsExport() {
  if (pid_ != getpid()) (void)made_.release();  // it is the parent's
}

std::string PartsExport::mark() const { return made_->mark(); }

const std::vector<db::PartFile>& PartsExport::files() const { return made_->files(); }

db::ExportReport PartsExport::Finish(bool cloned, nb::object progress) {
  return RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    return made_->Finish(cloned, function);
  });
}

void PartsExport::Close() {
  GilReleased release;
  made_.reset();
}

std::unique_ptr<PartsExport> BeginPartsExport(db::StoreReader* store,
                                              std::shared_ptr<db::StepReader> own,
                                              const std::map<uint32_t, nb::bytes>& others,
                                              const std::string& destination,
                                              db::ExportOptions options) {
  std::map<uint32_t, std::string> records;
  for (const auto& [part, bytes] : others) {
    records.emplace(part, std::string(bytes.c_str(), bytes.size()));
  }
  return std::make_unique<PartsExport>(
      RunWithProgress(nb::none(), [&](const ProgressFunction& function) {
        options.progress = function;
        return db::PartsExport::Begin(*store, own, records, destination, options);
      }));
}

bool CopyPart(db::StoreReader* store, db::StepReader* share, const std::vector<db::PartFile>& files,
              ExportMode mode, uint32_t file_mode, nb::object progress) {
  db::PartCopyOptions options;
  options.mode = mode;
  options.file_mode = file_mode;
  return RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    options.progress = function;
    return db::CopyPartFiles(*store, *share, files, options);
  });
}

void BindExport(nb::module_& m) {
  // The names of the values are those that users give.
  nb::enum_<ExportMode>(m, "ExportMode")
      .value("auto", ExportMode::kAuto)
      .value("link", ExportMode::kLink)
      .value("reflink", ExportMode::kReflink)
      .value("copy", ExportMode::kCopy);
  nb::enum_<ExportLayout>(m, "ExportLayout")
      .value("v1", ExportLayout::kV1)
      .value("v0", ExportLayout::kV0);
  nb::enum_<ExportLeaves>(m, "ExportLeaves")
      .value("numpy", ExportLeaves::kNumpy)
      .value("jax", ExportLeaves::kJax);
  nb::enum_<OnUnsupported>(m, "OnUnsupported")
      .value("error", OnUnsupported::kError)
      .value("skip", OnUnsupported::kSkip)
      .value("widen", OnUnsupported::kWiden);
  nb::enum_<ArchiveFormat>(m, "ArchiveFormat")
      .value("safetensors", ArchiveFormat::kSafetensors)
      .value("npz", ArchiveFormat::kNpz);

  nb::class_<db::ExportOptions> orbax(m, "OrbaxOptions");
  orbax.def(nb::init<>())
      .def_rw("mode", &db::ExportOptions::mode)
      .def_rw("layout", &db::ExportOptions::layout)
      .def_rw("leaves", &db::ExportOptions::leaves)
      .def_rw("on_unsupported", &db::ExportOptions::on_unsupported)
      .def_rw("zarr_format", &db::ExportOptions::zarr_format)
      .def_rw("items", &db::ExportOptions::items)
      .def_rw("step_prefix", &db::ExportOptions::step_prefix)
      .def_rw("step_prefix_verbatim", &db::ExportOptions::step_prefix_verbatim)
      .def_rw("step_digits", &db::ExportOptions::step_digits)
      .def_rw("unnamed_default", &db::ExportOptions::unnamed_default)
      .def_rw("file_mode", &db::ExportOptions::file_mode)
      .def_rw("data_file_bytes", &db::ExportOptions::data_file_bytes);
  BindSubtree(orbax);
  nb::class_<db::ArchiveOptions> archive(m, "ArchiveOptions");
  archive.def(nb::init<>())
      .def_rw("format", &db::ArchiveOptions::format)
      .def_rw("on_unsupported", &db::ArchiveOptions::on_unsupported);
  BindSubtree(archive);

  using Report = db::ExportReport;
  nb::class_<Report::Leaf>(m, "ExportedLeaf")
      .def_ro("path", &Report::Leaf::path)
      .def_ro("reason", &Report::Leaf::reason);
  nb::class_<Report>(m, "ExportReport")
      .def_ro("path", &Report::path)
      .def_ro("mode", &Report::mode)
      .def_ro("leaves", &Report::leaves)
      .def_ro("chunks", &Report::chunks)
      .def_ro("step_bytes", &Report::step_bytes)
      .def_ro("apparent_bytes", &Report::apparent_bytes)
      .def_ro("written_bytes", &Report::written_bytes)
      .def_ro("skipped", &Report::skipped)
      .def_ro("widened", &Report::widened)
      .def_ro("as_numpy", &Report::as_numpy)
      .def_ro("as_text", &Report::as_text);

  using db::ByteRun;
  nb::class_<ByteRun>(m, "ByteRun")
      .def(nb::init<uint64_t, uint64_t, uint64_t, uint64_t>(), nb::arg("segment"), nb::arg("start"),
           nb::arg("length"), nb::arg("to"))
      .def_ro("segment", &ByteRun::segment)
      .def_ro("start", &ByteRun::from)
      .def_ro("length", &ByteRun::length)
      .def_ro("to", &ByteRun::to);
  using db::PartFile;
  nb::class_<PartFile>(m, "PartFile")
      .def(nb::init<uint32_t, std::string, std::vector<ByteRun>>(), nb::arg("part"),
           nb::arg("path"), nb::arg("runs"))
      .def_ro("part", &PartFile::part)
      .def_ro("path", &PartFile::path)
      .def_ro("runs", &PartFile::runs);
  nb::class_<PartsExport>(m, "PartsExport")
      .def_prop_ro("mark", &PartsExport::mark)
      .def_prop_ro("files", &PartsExport::files)
      .def("finish", &PartsExport::Finish, nb::arg("cloned"), nb::arg("progress").none(),
           nb::sig("def finish(self, cloned: bool, "
                   "progress: collections.abc.Callable[[int, int], object] | None) -> "
                   "ExportReport"))
      .def("close", &PartsExport::Close);
}

}  // namespace stepwell::python
