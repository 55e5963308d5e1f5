// SPDX-License-Identifier: Apache-2.0
// The state that nth_workload.cc saves and nth_check.cc looks for.
#pragma once

#include <string>
#include <vector>

#include "tests/db/soak/crash_soak.h"
#include "tests/db/support/store_support.h"

namespace stepwell::db::nth {

inline constexpr uint64_t kImported = 50;
inline constexpr uint64_t kBig = 60;          // whose seed is its size
inline constexpr uint64_t kOfItems = 40;      // "state", and "extra" until that is deleted
inline constexpr uint64_t kWithExtra = 1000;  // more in its seed

inline std::vector<LeafSpec> Leaves() {
  return {{"held", {70, 300}, true, false},
          {"copied", {90, 100}, false, false},
          {"flat", {30000}, false, true},
          {"none", {0}, false, false}};
}

inline StoreOptions OptionsOf(io::DiskKind disk) {
  StoreOptions options;
  options.steps_before_index = 0;  // an index at any size
  options.disk = disk;
  options.segment_bytes = 256 << 10;  // a few steps
  options.staging_bytes = 32 << 20;
  options.threads = 2;
  return options;
}

}  // namespace stepwell::db::nth
