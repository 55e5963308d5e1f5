// SPDX-License-Identifier: Apache-2.0
#include "db/read/load_steps.h"

#include <vector>

namespace stepwell::db {

// A record names the place of every chunk, so any reader of the store can load it. What it says of
// an error is about its own step, though.
Result<LoadStats> LoadFromSteps(std::span<const StepRequest> requests) {
  if (requests.empty()) return LoadStats();
  std::vector<LoadRequest> all;
  all.reserve(requests.size());
  for (const StepRequest& each : requests) all.push_back(each.request);
  auto stats = requests.front().reader->Load(all);
  if (stats.ok()) return stats;
  LoadStats total;
  for (const StepRequest& each : requests) {
    STEPWELL_ASSIGN_OR_RETURN(const LoadStats one, each.reader->Load({&each.request, 1}));
    total += one;
  }
  return total;
}

}  // namespace stepwell::db
