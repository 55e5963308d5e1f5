// SPDX-License-Identifier: Apache-2.0
// The records of an exported tree, in a file beside Orbax's: containers, their types and what else
// Orbax has no word for, so that an import makes the saved tree of it. DESIGN.md, "Export".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "format/path.h"
#include "format/records.h"
#include "io/result.h"

namespace stepwell::db {

// In the item's directory: format::EncodeRecords, without chunks.
inline constexpr std::string_view kRecordsName = "stepwell-records";
// Beside it, where the tree has some: values that Orbax cannot hold, as EncodeValues writes them.
inline constexpr std::string_view kValuesName = "stepwell-values";

// A record that is exported, and its path below the export's top.
struct SelectedRecord {
  const format::LeafRecord* record = nullptr;
  format::KeyPath path;
  bool in_orbax = true;  // false: a value that Orbax cannot hold
};

// The records of a tree, each list in key order.
struct ExportRecords {
  // Containers with children; the others are Orbax's entries, in the same order.
  std::vector<format::LeafRecord> entries;
  std::vector<format::LeafRecord> values;  // inline, of any length
};

// Containers of which nothing is exported are left out. `item`: its name. None where they are no
// tree: the engine also takes leaves without containers.
Result<ExportRecords> RecordsOfExport(const std::string& item,
                                      const std::vector<SelectedRecord>& selected);

// Their records, and then the values, one after the other; each of all these with its length in
// front, a little-endian uint64.
std::string EncodeValues(const std::vector<format::LeafRecord>& values);
// kDataLoss.
Result<std::vector<format::LeafRecord>> DecodeValues(std::string_view bytes);

// Records that were read: whether they are one tree of one item, whose name is given. kDataLoss.
Result<std::string> CheckRecords(const std::vector<format::LeafRecord>& records);

}  // namespace stepwell::db
