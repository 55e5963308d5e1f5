// SPDX-License-Identifier: Apache-2.0
// Holds everything that reads in a writing store need. Private to db/.
#pragma once

#include <memory>

#include "db/environment.h"
#include "db/index/keeper.h"
#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "db/log/segment_files.h"
#include "db/read/part_merge.h"
#include "db/read/restore.h"

namespace stepwell::db {

// Readers share it, so it outlives the store.
struct ReadCore {
  Environment environment;  // without the threads of the engine
  std::unique_ptr<SegmentFiles> files;
  std::unique_ptr<FootprintCache> footprints;
  std::unique_ptr<Restorer> restorer;
  std::shared_ptr<PartStores> parts;  // of part 0's group
  LiveSteps live;
  std::unique_ptr<IndexKeeper> index;
};

}  // namespace stepwell::db
