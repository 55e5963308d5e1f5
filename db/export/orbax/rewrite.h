// SPDX-License-Identifier: Apache-2.0
// The chunks of an export that are decoded and encoded again: of arrays whose element type Orbax
// lacks, as the next wider one, and of arrays whose pieces have chunk grids of their own, in one
// grid.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>

#include "db/export/orbax/folder.h"
#include "db/export/orbax/plan.h"

namespace stepwell::db {

// Fills the memory of requests for arrays, as StepReader::Load does.
using LoadArrays = std::function<Status(std::span<const LoadRequest>)>;

// Writes the chunks of the arrays that are marked `rewrite` to `file` (relative to the folder), and
// lets the arrays point at records of their own, which `records` keeps: their chunks are of segment
// 0, which no store has. Memory: 32 MiB of chunks at a time, whatever the arrays' size. An error of
// `go_on`, asked in between, ends it.
Status RewriteItem(const LoadArrays& load, const std::string& file,
                   const std::function<Status()>& go_on, ExportFolder* folder, ExportItem* item,
                   std::deque<format::LeafRecord>* records);

}  // namespace stepwell::db
