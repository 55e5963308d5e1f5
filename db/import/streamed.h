// SPDX-License-Identifier: Apache-2.0
// Arrays that are read while they are saved: a checkpoint may be larger than memory. Private to
// import/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "db/import/arrays.h"
#include "db/store.h"
#include "io/disk.h"

namespace stepwell::db::import {

// The boxes in which an array is brought to memory, ascending by origin: whole stored values and
// whole chunks of `chunk_shape`, leading axes cut first, of about 16 MiB; or larger where the
// borders of both meet more rarely.
std::vector<format::Box> StreamedBoxes(const ImportArray& array, const format::Shape& chunk_shape);

// Reads boxes when a save asks for them, and forgets them when it has them.
class StreamedArrays final : public FarSource {
 public:
  // `check` gets the outcome of each read, and says what it is: whether the files are still those
  // that were opened. `before_bytes` of `total_bytes` have been read; ImportOptions::progress goes
  // on from there.
  StreamedArrays(io::FileSystem* file_system, ImportOptions options,
                 std::function<Status(const Status&)> check, uint64_t before_bytes,
                 uint64_t total_bytes);

  // Cuts an array (whole, of that shard shape) into boxes, which ImportArray::streamed gets. Its
  // values are decoded whatever `kept` says: payloads are saved as they are only from memory.
  void Add(const format::Shape& shard_shape, ImportArray* array);

  Status Start(std::span<const uint32_t> boxes) override;
  Status Wait(std::span<const uint32_t> boxes, std::vector<Copy>* copies) override;
  Status Release(std::span<const uint32_t> boxes) override;

 private:
  Status ReadStarted();

  io::FileSystem* const file_system_;
  const std::function<void(uint64_t, uint64_t)> progress_;
  const ImportOptions options_;  // without its progress: that counts each read for itself
  const std::function<Status(const Status&)> check_;
  const uint64_t total_bytes_;
  uint64_t done_bytes_;
  std::vector<ImportArray> boxes_;
  std::vector<uint32_t> started_;  // asked for, and not read
};

}  // namespace stepwell::db::import
