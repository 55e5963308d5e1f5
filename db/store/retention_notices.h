// SPDX-License-Identifier: Apache-2.0
// Tells users and other processes of the rules that a writing store applies. Private to db/.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <stepwell/reports.h>

#include "db/log/live_steps.h"
#include "db/store.h"
#include "io/disk.h"
#include "io/log.h"

namespace stepwell::db {

// Reports the rules of a session: at open, with a save that they will not keep, on request, and in
// the file RETENTION. Thread-safe.
class RetentionNotices {
 public:
  struct Options {
    std::string path;
    std::vector<KeepRule> keep;
    bool is_part = false;  // of a group, but not part 0, which applies the rules
    uint64_t since = 0;    // the newest commit of the session before
    LogSink log;
    const LiveSteps* live = nullptr;  // outlives this
    io::FileSystem* file_system = nullptr;
  };

  explicit RetentionNotices(Options options);

  RetentionReport Report() const;
  void WarnAtOpen() const;
  // Before a save. Each does what it does once a session.
  void RecordRules();
  void WarnIfNotKept(uint64_t step, const std::string& metrics_json);

 private:
  const Options options_;
  std::atomic<bool> warned_not_kept_{false};
  std::atomic<bool> recorded_rules_{false};
};

}  // namespace stepwell::db
