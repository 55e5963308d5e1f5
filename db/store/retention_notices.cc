// SPDX-License-Identifier: Apache-2.0
#include "db/store/retention_notices.h"

#include <utility>

#include "db/commit/retention_report.h"
#include "db/layout.h"

namespace stepwell::db {

RetentionNotices::RetentionNotices(Options options) : options_(std::move(options)) {}

RetentionReport RetentionNotices::Report() const {
  std::vector<KeepCandidate> candidates;
  for (const auto& live : options_.live->All()) candidates.push_back(CandidateOf(*live));
  return ReportRetention(options_.keep, std::move(candidates), !options_.live->Losses().empty());
}

// A typo in a rule, or a tighter one than before, would else be seen by what is gone.
void RetentionNotices::WarnAtOpen() const {
  if (options_.keep.empty() || options_.is_part) return;
  for (const std::string& warning : Report().warnings) {
    Log(options_.log, LogLevel::kWarning, StrCat(options_.path, ": ", warning));
  }
}

// For other processes; a session that saves nothing has applied no rules.
void RetentionNotices::RecordRules() {
  if (options_.is_part || recorded_rules_.exchange(true)) return;
  if (options_.keep.empty() && !options_.file_system->Stat(RetentionFilePath(options_.path)).ok()) {
    return;
  }
  const Status status =
      WriteRules(options_.file_system, options_.path, {options_.since, options_.keep});
  if (status.ok()) return;
  Log(options_.log, LogLevel::kWarning,
      StrCat(options_.path,
             ": other processes do not see the rules of retention: ", status.message()));
}

// It is the same with each save.
void RetentionNotices::WarnIfNotKept(uint64_t step, const std::string& metrics_json) {
  if (options_.is_part || warned_not_kept_.load()) return;
  const std::string doubt =
      NotKeptWarning(options_.keep, step, options_.live->HighestStep(), metrics_json);
  if (doubt.empty() || warned_not_kept_.exchange(true)) return;
  Log(options_.log, LogLevel::kWarning, StrCat(options_.path, ": ", doubt));
}

}  // namespace stepwell::db
