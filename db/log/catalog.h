// SPDX-License-Identifier: Apache-2.0
// Catalogs in the log (DESIGN.md, "Catalogs"). Each segment begins with one: a base, which names
// everything that is live, or what changed since an earlier catalog, its `previous`. From the
// newest one back to its base they are a lineage.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "db/log/segment_files.h"
#include "format/records.h"

namespace stepwell::db {

struct LogState;

// What is kept in memory of a catalog in the log.
struct CatalogNote {
  format::FramePlace place;    // of its root, the frame behind the segment's header
  uint64_t last_commit = 0;    // that it covers
  uint64_t first_segment = 0;  // of the base of its lineage
  uint64_t end_bytes = 0;      // of root and pages, in its segment
  uint64_t bytes = 0;          // of root and pages
  uint64_t clock = 0;          // the newest change that it covers (CatalogWriter)

  bool is_base() const { return first_segment == place.segment; }
};

// Starts the state from the catalog at `place` and those that it follows, base first; each page is
// read once. On an error the state stays as it was: kDataLoss or kNotFound where something of the
// lineage is damaged or gone, anything else where it could not be read.
Status LoadCatalog(const format::FramePlace& place, SegmentFiles& files, LogState* state);

}  // namespace stepwell::db
