// SPDX-License-Identifier: Apache-2.0
// The options of Store::Open.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <stepwell/keep.h>
#include <stepwell/log.h>
#include <stepwell/save_handle.h>

namespace stepwell {

struct OpenOptions {
  bool read_only = false;  // takes no lock, creates nothing, works beside a live writer
  bool create = true;      // with write access: make the store where there is none
  // For a store that another process of this machine and user writes, outside a group. Opens it for
  // reading, and sends Delete, DeleteItems, SetPinned and Reclaim to that process. They also fail
  // with kUnavailable if the request was not sent, and with kOutcomeUnknown if that process ended
  // before it answered.
  bool through_writer = false;
  // Only with read_only, for a directory that may have been made to do harm. Nothing is made in it,
  // pins neither: a step that its writer deletes meanwhile is kNotFound.
  bool untrusted = false;
  // A new store is its owner's alone (0700, 0600), and so are exports of it; false: as the umask
  // has it. A store that is there goes on as its STEPWELL file is.
  bool private_files = true;
  // A step stays as long as one rule keeps it or it is pinned; the others are deleted with each
  // commit. None: every step stays.
  std::vector<KeepRule> keep{};
  CodecPolicy codec = CodecPolicy::kAuto;
  // A chunk that changed may be stored as the lossless difference to the same chunk of the commit
  // before. A step then consists of at most one and a half times its bytes.
  bool delta = false;
  // Takes LeafInfo::statistics of each array while it is encoded, and stores them with the step.
  bool statistics = false;
  // Others than kIgnore imply `statistics`. Not for what is imported or pulled.
  OnNonfinite on_nonfinite = OnNonfinite::kIgnore;
  uint64_t staging_bytes = 0;  // bound of the memory for saves; 0: min(1 GiB, 1/8 of memory)
  // With write access: takes all of that memory now, in the background, where the first saves
  // otherwise wait for it, longest on a virtual machine whose host has taken free memory back.
  bool warm = false;
  size_t threads = 0;                             // that encode and decode; 0: min(4, cores)
  std::chrono::milliseconds lock_timeout{10000};  // waited while a killed writer's I/O drains
  uint64_t reclaim_bytes_per_second = uint64_t{128} << 20;  // moved by reclaim, at most
  // A file for the save pipeline's spans in Chrome's trace format, made at Open and written at
  // Close (the newest 262,144 spans); "": none. Not for read-only stores.
  std::string trace_path{};
  // With write access: steps that the last writer did not finish, and whose bytes cannot be read.
  // Open gives them up, where it otherwise refuses the store.
  std::set<uint64_t> discard{};
  LogSink log{};  // silent when empty
};

}  // namespace stepwell
