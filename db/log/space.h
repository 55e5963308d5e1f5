// SPDX-License-Identifier: Apache-2.0
// The account of space: where the allocated bytes of a store's directory are.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "db/log/footprint.h"
#include "db/log/live_steps.h"
#include "db/store.h"
#include "io/disk.h"

namespace stepwell::db {

struct SpaceQuery {
  io::FileSystem* file_system = nullptr;
  std::string store_path;
  FootprintCache* footprints = nullptr;
  SegmentFiles* files = nullptr;
  std::vector<std::shared_ptr<const LiveStep>> live;
  // Ends of what is placed in segments that are open for writing; what is allocated behind is
  // reserved. Null: taken from what live steps need (for readers, which cannot know).
  const std::map<uint64_t, uint64_t>* open_ends = nullptr;
  // Of segments, for catalogs that recovery may read.
  std::map<uint64_t, ByteRange> catalogs;
};

// The parts add up to total_bytes. Reads each live step's records once; later calls only ask the
// file system for sizes. Files that come and go meanwhile may be missing.
SpaceStats AccountSpace(const SpaceQuery& query);

// Fills `segments` and `segment_bytes`.
void CountSegments(io::FileSystem* file_system, const std::string& store_path, StoreStats* stats);

}  // namespace stepwell::db
