// SPDX-License-Identifier: Apache-2.0
// The file that a session's trace is written to. Private to db/.
#pragma once

#include <memory>
#include <string>

#include "db/stats/instruments.h"
#include "io/clock.h"
#include "io/disk.h"
#include "io/log.h"
#include "io/result.h"

namespace stepwell::db {

// Opens the file `trace_path` for the store at `path`. Null where `trace_path` is empty.
Result<std::unique_ptr<Trace>> OpenTrace(const std::string& path, const std::string& trace_path,
                                         io::FileSystem* file_system, io::Clock* clock);

// Writes `trace`, which may be null, and logs what went wrong.
void WriteTrace(const std::string& path, const LogSink& log, Trace* trace);

}  // namespace stepwell::db
