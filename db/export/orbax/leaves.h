// SPDX-License-Identifier: Apache-2.0
// One leaf, or one item that is JSON (format::ItemKind::kJson), as Orbax has it. Pure; private to
// the planner of exports.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "db/export/orbax/plan.h"

namespace stepwell::db {

// The checkpoint's form of a leaf. A container with children is no leaf, and has neither a form nor
// a reason.
struct LeafTranslation {
  std::optional<format::orbax::OrbaxType> type;
  std::optional<ExportArray> array;  // without its name
  std::string text;                  // of kString
  std::string unsupported;           // why Orbax cannot hold it; else empty
  std::string widened;               // the change of its element type, in words
};

// kDataLoss: the record contradicts itself.
Result<LeafTranslation> TranslateLeaf(const format::LeafRecord& leaf, const ExportOptions& options);

// Shardings by their JSON, each parsed once.
class ShardingCache {
 public:
  // None: there is none, or Orbax has no word for it.
  const std::optional<format::orbax::Sharding>& Get(const std::string& json);

 private:
  std::map<std::string, std::optional<format::orbax::Sharding>> parsed_;
};

// The item as json.dumps writes it. `leaves`: its records, nodes too, in key order, of paths whose
// first `path_prefix` components are left out; long strings have been loaded into inline_value.
// kInvalidArgument: something that JSON has not, with its path. kDataLoss: records that contradict
// each other.
Result<std::string> EncodeJsonItem(std::span<const format::LeafRecord> leaves, size_t path_prefix);

}  // namespace stepwell::db
