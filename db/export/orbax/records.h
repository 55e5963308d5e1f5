// SPDX-License-Identifier: Apache-2.0
// The records of an exported tree, in a file beside Orbax's: containers, their types and what else
// Orbax has no word for, so that an import makes the saved tree of it. DESIGN.md, "Export".
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/path.h"
#include "format/records.h"
#include "io/result.h"

namespace stepwell::db {

// In the item's directory: format::EncodeRecords, without chunks.
inline constexpr std::string_view kRecordsName = "stepwell-records";

// A record that is exported, and its path below the export's top.
using SelectedRecord = std::pair<const format::LeafRecord*, format::KeyPath>;

// In key order. Containers of which nothing is exported are left out. `item`: its name. None where
// they are no tree: the engine also takes leaves without containers.
Result<std::vector<format::LeafRecord>> RecordsOfExport(const std::string& item,
                                                        std::vector<SelectedRecord> selected);

// Records that were read: whether they are one tree of one item, whose name is given. kDataLoss.
Result<std::string> CheckRecords(const std::vector<format::LeafRecord>& records);

}  // namespace stepwell::db
