// SPDX-License-Identifier: Apache-2.0
// Reading steps out of the index's column families. Private to db/index/.
#pragma once

#include <rocksdb/db.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "db/index/index.h"

namespace stepwell::db {

struct IndexFamilies {
  rocksdb::DB* db = nullptr;
  rocksdb::ColumnFamilyHandle* meta = nullptr;
  rocksdb::ColumnFamilyHandle* steps = nullptr;
  rocksdb::ColumnFamilyHandle* leaves = nullptr;
  rocksdb::ColumnFamilyHandle* chunks = nullptr;
};

// Row of `steps`: the commit frame's CRC (4 bytes, little-endian), then the StepRecord message.
std::string EncodeStepRow(const format::StepRecord& step, uint32_t frame_crc);

// Errors are Status values; exceptions (memory) pass through.
Result<std::vector<IndexedStep>> ReadSteps(const IndexFamilies& families);
Result<std::optional<std::vector<format::LeafRecord>>> ReadLeaves(const IndexFamilies& families,
                                                                  uint64_t step, uint64_t commit,
                                                                  uint32_t frame_crc,
                                                                  const format::KeyRange& range);
Result<std::optional<format::StepRecord>> ReadStepRow(const IndexFamilies& families, uint64_t step,
                                                      uint64_t commit, uint32_t frame_crc);
// The row with another pin.
Result<std::string> RepinStepRow(std::string_view key, std::string_view row, bool pinned);

}  // namespace stepwell::db
