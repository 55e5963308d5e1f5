// SPDX-License-Identifier: Apache-2.0
// C: exports, views, imports.
#include <stepwell/checkpoint.h>

#include <chrono>
#include <memory>
#include <vector>

#include "api/c/support.h"

using stepwell::OkStatus;
using stepwell::Result;
using stepwell::Status;
using stepwell::c::Guard;

struct stepwell_view {
  std::shared_ptr<stepwell::View> view;
};

namespace {

Result<std::vector<std::string>> NamesOf(const char* const* names, size_t count) {
  if (count > 0) STEPWELL_REQUIRE_(names);
  std::vector<std::string> out;
  for (size_t i = 0; i < count; ++i) {
    STEPWELL_REQUIRE_(names[i]);
    out.emplace_back(names[i]);
  }
  return out;
}

// A C callback, which says 0 to stop; empty for NULL.
template <typename... Args>
std::function<bool(Args...)> ToFunction(int (*function)(void*, Args...), void* context) {
  if (function == nullptr) return {};
  return [=](Args... args) { return function(context, args...) != 0; };
}

Result<stepwell::ExportOptions> OptionsOf(const stepwell_export_options* options) {
  stepwell_export_options in;
  STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(options, &in));
  if (in.mode > STEPWELL_EXPORT_COPY || in.on_unsupported > STEPWELL_UNSUPPORTED_WIDEN) {
    return stepwell::InvalidArgumentError("mode or on_unsupported is none that there is");
  }
  stepwell::ExportOptions out;
  out.mode = static_cast<stepwell::ExportMode>(in.mode);
  if (in.layout_v0 != 0) out.layout = stepwell::ExportLayout::kV0;
  if (in.jax_leaves != 0) out.leaves = stepwell::ExportLeaves::kJax;
  if (in.zarr_format != 0) out.zarr_format = in.zarr_format;
  out.on_unsupported = static_cast<stepwell::OnUnsupported>(in.on_unsupported);
  out.file_mode = in.file_mode;
  STEPWELL_ASSIGN_OR_RETURN(out.items, NamesOf(in.items, in.item_count));
  out.step_prefix = stepwell::c::TextOf(in.step_prefix);
  out.step_digits = in.step_digits;
  out.unnamed_default = in.unnamed_default != 0;
  out.progress = ToFunction(in.progress, in.progress_context);
  return out;
}

Result<stepwell::ImportOptions> OptionsOf(const stepwell_import_options* options) {
  stepwell_import_options in;
  STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(options, &in));
  if (in.if_exists > STEPWELL_IF_EXISTS_SKIP) {
    return stepwell::InvalidArgumentError("if_exists is none that there is");
  }
  stepwell::ImportOptions out;
  STEPWELL_ASSIGN_OR_RETURN(out.items, NamesOf(in.items, in.item_count));
  out.if_exists = static_cast<stepwell::IfExists>(in.if_exists);
  out.threads = in.threads;
  out.memory_bytes_max = in.memory_bytes_max;
  out.keep_waiting = ToFunction(in.keep_waiting, in.keep_waiting_context);
  return out;
}

// Calls `exporting`, which returns a Result<ExportReport>, once there is a place for the report.
template <typename Exporting>
Status Export(stepwell_export_report* report, const Exporting& exporting) {
  stepwell_export_report out{};
  if (report != nullptr) STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructOut(out, report));
  STEPWELL_ASSIGN_OR_RETURN(const stepwell::ExportReport done, exporting());
  if (report == nullptr) return OkStatus();
  out.mode = static_cast<stepwell_export_mode>(done.mode);
  out.leaves = done.leaves;
  out.chunks = done.chunks;
  out.step_bytes = done.step_bytes;
  out.apparent_bytes = done.apparent_bytes;
  out.written_bytes = done.written_bytes;
  out.skipped = done.skipped.size();
  out.widened = done.widened.size();
  return stepwell::c::CopyStructOut(out, report);
}

}  // namespace

stepwell_code stepwell_export(stepwell_store* store, uint64_t step, const char* item,
                              const char* path, const char* destination,
                              const stepwell_export_options* options,
                              stepwell_export_report* report) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_REQUIRE_(path);
    STEPWELL_REQUIRE_(destination);
    STEPWELL_ASSIGN_OR_RETURN(const stepwell::ExportOptions given, OptionsOf(options));
    return Export(report, [&] {
      return store->store.Export(step, destination, given, stepwell::c::PathOf(item, path));
    });
  });
}

stepwell_code stepwell_export_archive(stepwell_store* store, uint64_t step, const char* item,
                                      const char* path, const char* destination,
                                      const stepwell_archive_options* options,
                                      stepwell_export_report* report) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_REQUIRE_(path);
    STEPWELL_REQUIRE_(destination);
    stepwell_archive_options in;
    STEPWELL_RETURN_IF_ERROR(stepwell::c::CopyStructIn(options, &in));
    if (in.format > STEPWELL_ARCHIVE_NPZ || in.on_unsupported > STEPWELL_UNSUPPORTED_WIDEN) {
      return stepwell::InvalidArgumentError("format or on_unsupported is none that there is");
    }
    const stepwell::ArchiveOptions given{
        .format = static_cast<stepwell::ArchiveFormat>(in.format),
        .on_unsupported = static_cast<stepwell::OnUnsupported>(in.on_unsupported),
        .progress = ToFunction(in.progress, in.progress_context)};
    return Export(report, [&] {
      return store->store.ExportArchive(step, destination, given, stepwell::c::PathOf(item, path));
    });
  });
}

stepwell_code stepwell_verify_export(const char* checkpoint, stepwell_verify_report** report) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(report);
    *report = nullptr;
    STEPWELL_REQUIRE_(checkpoint);
    STEPWELL_ASSIGN_OR_RETURN(auto found, stepwell::VerifyExport(checkpoint));
    *report = new stepwell_verify_report{std::move(found)};
    return OkStatus();
  });
}

stepwell_code stepwell_view_open(stepwell_store* store, const char* directory,
                                 const stepwell_export_options* checkpoint, int64_t poll_ms,
                                 stepwell_view** view) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(view);
    *view = nullptr;
    STEPWELL_REQUIRE_(store);
    STEPWELL_REQUIRE_(directory);
    stepwell::ViewOptions options;
    STEPWELL_ASSIGN_OR_RETURN(options.checkpoint, OptionsOf(checkpoint));
    if (poll_ms != 0) options.poll = std::chrono::milliseconds(poll_ms);
    STEPWELL_ASSIGN_OR_RETURN(auto opened, store->store.OpenView(directory, options));
    *view = new stepwell_view{std::move(opened)};
    return OkStatus();
  });
}

stepwell_code stepwell_view_wait(stepwell_view* view, int64_t timeout_ms) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(view);
    STEPWELL_ASSIGN_OR_RETURN(const bool current,
                              view->view->WaitUntilCurrent(std::chrono::milliseconds(timeout_ms)));
    if (current) return OkStatus();
    return stepwell::DeadlineExceededError("the view does not show everything yet");
  });
}

stepwell_code stepwell_view_get_stats(const stepwell_view* view, stepwell_view_stats* stats) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(view);
    const stepwell::ViewStats now = view->view->Stats();
    stepwell_view_stats out{};
    out.shown = now.shown;
    out.not_shown = now.not_shown;
    out.errors = now.errors;
    out.following = now.following ? 1 : 0;
    return stepwell::c::CopyStructOut(out, stats);
  });
}

stepwell_code stepwell_view_close(stepwell_view* view, int keep) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(view);
    return view->view->Close(keep != 0);
  });
}

void stepwell_view_free(stepwell_view* view) { delete view; }

stepwell_code stepwell_import(stepwell_store* store, const char* checkpoint, uint64_t step,
                              const stepwell_import_options* options, stepwell_handle** handle) {
  return Guard([&]() -> Status {
    if (handle != nullptr) *handle = nullptr;
    STEPWELL_REQUIRE_(store);
    STEPWELL_REQUIRE_(checkpoint);
    STEPWELL_ASSIGN_OR_RETURN(const stepwell::ImportOptions given, OptionsOf(options));
    STEPWELL_ASSIGN_OR_RETURN(auto saving, store->store.Import(checkpoint, step, given));
    if (handle != nullptr) *handle = new stepwell_handle{std::move(saving)};
    return OkStatus();
  });
}

stepwell_code stepwell_verify_import(stepwell_store* store, const char* checkpoint, uint64_t step,
                                     const stepwell_import_options* options) {
  return Guard([&]() -> Status {
    STEPWELL_REQUIRE_(store);
    STEPWELL_REQUIRE_(checkpoint);
    STEPWELL_ASSIGN_OR_RETURN(const stepwell::ImportOptions given, OptionsOf(options));
    return store->store.VerifyImport(checkpoint, step, given);
  });
}
