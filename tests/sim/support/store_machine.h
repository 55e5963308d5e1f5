// SPDX-License-Identifier: Apache-2.0
// The whole store on a simulated machine: one world, one thread, one seed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "db/environment.h"
#include "db/store.h"
#include "tests/sim/support/held_executor.h"
#include "tests/sim/support/sim_disk.h"

namespace stepwell::sim {

inline const std::string kStorePath = "/store";

struct OpenSpec {
  std::optional<uint64_t> keep_latest = std::nullopt;
  bool keep_last_verified = false;
  bool with_index = false;
  bool read_only = false;
  uint64_t segment_bytes = uint64_t{192} << 10;        // small: segments roll within a few steps
  uint64_t staging_blocks = 6;                         // of db::kBlockBytes; at least 4
  std::optional<db::StoreGroup> group = std::nullopt;  // a part lies below the path
  std::string path = kStorePath;
  std::optional<bool> delta = std::nullopt;  // none: every other session has it
  bool unpublished = false;
  std::optional<bool> statistics = std::nullopt;  // none: two sessions of three have them
};

// One process on a machine. Outlives the stores and readers that it opened.
class StoreMachine {
 public:
  // `files`: those of the world by another way; null: the world's own.
  StoreMachine(std::shared_ptr<SimWorld> world, uint64_t seed, io::FileSystem* files = nullptr);

  SimWorld& world() { return *world_; }
  Result<std::unique_ptr<db::Store>> Open(const OpenSpec& spec);
  // A planted bug: syncs of segments report success and do nothing.
  void AcknowledgeEarly() { lies_ = true; }
  // Makes passes of reclaim wait, as for a thread of their own, or lets them go on.
  void HoldReclaim(bool hold) { reclaim_worker_->Hold(hold); }
  // The log lines of the stores, for failure messages.
  const std::string& log() const { return log_; }

 private:
  const std::shared_ptr<SimWorld> world_;
  SimFileSystem own_files_;
  io::FileSystem* const files_;
  SimClock clock_;
  const std::shared_ptr<HeldExecutor> reclaim_worker_ = std::make_shared<HeldExecutor>();
  Prng prng_;
  bool lies_ = false;
  uint64_t opens_ = 0;
  std::string log_;
};

// The machine after a power cut in which everything was durable but the newest slot: STEPWELL is as
// it was last synced. Kernels write small files back late, so this is a common picture.
std::shared_ptr<SimWorld> OldSlotImageOf(const SimWorld& world, uint64_t seed);
// The machine after a stop: mostly a power cut, sometimes only the process was killed.
std::shared_ptr<SimWorld> ImageOf(const SimWorld& world, uint64_t seed);

// Names and sizes of the segments.
std::string DescribeSegments(const SimWorld& world, const std::string& path = kStorePath);
size_t CountSegments(const SimWorld& world);

}  // namespace stepwell::sim
