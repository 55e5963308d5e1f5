// SPDX-License-Identifier: Apache-2.0
#include "api/python/export.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <map>

#include "api/python/errors.h"
#include "api/python/interrupt.h"
#include "api/python/leaves.h"
#include "db/export/archive/archive.h"
#include "format/key.h"

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
      [&] { progress.Tell(); });
}

nb::tuple ReportTuple(const db::ExportReport& report) {
  const auto pairs = [](const std::vector<db::ExportReport::Leaf>& list) {
    nb::list out;
    for (const auto& leaf : list) out.append(nb::make_tuple(leaf.path, leaf.reason));
    return out;
  };
  return nb::make_tuple(report.path, static_cast<int>(report.mode), report.leaves, report.chunks,
                        report.step_bytes, report.apparent_bytes, report.written_bytes,
                        pairs(report.skipped), pairs(report.widened), pairs(report.as_numpy));
}

}  // namespace

std::string SubtreeKey(const Subtree& subtree) {
  if (!subtree) return "";
  format::KeyPath path;
  for (nb::handle component : subtree->second) path.push_back(ComponentFromPython(component));
  return ValueOrThrow(format::EncodeLeafKey(subtree->first, path));
}

db::ExportOptions ExportOptionsFromPython(int mode, int layout, int leaves, int on_unsupported,
                                          int zarr, const Subtree& subtree, std::string step_prefix,
                                          int step_digits, bool unnamed_default,
                                          uint64_t data_file_bytes, uint32_t file_mode) {
  db::ExportOptions options;
  options.mode = static_cast<db::ExportMode>(mode);
  options.layout = static_cast<db::ExportLayout>(layout);
  options.leaves = static_cast<db::ExportLeaves>(leaves);
  options.on_unsupported = static_cast<db::OnUnsupported>(on_unsupported);
  options.zarr_format = zarr;
  options.step_prefix = std::move(step_prefix);
  options.step_digits = step_digits;
  options.unnamed_default = unnamed_default;
  options.data_file_bytes = data_file_bytes;
  options.file_mode = file_mode;
  options.subtree_key = SubtreeKey(subtree);
  return options;
}

nb::tuple ExportStep(db::Store* store, uint64_t step, const std::string& destination,
                     db::ExportOptions options, nb::object progress) {
  return ReportTuple(RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    options.progress = function;
    return db::Export(*store, step, destination, options);
  }));
}

nb::tuple ExportStepAsArchive(db::Store* store, uint64_t step, const std::string& destination,
                              int format, int on_unsupported, const Subtree& subtree,
                              nb::object progress) {
  db::ArchiveOptions options;
  options.format = static_cast<db::ArchiveFormat>(format);
  options.on_unsupported = static_cast<db::OnUnsupported>(on_unsupported);
  options.subtree_key = SubtreeKey(subtree);
  return ReportTuple(RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    options.progress = function;
    return db::ExportArchive(*store, step, destination, options);
  }));
}

// ---- of a step whose parts lie on disks of several machines -------------------------------------

PartsExport::PartsExport(std::unique_ptr<db::PartsExport> made)
    : made_(std::move(made)), pid_(getpid()) {}

PartsExport::~PartsExport() {
  if (pid_ != getpid()) (void)made_.release();  // what is there is the parent's
}

std::string PartsExport::mark() const { return made_->mark(); }

std::vector<std::pair<uint32_t, PartFileTuple>> PartsExport::Files() const {
  std::vector<std::pair<uint32_t, PartFileTuple>> files;
  for (const db::PartFile& file : made_->files()) {
    PartFileTuple& told = files.emplace_back(file.part, PartFileTuple{file.path, {}}).second;
    for (const db::ByteRun& run : file.runs) {
      told.second.emplace_back(run.segment, run.from, run.length, run.to);
    }
  }
  return files;
}

nb::tuple PartsExport::Finish(bool cloned, nb::object progress) {
  return ReportTuple(RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    return made_->Finish(cloned, function);
  }));
}

void PartsExport::Close() {
  nb::gil_scoped_release release;
  made_.reset();
}

std::unique_ptr<PartsExport> BeginPartsExport(
    db::Store* store, std::shared_ptr<db::StepReader> own,
    const std::vector<std::pair<uint32_t, nb::bytes>>& others, const std::string& destination,
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

bool CopyPart(db::Store* store, db::StepReader* share, const std::vector<PartFileTuple>& files,
              int mode, uint32_t file_mode, nb::object progress) {
  std::vector<db::PartFile> wanted;
  for (const auto& [path, runs] : files) {
    db::PartFile& file = wanted.emplace_back();
    file.path = path;
    for (const auto& [segment, from, length, to] : runs) {
      file.runs.push_back({.segment = segment, .from = from, .length = length, .to = to});
    }
  }
  db::PartCopyOptions options;
  options.mode = static_cast<db::ExportMode>(mode);
  options.file_mode = file_mode;
  return RunWithProgress(std::move(progress), [&](const ProgressFunction& function) {
    options.progress = function;
    return db::CopyPartFiles(*store, *share, wanted, options);
  });
}

void BindExport(nb::module_& m) {
  nb::class_<PartsExport>(m, "PartsExport")
      .def_prop_ro("mark", &PartsExport::mark)
      .def("files", &PartsExport::Files)
      .def("finish", &PartsExport::Finish, nb::arg("cloned"), nb::arg("progress").none(),
           nb::sig("def finish(self, cloned: bool, "
                   "progress: collections.abc.Callable[[int, int], object] | None) -> "
                   "tuple[str, int, int, int, int, int, int, list[tuple[str, str]], "
                   "list[tuple[str, str]], list[tuple[str, str]]]"))
      .def("close", &PartsExport::Close);
}

}  // namespace stepwell::python
