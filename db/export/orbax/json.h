// SPDX-License-Identifier: Apache-2.0
// Items that are JSON (format::ItemKind::kJson): trees of what JSON has. Private to db/.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "format/records.h"
#include "io/result.h"

namespace stepwell::db {

// The item as json.dumps writes it. `leaves`: its records, nodes too, in key order, of paths whose
// first `path_prefix` components are left out; long strings have been loaded into inline_value.
// kInvalidArgument: something that JSON has not, with its path. kDataLoss: records that contradict
// each other.
Result<std::string> EncodeJsonItem(std::span<const format::LeafRecord> leaves, size_t path_prefix);

}  // namespace stepwell::db
