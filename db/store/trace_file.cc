// SPDX-License-Identifier: Apache-2.0
#include "db/store/trace_file.h"

#include <utility>

#include "db/layout.h"
#include "io/beneath.h"

namespace stepwell::db {

// Opened at once, so that a path that cannot be written is an error now and not at the end.
Result<std::unique_ptr<Trace>> OpenTrace(const std::string& path, const std::string& trace_path,
                                         io::FileSystem* file_system, io::Clock* clock) {
  if (trace_path.empty()) return std::unique_ptr<Trace>();
  const io::FileOpenOptions create = {.write = true, .create = true};
  // It tells of the store's steps, so it is as private as they are.
  const auto slot = file_system->Stat(SlotFilePath(path));
  const bool is_private = slot.ok() && (slot->mode & 077) == 0;
  const std::string folder = ParentOf(trace_path);
  auto file =
      is_private
          ? io::FileSystemBeneath(folder, io::FileModes::kPrivate)
                ->Open(StrCat(folder, "/", trace_path.substr(trace_path.rfind('/') + 1)), create)
          : file_system->Open(trace_path, create);
  if (file.status().code() == StatusCode::kNotFound) {
    return InvalidArgumentError(StrCat("the trace's directory does not exist: ", trace_path));
  }
  if (!file.ok()) return file.status().WithContext("the trace file");
  return std::make_unique<Trace>(std::move(*file), clock, path);
}

void WriteTrace(const std::string& path, const LogSink& log, Trace* trace) {
  if (trace == nullptr) return;
  if (Status status = trace->Write(); !status.ok()) {
    Log(log, LogLevel::kError, StrCat(path, ": the trace was not written: ", status.message()));
  } else if (const uint64_t dropped = trace->dropped(); dropped > 0) {
    Log(log, LogLevel::kWarning,
        StrCat(path, ": the trace has the newest ", kTraceSpansMax, " spans; ", dropped,
               " older ones were dropped"));
  }
}

}  // namespace stepwell::db
