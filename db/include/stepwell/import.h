// SPDX-License-Identifier: Apache-2.0
// Checkpoints of Orbax that become steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <stepwell/save_handle.h>

namespace stepwell {

// A step's directory below the root of a CheckpointManager or training.Checkpointer.
struct OrbaxStep {
  uint64_t step = 0;
  std::string name;
  std::string path;
};

struct ImportOptions {
  std::vector<std::string> items{};  // names as in the checkpoint; empty: all
  IfExists if_exists = IfExists::kError;
  size_t threads = 0;  // that read and decode; 0: between 4 and 8
  // Arrays of more bytes than this together are read while they are saved, up to 128 MiB at a time,
  // or one stored value. Else all of them are read first; and in several processes always.
  uint64_t held_bytes_max = uint64_t{256} << 20;
  // What would need more memory at a time is refused (kResourceExhausted); 0: the machine's memory.
  uint64_t memory_bytes_max = 0;
  // Asked about every 100 ms on the caller's thread; false ends it with kCancelled. May be empty.
  std::function<bool()> keep_waiting{};
  // Called as often, while arrays are read. May be empty.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress{};
};

}  // namespace stepwell
