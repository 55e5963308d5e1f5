// SPDX-License-Identifier: Apache-2.0
// Plans a file of arrays: names, types and order of every leaf. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "db/export/archive/archive.h"
#include "format/grid.h"
#include "format/records.h"

namespace stepwell::db {

struct ArchiveArray {
  std::vector<std::string> path;  // joined by "/" it is the name
  std::string name;
  format::DType dtype = format::DType::kInvalid;
  format::Shape shape;
  const format::LeafRecord* leaf = nullptr;  // whose chunks these are; null: `element` is it
  std::string element;                       // one element, as in memory
  uint64_t size_bytes = 0;                   // in the file

  bool convert() const { return leaf != nullptr && leaf->dtype != dtype; }
};

struct ArchivePlan {
  std::vector<ArchiveArray> arrays;  // in the file's order
  std::vector<std::pair<std::string, std::string>> metadata;
  ExportReport report;  // leaves, chunks, stored bytes, skipped, widened
};

// `leaves`: the records of the step or of the subtree, in key order. The plan points at them.
// kInvalidArgument with everything that the format cannot hold; kDataLoss.
Result<ArchivePlan> PlanArchive(const format::StepRecord& step,
                                std::span<const format::LeafRecord> leaves,
                                const ArchiveOptions& options);

// An array in parts that follow each other in C order.
//
// Boxes of at most `bytes_max` (or one element), which end on chunk borders where they can, so that
// hardly a chunk is read twice. An array without elements has none.
class ArrayBoxes {
 public:
  ArrayBoxes(format::Shape shape, format::Shape chunk_shape, uint64_t item_bytes,
             uint64_t bytes_max);
  // The next one; nothing after the last.
  std::optional<format::Box> Next();

 private:
  const format::Shape shape_;
  const format::Shape chunk_shape_;
  size_t axis_ = 0;         // the one that is cut; those before it go index by index
  uint64_t count_max_ = 1;  // of its indices in a box
  bool done_ = false;
  format::Shape next_;  // of the next box, up to axis_
};

}  // namespace stepwell::db
