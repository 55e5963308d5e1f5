// SPDX-License-Identifier: Apache-2.0
#include "db/store/open_log.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "db/layout.h"
#include "db/log/lock.h"

namespace stepwell::db {

Result<LogState> ReadLog(const std::string& path, const StoreOptions& options,
                         const format::StoreSlot& slot, const ReadCore& core) {
  io::FileSystem* file_system = core.environment.file_system;
  STEPWELL_ASSIGN_OR_RETURN(const auto ids, SegmentIds(file_system, path));
  if (slot.durable_commit == 0 && slot.clean && ids.empty()) return LogState{};  // a new store
  bool by_marks = false;
  if (slot.clean) {
    STEPWELL_ASSIGN_OR_RETURN(by_marks, LogEndsAt(slot, file_system, path, *core.files));
    if (!by_marks) {
      Log(options.log, LogLevel::kWarning,
          StrCat(path, ": STEPWELL is older than the log, which is scanned"));
    }
  }
  if (by_marks) {
    auto state = RecoverByMarks(slot, *core.files, nullptr);
    if (state.ok()) {
      // The catalog is of the past: newer segments are not in it, removed ones still are.
      std::map<uint64_t, SegmentInfo> known;
      for (const SegmentInfo& info : state->segments) known[info.segment] = info;
      state->segments.clear();
      for (const uint64_t id : ids) {
        SegmentInfo& info = known[id];
        info.segment = id;
        state->segments.push_back(info);
      }
      return state;
    }
    if (!IsDamage(state.status()) && !IsUnreadable(state.status())) return state.status();
    Log(options.log, LogLevel::kWarning,
        StrCat(path, ": scanning the log: ", state.status().message()));
  }
  ScanOptions scan;
  scan.discard = options.discard;
  scan.check_payloads = [&core](const auto& leaves, const auto& bad) {
    return core.restorer->Check(leaves, bad, [](uint64_t) { return true; },
                                {.skip_referenced = true});
  };
  return RecoverByScan(file_system, path, slot, *core.files, scan);
}

void LoadMetrics(const std::string& path, const LogSink& log, ReadCore* core) {
  const auto load = [&](const LiveSteps::List& steps, std::vector<StepTexts> all) {
    for (size_t i = 0; i < all.size(); ++i) {
      StepTexts& texts = all[i];
      std::optional<std::string> metrics;
      if (texts.status.ok()) metrics = std::move(texts.metrics_json);
      core->live.SetMetrics(steps[i]->record, metrics);
      if (metrics) continue;
      Log(log, LogLevel::kError,
          StrCat(path, ": the metrics of step ", texts.step,
                 " cannot be read, so rules that keep the best keep it: ", texts.status.message()));
    }
  };
  const LiveSteps::List live = core->live.All();
  load(live, core->index->Texts(live));
  const LiveSteps::List undecided = core->live.Undecided();
  std::vector<StepTexts> texts;
  for (const auto& step : undecided) texts.push_back(TextsInLog(*step, *core->files));
  load(undecided, std::move(texts));
}

void LogRecovery(const std::string& path, const LogSink& log, const RecoveryReport& recovery,
                 bool has_losses) {
  for (const std::string& problem : recovery.problems) {
    Log(log, LogLevel::kError, StrCat(path, ": ", problem));
  }
  if (has_losses) {
    Log(log, LogLevel::kWarning,
        StrCat(
            path,
            ": until `stepwell repair --accept` (Store::Repair), retention deletes nothing and no "
            "space is given back: the store grows with each save"));
  }
  for (const std::string& repaired : recovery.repaired) {
    Log(log, LogLevel::kWarning, StrCat(path, ": ", repaired));
  }
  if (!recovery.clean) {
    Log(log, LogLevel::kInfo,
        StrCat(path, ": the last writer did not close the store; ", recovery.commits_recovered,
               " commits recovered, ", recovery.commits_rejected, " incomplete ones discarded"));
  }
}

}  // namespace stepwell::db
