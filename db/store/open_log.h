// SPDX-License-Identifier: Apache-2.0
// Reads the log when a store is opened for writing, and says what was found. Private to db/.
#pragma once

#include <string>

#include "db/log/recovery.h"
#include "db/store.h"
#include "db/store/read_core.h"
#include "format/records.h"
#include "io/log.h"
#include "io/result.h"

namespace stepwell::db {

// Reads the log from the marks of `slot`, or by a scan where they do not say where it ends.
Result<LogState> ReadLog(const std::string& path, const StoreOptions& options,
                         const format::StoreSlot& slot, const ReadCore& core);

// Retention by metric looks at the metrics of all live steps: reads them into `core`, and logs
// those that cannot be read.
void LoadMetrics(const std::string& path, const LogSink& log, ReadCore* core);

// Logs what recovery has found.
void LogRecovery(const std::string& path, const LogSink& log, const RecoveryReport& recovery,
                 bool has_losses);

}  // namespace stepwell::db
