// SPDX-License-Identifier: Apache-2.0
// Reports of a store about itself: verification, statistics, reclaim, recovery. Plain structs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <stepwell/keep.h>

namespace stepwell {

// Counts the work of a read.
struct LoadStats {
  uint64_t bytes_read = 0;    // from disk
  uint64_t bytes_needed = 0;  // stored bytes of the chunks touched
  uint64_t bytes_out = 0;     // given to the caller
  uint64_t reads = 0;
  uint64_t chunks = 0;

  LoadStats& operator+=(const LoadStats& more) {
    bytes_read += more.bytes_read;
    bytes_needed += more.bytes_needed;
    bytes_out += more.bytes_out;
    reads += more.reads;
    chunks += more.chunks;
    return *this;
  }
};

struct VerifyProblem {
  std::optional<uint64_t> step;
  std::string item;
  std::string path;  // of the leaf; "" when it concerns no single leaf
  std::string file;
  uint64_t offset_bytes = 0;
  std::string message;
  // Not damage: it could not be read, because a disk or the operating system failed.
  bool unchecked = false;
};
struct VerifyReport {
  uint64_t steps = 0;
  uint64_t leaves = 0;
  uint64_t files = 0;  // files of an export, which has neither steps nor leaves
  uint64_t chunks = 0;
  uint64_t bytes = 0;
  std::vector<VerifyProblem> problems;
};
struct VerifyOptions {
  std::optional<uint64_t> step;  // none: all
  // Called now and then with (bytes done, bytes in all); returning false stops with kCancelled.
  std::function<bool(uint64_t, uint64_t)> progress;
};

// Durations of one kind of operation, over the store's life in this process. Percentiles are of a
// histogram with steps of at most 12 %.
struct LatencyStats {
  uint64_t count = 0;
  uint64_t total_us = 0;
  uint64_t p50_us = 0;
  uint64_t p99_us = 0;
  uint64_t max_us = 0;
};

// Accounts for the bytes of the store's directory, as the file system allocates them. The parts add
// up to `total_bytes`.
struct SpaceStats {
  uint64_t total_bytes = 0;
  uint64_t live_bytes = 0;      // payloads of live steps
  uint64_t padding_bytes = 0;   // the unfilled ends of payloads' blocks
  uint64_t overhead_bytes = 0;  // frames, their copies, and catalogs that steps and recovery need
  uint64_t dead_bytes = 0;      // unneeded, or needed only by readers and recovery for a while
  uint64_t reserved_bytes = 0;  // allocated ahead: tails of open segments, spares, the ballast
  uint64_t index_bytes = 0;     // RocksDB
  uint64_t other_bytes = 0;     // STEPWELL, LOCK, readers' pins
  // The bytes above include these:
  uint64_t pinned_by_readers_bytes = 0;  // payloads of dead steps that a reader still holds
  uint64_t linked_bytes = 0;             // in segments with another hard link
};

// A directory that shows the store's steps as Orbax checkpoints.
struct ViewStats {
  std::string path;
  uint64_t shown = 0;      // steps that are in it
  uint64_t held = 0;       // of these: deleted, but a reader of the view holds them
  uint64_t not_shown = 0;  // steps that Orbax cannot hold
  uint64_t made = 0;       // since it was opened: checkpoints made and removed
  uint64_t removed = 0;
  uint64_t errors = 0;     // failures to make, remove or look; each is tried again
  std::string last_error;  // the last failure, or why the last step is not shown
  bool following = true;   // false: the directory was taken away, or the view is closed
};

struct StoreStats {
  uint64_t steps = 0;
  uint64_t pinned_steps = 0;
  uint64_t segments = 0;
  uint64_t segment_bytes = 0;  // allocated on disk
  SpaceStats space;
  uint64_t staging_bytes = 0;  // memory held by save buffers now
  uint64_t staging_bytes_max = 0;
  uint64_t saves_in_flight = 0;

  // Counters since open.
  uint64_t saves = 0;  // committed
  uint64_t saves_failed = 0;
  uint64_t bytes_saved = 0;    // logical bytes of committed saves
  uint64_t bytes_written = 0;  // to segments: payloads, frames, moves
  uint64_t syncs = 0;          // fdatasyncs of segments
  uint64_t bytes_moved = 0;    // payloads that reclaim copied to give space back
  uint64_t bytes_punched = 0;
  uint64_t segments_removed = 0;
  uint64_t segments_recycled = 0;
  // Per committed save: the caller's wait, the workers' encoding (summed over them), first to last
  // write, the frame's write and flush, and save() to durable and visible. `index`: each time that
  // the index catches up with commits.
  LatencyStats snapshot, encode, write, commit, index, durable;

  // For people: how the disk is driven ("io_uring, registered buffers"), and what answers questions
  // about many steps ("rocksdb", perhaps with how far it is behind; "log"; "not opened").
  std::string disk;
  std::string index_state;
  std::vector<std::string> old_pins;  // readers' pins that keep space: which, since when
  std::vector<ViewStats> views;
};

// Reports one pass of reclaim.
struct ReclaimReport {
  uint64_t bytes_before = 0;  // allocated by segments
  uint64_t bytes_after = 0;
  uint64_t segments_removed = 0;
  uint64_t segments_recycled = 0;  // kept for the next segments, within reserved bytes
  uint64_t bytes_punched = 0;
  uint64_t bytes_moved = 0;
  uint64_t bytes_pinned_by_readers = 0;  // dead, but a reader may be reading them
  uint64_t bytes_linked = 0;             // dead, but in segments with another hard link
};

// Which rule keeps which step once the next save is committed, and which steps that deletes.
struct RetentionReport {
  struct Step {
    uint64_t step = 0;
    bool pinned = false;
    std::vector<size_t> kept_by;  // places in `rules`
    bool goes_next = false;       // the next save deletes it
    // It is kept as the newest step that is not tainted, below a tainted one.
    bool newest_untainted = false;
  };
  std::vector<KeepRule> rules;  // of this writer, or of the last that saved; none: every step stays
  std::vector<std::string> rule_texts;  // in words
  std::vector<Step> steps;              // ascending
  // In words: steps beyond what the rules keep now, and rules on metrics that no step has.
  std::vector<std::string> warnings;
};

// Reports a Store::Repair.
struct RepairReport {
  std::vector<uint64_t>
      steps_rewritten;              // a frame of theirs was damaged; a copy or the index had it
  std::vector<std::string> losses;  // in words
  bool losses_accepted = false;
};

// Reports what Open found and did. It is also logged.
struct RecoveryReport {
  bool clean = true;               // the last writer closed it
  uint64_t commits_recovered = 0;  // accepted beyond the durable mark
  uint64_t commits_rejected = 0;   // frames that were not complete on disk
  bool index_rebuilt = false;
  std::vector<std::string> problems;  // damage found, in words
  std::vector<std::string> repaired;  // damage found that a copy or the index made good, in words
};

}  // namespace stepwell
