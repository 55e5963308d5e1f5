// SPDX-License-Identifier: Apache-2.0
// Which records of a step a path on the command line means.
//
// Components are joined by "/"; `\` makes the next character ordinary. The first component is the
// item; when a step has only the item "state", its name may be left out. Matching is by spelling:
// key 0, index 0 and attribute "0" are all "0".
#pragma once

#include <string>
#include <vector>

#include "db/store.h"
#include "io/result.h"

namespace stepwell::cli {

struct Entry {
  format::LeafRecord record;
  std::string item;
  // The path as the user sees it: the item's name (as a mapping key) first, where it may not be
  // left out.
  format::KeyPath shown;
  std::string text;  // `shown`, as the user would write it
};

struct Selection {
  std::string text;            // the path, as the user would write it
  size_t depth = 0;            // how many components of `shown` it has
  std::vector<Entry> entries;  // in key order: what stands at the path, and all below it
  // Entries that stand at the path itself (first of `entries`); 0 for an unrecorded inner node.
  size_t exact_count = 0;
};

// "a/b\/c" -> {"a", "b/c"}; "" -> {}. kInvalidArgument when a `\` ends it.
Result<std::vector<std::string>> SplitPath(const std::string& text);
std::string Spelling(const format::PathComponent& component);

// Whether the item's name may be left out: the step has only the item "state".
bool OnlyState(const format::StepRecord& step);
// kNotFound names the nearest paths. `only_state`: paths are shown without the item's name.
Result<Selection> Select(db::StepReader* reader, const std::string& path_text, bool only_state);
Result<Selection> Select(db::StepReader* reader, const std::string& path_text);

// Stored bytes of a record's chunks, or of its inline value.
uint64_t StoredBytes(const format::LeafRecord& record);
// Bytes of the array or value, decoded.
uint64_t LogicalBytes(const format::LeafRecord& record);

}  // namespace stepwell::cli
