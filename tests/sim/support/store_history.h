// SPDX-License-Identifier: Apache-2.0
// The life of a store, from one seed: sessions of a training program, each of which a close, a kill
// or a power cut ends; the next one finds what that left. On request the disk fails now and then.
#pragma once

#include <cstdint>
#include <string>

namespace stepwell::sim {

struct HistoryOptions {
  uint64_t seed = 1;
  bool with_index = false;
  // Errors of reads, writes and syncs, full disks: while a session runs and while the next one
  // recovers. Every call may fail then, and an open may be refused. Once the disk is healthy the
  // store opens and every acknowledged step is there.
  bool faults = false;
};

// Returns what went wrong, with the shape of the run; empty: nothing. Counts its images in
// CheckedImages().
std::string RunHistory(const HistoryOptions& options);

}  // namespace stepwell::sim
