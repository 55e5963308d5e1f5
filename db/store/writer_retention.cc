// SPDX-License-Identifier: Apache-2.0
// Reports the rules of a writing store: at open, with a save that they will not keep, on request.
#include <utility>

#include "db/commit/retention_report.h"
#include "db/group.h"
#include "db/layout.h"
#include "db/log/lock.h"
#include "db/store/writer_store.h"

namespace stepwell::db {

// A typo in a rule, or a tighter one than before, would else be seen by what is gone.
void WriterStore::WarnOfRetention() {
  if (options_.keep.empty() || part_.part != 0) return;
  const auto report = Retention();
  if (!report.ok()) return;
  for (const std::string& warning : report->warnings) {
    Log(options_.log, LogLevel::kWarning, StrCat(path_, ": ", warning));
  }
}

// For other processes; a session that saves nothing has applied no rules.
void WriterStore::RecordRules() {
  if (part_.part != 0 || recorded_rules_.exchange(true)) return;
  io::FileSystem* const files = environment_.file_system;
  if (options_.keep.empty() && !files->Stat(RetentionFilePath(path_)).ok()) return;
  const Status status = WriteRules(files, path_, {tip_at_open_, options_.keep});
  if (status.ok()) return;
  Log(options_.log, LogLevel::kWarning,
      StrCat(path_, ": other processes do not see the rules of retention: ", status.message()));
}

Result<RetentionReport> WriterStore::Retention() {
  STEPWELL_RETURN_IF_ERROR(CheckNotForked(pid_));
  std::vector<KeepCandidate> candidates;
  for (const auto& live : core_->live.All()) candidates.push_back(CandidateOf(*live));
  return ReportRetention(options_.keep, std::move(candidates), !core_->live.Losses().empty());
}

// Once a session: it is the same with each save.
void WriterStore::WarnIfNotKept(uint64_t step, const std::string& metrics_json) {
  const std::string doubt =
      NotKeptWarning(options_.keep, step, core_->live.NewestStep(), metrics_json);
  if (doubt.empty() || warned_not_kept_.exchange(true)) return;
  Log(options_.log, LogLevel::kWarning, StrCat(path_, ": ", doubt));
}

}  // namespace stepwell::db
