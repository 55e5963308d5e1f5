// SPDX-License-Identifier: Apache-2.0
// The leaf records of a step as frames take them, and what they add up to. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "format/records.h"

namespace stepwell::db {

// Leaf records for one frame, in order.
struct RecordsRun {
  std::span<const format::LeafRecord> whole;
  std::vector<format::LeafRecord> parts;  // instead: of a leaf that one frame cannot take

  std::span<const format::LeafRecord> records() const { return parts.empty() ? whole : parts; }
};

// Cuts leaf records into runs of about 64 KiB; a leaf of very many chunks into several.
std::vector<RecordsRun> SplitRecords(std::span<const format::LeafRecord> records);

// Adds a leaf to what its item holds.
void Count(const format::LeafRecord& record, format::ItemRecord* item, format::StepRecord* step);
// Then the items to what the step holds.
void SumItems(format::StepRecord* step);

// Returns true if every chunk lies within the extent of its segment.
bool HoldsAll(const std::map<uint64_t, format::SegmentExtent>& extents,
              std::span<const format::LeafRecord> records);

// Adds what the step refers to, of earlier commits, to the extents of what it owns.
void AddReferenced(std::span<const format::LeafRecord> records, size_t block_bytes,
                   std::map<uint64_t, format::SegmentExtent>* extents);

// Computes the extent of these leaves' chunks in each segment, without frames.
std::map<uint64_t, format::SegmentExtent> ExtentsOf(const std::vector<format::LeafRecord>& records,
                                                    size_t block_bytes);

}  // namespace stepwell::db
