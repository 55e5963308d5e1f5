// SPDX-License-Identifier: Apache-2.0
// Describes the entries at a path of a step and below it, for people and programs.
#pragma once

#include <string>
#include <vector>

#include <stepwell/step.h>

#include "api/cli/output.h"

namespace stepwell::cli {

struct Entry {
  LeafInfo info;
  std::string item;
  // The path as the user sees it: the item's name (as a mapping key) first, where it may not be
  // left out.
  KeyPath shown;
  std::string text;  // `shown`, as the user would write it
};

struct Selection {
  std::string text;            // the path, as the user would write it; "" for the whole step
  size_t depth = 0;            // components of `shown` that all entries share
  std::vector<Entry> entries;  // in key order: what stands at the path, and all below it
};

// `only_state`: paths are shown without the item's name.
Result<Selection> Select(const Step& step, const Path& path, bool only_state);
inline Result<Selection> Select(const Step& step, const Path& path) {
  return Select(step, path, step.info().only_state());
}

inline bool IsValue(const LeafInfo& info) {
  return info.type != LeafType::kArray && info.type != LeafType::kNode;
}
std::string Spelling(const PathComponent& component);
std::string DTypeName(DType dtype);
// Describes an entry in a few words: "float32[3, 4]", "int 3", "dict".
std::string Description(const LeafInfo& info);
// The value of a leaf that the step's record has, for documents.
void AddValue(const LeafInfo& info, Json* json);

}  // namespace stepwell::cli
