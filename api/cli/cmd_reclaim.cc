// SPDX-License-Identifier: Apache-2.0
// `stepwell reclaim STORE`: gives back the space of deleted steps, now.
#include <algorithm>
#include <chrono>
#include <future>

#include "api/cli/command.h"
#include "api/cli/output.h"
#include "api/cli/text.h"

namespace stepwell::cli {
namespace {

// Shows progress as a share of the dead bytes that there were at the beginning.
Result<ReclaimReport> ReclaimWithProgress(Store* store) {
  Progress progress("reclaiming");
  if (!progress.enabled()) return store->Reclaim();
  STEPWELL_ASSIGN_OR_RETURN(const StoreStats before, store->Stats());
  auto running = std::async(std::launch::async, [store] { return store->Reclaim(); });
  while (running.wait_for(std::chrono::milliseconds(200)) != std::future_status::ready) {
    const Result<StoreStats> now = store->Stats();
    if (!now.ok()) continue;
    const uint64_t dead = std::min(now->space.dead_bytes, before.space.dead_bytes);
    progress.Update(before.space.dead_bytes - dead, before.space.dead_bytes);
  }
  return running.get();
}

Result<CommandResult> RunReclaim(const StoreArguments& arguments, Invocation* invocation) {
  STEPWELL_ASSIGN_OR_RETURN(auto store, OpenToChange(arguments.store, invocation));
  STEPWELL_ASSIGN_OR_RETURN(const ReclaimReport report, ReclaimWithProgress(&store));
  STEPWELL_ASSIGN_OR_RETURN(const StoreStats stats, store.Stats());
  STEPWELL_RETURN_IF_ERROR(store.Close());
  CommandResult outcome;
  if (invocation->json) {
    outcome.text = JsonText({{"schema", kJsonSchema},
                             {"store", arguments.store},
                             {"bytes_before", report.bytes_before},
                             {"bytes_after", report.bytes_after},
                             {"segments_removed", report.segments_removed},
                             {"segments_recycled", report.segments_recycled},
                             {"bytes_punched", report.bytes_punched},
                             {"bytes_moved", report.bytes_moved},
                             {"bytes_pinned_by_readers", report.bytes_pinned_by_readers},
                             {"bytes_linked", report.bytes_linked}});
    return outcome;
  }
  const uint64_t freed =
      report.bytes_before > report.bytes_after ? report.bytes_before - report.bytes_after : 0;
  outcome.text = StrCat("gave back ", HumanBytes(freed), ": segments had ",
                        HumanBytes(report.bytes_before), ", have ", HumanBytes(report.bytes_after),
                        "\n", Plural(report.segments_removed, "segment", "segments"), " removed, ",
                        HumanCount(report.segments_recycled), " kept for reuse, ",
                        HumanBytes(report.bytes_punched), " punched out, ",
                        HumanBytes(report.bytes_moved), " moved\n");
  if (report.bytes_pinned_by_readers > 0) {
    outcome.text += StrCat(HumanBytes(report.bytes_pinned_by_readers),
                           " of deleted steps stay until readers close\n");
  }
  const uint64_t named = report.bytes_pinned_by_readers + report.bytes_linked;
  if (freed == 0 && stats.space.dead_bytes > named) {
    outcome.text += StrCat(HumanBytes(stats.space.dead_bytes - named),
                           " of deleted steps stay in segments that are still being written, or "
                           "that the next recovery reads\n");
  }
  if (report.bytes_linked > 0) {
    outcome.text += StrCat(HumanBytes(report.bytes_linked),
                           " of deleted steps stay in segments that have other hard links\n");
  }
  return outcome;
}

}  // namespace

void AddReclaim(CLI::App* program, Invocation* invocation) {
  auto arguments = std::make_shared<StoreArguments>();
  CLI::App* command =
      AddCommand(program, invocation, "reclaim", "give back the space of deleted steps now",
                 [=] { return RunReclaim(*arguments, invocation); });
  AddStore(command, &arguments->store);
}

}  // namespace stepwell::cli
