// SPDX-License-Identifier: Apache-2.0
// An engine's environment in which everything runs on the calling thread.
#pragma once

#include <memory>

#include "db/environment.h"
#include "io/executor.h"

namespace stepwell::sim {

// Without file system, disk, clock and randomness: those are the caller's.
inline db::Environment InlineEnvironment() {
  db::Environment environment;
  environment.workers = std::make_shared<io::InlineExecutor>();
  environment.index_worker = std::make_shared<io::InlineExecutor>();
  environment.reclaim_worker = std::make_shared<io::InlineExecutor>();
  environment.callbacks = std::make_shared<io::InlineExecutor>();
  environment.inline_mode = true;
  return environment;
}

}  // namespace stepwell::sim
