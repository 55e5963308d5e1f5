// SPDX-License-Identifier: Apache-2.0
// Arrays whose element type Orbax lacks, as the next wider one: the only chunks of an export that
// are decoded.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "db/export_folder.h"
#include "db/export_plan.h"

namespace stepwell::db {

// float8_e4m3 (IEEE: with infinities) -> float16, which has every one of its values.
uint16_t Float16OfFloat8E4M3(uint8_t bits);

// Writes the chunks of the arrays that are marked `convert` to `file` (relative to the folder),
// raw, and lets the arrays point at records of their own, which `records` keeps: their chunks are
// of segment 0, which no store has.
Status WidenArrays(StepReader& reader, const std::string& file, ExportFolder* folder,
                   ExportItem* item, std::deque<format::LeafRecord>* records);

}  // namespace stepwell::db
