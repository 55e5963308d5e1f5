// SPDX-License-Identifier: Apache-2.0
#include "db/export/orbax/metadata.h"

#include <algorithm>
#include <string>

#include "format/orbax/json.h"

namespace stepwell::db {
namespace {

using format::orbax::Json;

std::string Text(const Json& value) {
  std::string text;
  format::orbax::AppendPythonJson(value, &text);
  return text;
}

bool IsImported(const Json& value) {
  if (!value.is_object() || value.empty()) return false;
  for (const auto& [key, part] : value.items()) {
    if (key != kImportedRootKey && key != kImportedItemsKey) return false;
    if (!part.is_object()) return false;
  }
  return true;
}

void PlaceItems(Json* items, ExportPlan* plan) {
  for (ExportItem& item : plan->items) {
    if (!item.json_file.empty() || !items->contains(item.name)) continue;
    item.tree.custom_metadata = Text((*items)[item.name]);
    items->erase(item.name);
  }
}

}  // namespace

void PlaceImportedMetadata(bool makes_root, ExportPlan* plan) {
  auto parsed = format::orbax::ParseJson("metadata", plan->custom_metadata,
                                         format::orbax::JsonDialect::kPython);
  if (!parsed.ok() || !parsed->is_object()) return;
  // An import's is the last of these keys.
  std::string key(kImportedMetadataKey);
  while (parsed->contains(key) && parsed->contains(key + "_")) key.push_back('_');
  if (!parsed->contains(key) || !IsImported((*parsed)[key])) return;
  Json& imported = (*parsed)[key];
  if (imported.contains(kImportedItemsKey)) {
    Json& items = imported[kImportedItemsKey];
    PlaceItems(&items, plan);
    if (items.empty()) imported.erase(kImportedItemsKey);
  }
  if (makes_root && imported.contains(kImportedRootKey)) {
    plan->root_metadata = Text(imported[kImportedRootKey]);
    imported.erase(kImportedRootKey);
  }
  if (imported.empty()) parsed->erase(key);
  plan->custom_metadata = Text(*parsed);
}

}  // namespace stepwell::db
