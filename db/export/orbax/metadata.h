// SPDX-License-Identifier: Apache-2.0
// What an import kept beside a checkpoint's own metadata, below "orbax", goes back to its place.
#pragma once

#include "db/export/orbax/plan.h"

namespace stepwell::db {

// The key below which an import keeps it; with "_" behind it where the checkpoint has such a key.
inline constexpr std::string_view kImportedMetadataKey = "orbax";
inline constexpr std::string_view kImportedRootKey = "root";
inline constexpr std::string_view kImportedItemsKey = "items";  // an object by item

// Moves it out of the plan's custom metadata: to items, and, where a root is made, to the root.
// What has no place in this export, or was not written by an import, stays.
void PlaceImportedMetadata(bool makes_root, ExportPlan* plan);

}  // namespace stepwell::db
