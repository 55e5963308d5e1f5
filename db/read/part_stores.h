// SPDX-License-Identifier: Apache-2.0
// The stores of the other processes of a group, opened for reading (DESIGN.md, "Many processes").
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/environment.h"
#include "db/log/segment_files.h"
#include "db/read/log_view.h"
#include "db/store.h"
#include "io/mutex.h"

namespace stepwell::db {

// A part's shares of the steps of its group, and the pins that keep them.
struct PartShares {
  std::map<format::Id128, uint64_t> by_save;      // commits, decided or still prepared
  std::vector<std::shared_ptr<const void>> pins;  // empty: nothing keeps them
};

// The other parts of a store's group, opened when they are needed and kept. Thread-safe; readers of
// steps share it, so that it outlives the store. Part 0 has one.
class PartStores {
 public:
  // `files` are part 0's, and learn where the other parts' segments are. They outlive this.
  PartStores(std::string root, Environment environment, SegmentFiles* files);
  // Lets go of the parts' stores; readers that have one keep it.
  void Close();

  // A part's share of a step: pinned, as every reader is.
  Result<std::shared_ptr<StepReader>> Read(uint32_t part, const format::StepRecord& step);
  // Pins and returns a part's present shares of the steps of its group. The part has a share of
  // `step`.
  Result<PartShares> Shares(uint32_t part, const format::StepRecord& step);
  // Checks a part's share, and adds what is wrong to the report.
  Status Verify(uint32_t part, const format::StepRecord& step, const VerifyOptions& options,
                VerifyReport* report);

 private:
  Result<std::shared_ptr<LogFollower>> Get(uint32_t part, const format::StepRecord& step)
      STEPWELL_EXCLUDES(mutex_);
  void Forget(uint32_t part) STEPWELL_EXCLUDES(mutex_);

  const std::string root_;
  const Environment environment_;
  SegmentFiles* const files_;
  io::Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<LogFollower>> stores_ STEPWELL_GUARDED_BY(mutex_);
};

}  // namespace stepwell::db
