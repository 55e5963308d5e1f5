// SPDX-License-Identifier: Apache-2.0
// A store on a LogDisk: writers save to it and are killed, the disk fails, and each image of what a
// power cut may have left is mounted and compared with what was acknowledged by then.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/log_disk.h"

namespace stepwell::db::soak {

struct ReplayTotals {
  uint64_t images = 0;
  uint64_t recoveries_cut = 0;   // images of images, whose recovery was cut
  uint64_t recoveries_sick = 0;  // images on disks that failed meanwhile
  uint64_t changes = 0;
  uint64_t acknowledged = 0;
  uint64_t steps = 0;    // compared
  uint64_t exports = 0;  // compared
  uint64_t faults = 0;   // operations of the disk that failed
  uint64_t fail_cases = 0;
  uint64_t reported = 0;  // cases in which the writer got an error
};

class Replay {
 public:
  // `writer`: a program that is called as {writer, "writer", STORE, EXPORTS, SEED, MARKS}.
  Replay(std::string writer, FsKind kind, uint64_t seed, ReplayTotals* totals);

  // Mounts the disk.
  bool Begin(bool discard = false);
  LogDisk& disk() { return *disk_; }

  // A writer runs until it has acknowledged that many changes, and is killed; the store is looked
  // at.
  Status Session(uint64_t changes);
  // The disk fails from somewhere in the session on; then it is well again, and so is the store.
  Status FailingSession(const Fault& fault, uint64_t changes);
  Fault RandomFault();

  // Instants at flushes, acknowledgements and anywhere; what was not flushed as chance has it.
  Cut RandomCut();
  Status CheckImage(const Cut& cut);
  // An image that must have what was acknowledged by that instant.
  Status CheckImageFor(const MemoryFile& image, uint64_t instant);
  // Recovery of that image is cut in turn, `cuts` times.
  Status CheckRecovery(const Cut& cut, int cuts);
  // The disk fails while that image is recovered, and is well again.
  Status CheckSickRecovery(const Cut& cut, const Fault& fault);

  // Returns what a writer had reported by then, and what it had found.
  History HistoryAt(uint64_t instant) const;

 private:
  struct SessionBegin {
    uint64_t instant = 0;
    State before;
  };
  struct OutputLine {
    uint64_t instant = 0;
    std::string line;
    uint64_t exports = 0;  // the number of its session's directory
  };

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  Status StartWriter();
  // Until it has acknowledged that many changes, or ended.
  Status WaitForWriter(uint64_t changes);
  Status EndSession();
  void TakeMarks();
  // Values are right or refused. What it gave is durable; *opened: and decided, by a writer.
  Status LookAtSickDisk(LogDisk* disk, History* history, bool* opened, State* found);
  Status Heal(LogDisk* disk);
  Status CheckLive();
  // A reader looks: what it gives is durable.
  Status Serve(const std::string& point, History* history);
  Status CheckMounted(const std::string& point, const History& history, uint64_t instant,
                      State* found);
  Status CheckExportsAt(const std::string& point, uint64_t instant);

  const std::string writer_program_;
  const FsKind kind_;
  const uint64_t seed_;
  ReplayTotals* const totals_;
  std::mt19937_64 random_;
  std::unique_ptr<LogDisk> disk_;
  std::vector<SessionBegin> sessions_;
  std::vector<uint64_t> exports_;  // [i]: since when "exports" + i is there
  std::vector<OutputLine> lines_;  // by writers
  uint64_t entries_taken_ = 0;     // of the log
  uint64_t acknowledged_ = 0;      // in this session
  std::string error_;              // the writer's first one
  std::unique_ptr<ChildProcess> child_;
};

}  // namespace stepwell::db::soak
