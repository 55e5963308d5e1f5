// SPDX-License-Identifier: Apache-2.0
// Images by replay: a writer saves, replaces, deletes, pins and exports on a real file system,
// whose disk logs writes and flushes; then each image that a power cut may have left is mounted,
// and has what was acknowledged by that instant. Or the disk fails, once or for ever. A command,
// not a test (tests/README.md), as root:
//
//   replay_soak how=cut|fail fs=ext4|xfs [rounds=10] [images=60] [seed=1] [minutes=M] [record=FILE]
//
// A round is a disk with three writers, or with ten faults, and that many images of it. It follows
// from seed + its number but for threads and time. Appends a line of JSON to FILE. Exit status 0:
// all of it held.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "tests/db/support/replay.h"

namespace stepwell::db::soak {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kRoundSeconds = 1800;  // then it hangs

struct Options {
  std::string program, how, fs, record;
  uint64_t rounds = 10, images = 60, seed = 1, minutes = 0;

  FsKind kind() const { return fs == "xfs" ? FsKind::kXfs : FsKind::kExt4; }
};

Status Round(const Options& options, uint64_t seed, ReplayTotals* totals) {
  alarm(kRoundSeconds);
  Replay replay(options.program, options.kind(), seed, totals);
  const bool fails = options.how == "fail";
  if (!replay.Begin(/*discard=*/!fails && seed % 2 == 0)) {
    return InternalError("no disk can be mounted (it takes root)");
  }
  std::mt19937_64 random(seed);
  for (int session = 0; session < (fails ? 11 : 3); ++session) {
    const uint64_t changes = 1 + random() % (fails ? 20 : 40);
    STEPWELL_RETURN_IF_ERROR(fails && session > 0
                                 ? replay.FailingSession(replay.RandomFault(), changes)
                                 : replay.Session(changes));
  }
  for (uint64_t image = 0; image < options.images; ++image) {
    const Cut cut = replay.RandomCut();
    if (image % 10 == 9) {
      STEPWELL_RETURN_IF_ERROR(replay.CheckRecovery(cut, 4));
    } else if (image % 5 == 3) {
      Fault fault = replay.RandomFault();
      fault.skip /= 4;  // an open is not much
      STEPWELL_RETURN_IF_ERROR(replay.CheckSickRecovery(cut, fault));
    } else {
      STEPWELL_RETURN_IF_ERROR(replay.CheckImage(cut));
    }
  }
  return OkStatus();
}

int Run(const Options& options) {
  const auto begin = Clock::now();
  ReplayTotals totals;
  Status status;
  uint64_t round = 0;
  for (; round < options.rounds && status.ok(); ++round) {
    if (options.minutes > 0 && Clock::now() - begin > std::chrono::minutes(options.minutes)) break;
    status = Round(options, options.seed + round, &totals);
    if (!status.ok()) {
      std::printf("seed %lu: %s\n", static_cast<unsigned long>(options.seed + round),
                  status.ToString().c_str());
    }
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin);
  const std::string line = StrCat(
      "{\"how\": \"", options.how, "\", \"fs\": \"", options.fs, "\", \"seed\": ", options.seed,
      ", \"rounds\": ", round, ", \"changes\": ", totals.changes,
      ", \"acknowledged\": ", totals.acknowledged, ", \"fail_cases\": ", totals.fail_cases,
      ", \"reported\": ", totals.reported, ", \"failed_operations\": ", totals.faults,
      ", \"images\": ", totals.images, ", \"recoveries_cut\": ", totals.recoveries_cut,
      ", \"recoveries_sick\": ", totals.recoveries_sick, ", \"steps_checked\": ", totals.steps,
      ", \"exports_checked\": ", totals.exports, ", \"seconds\": ", seconds.count(),
      ", \"ok\": ", status.ok() ? "true" : "false", "}");
  std::printf("%s\n", line.c_str());
  if (!options.record.empty()) std::ofstream(options.record, std::ios::app) << line << "\n";
  return status.ok() ? 0 : 1;
}

// Copies the writer's messages into the disk's marks. In the log a mark stands between the writes
// that came before it and those that come after.
int Write(const std::vector<std::string>& arguments) {
  const int marks = open(arguments[5].c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (marks < 0 || dup2(marks, STDOUT_FILENO) < 0) return 2;
  return RunWriter(arguments[2], arguments[3], std::stoull(arguments[4]));
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 6 && arguments[1] == "writer") return Write(arguments);
  std::map<std::string, std::string> given;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const size_t equals = std::min(arguments[i].find('='), arguments[i].size() - 1);
    given[arguments[i].substr(0, equals)] = arguments[i].substr(equals + 1);
  }
  Options options{arguments[0], given["how"], given["fs"], given["record"]};
  const std::pair<const char*, uint64_t*> numbers[] = {{"rounds", &options.rounds},
                                                       {"images", &options.images},
                                                       {"seed", &options.seed},
                                                       {"minutes", &options.minutes}};
  for (const auto& [name, number] : numbers) {
    if (!given[name].empty()) *number = std::stoull(given[name]);
  }
  if ((options.how != "cut" && options.how != "fail") ||
      (options.fs != "ext4" && options.fs != "xfs")) {
    std::fprintf(stderr,
                 "usage: replay_soak how=cut|fail fs=ext4|xfs [rounds=N] [images=N] [seed=N] "
                 "[minutes=N] [record=FILE]\n");
    return 2;
  }
  return Run(options);
}

}  // namespace
}  // namespace stepwell::db::soak

int main(int argument_count, char** arguments) {
  return stepwell::db::soak::Main({arguments, arguments + argument_count});
}
