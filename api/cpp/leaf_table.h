// SPDX-License-Identifier: Apache-2.0
// The records of one step, and which of them a path means.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <stepwell/store.h>

#include "format/records.h"

namespace stepwell {

// Immutable once made.
class LeafTable {
 public:
  // `records` in key order, as StepReader::Leaves gives them.
  static Result<LeafTable> Make(const StepInfo& info, std::vector<format::LeafRecord> records);

  // Records [begin, end): what stands at a path and all below it.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  Result<Range> Find(const Path& path) const;
  // The one array or value at `path`.
  Result<const format::LeafRecord*> FindLeaf(const Path& path) const;

  const std::vector<format::LeafRecord>& records() const { return records_; }

 private:
  LeafTable() = default;
  Status Index();
  void Open(const std::string& text, size_t begin);
  Result<Range> FindExact(const std::string& item, const KeyPath& path) const;
  Status NotFound(const Path& path, const std::vector<std::string>& components) const;

  uint64_t step_ = 0;
  bool only_state_ = false;  // its name may be left out
  std::vector<format::LeafRecord> records_;
  // By spelling, item first, escaped and joined. More than one: components of several types that
  // are spelled alike.
  std::unordered_map<std::string, std::vector<Range>> ranges_;
};

Result<LeafInfo> ToPublic(const format::LeafRecord& record);

}  // namespace stepwell
