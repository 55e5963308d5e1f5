// SPDX-License-Identifier: Apache-2.0
// Arrays of zarr, of either version, into memory: which stored values make up which arrays, reads
// in the order of the files, decoding on several threads. Private to db/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "db/import_source.h"
#include "format/dtype.h"
#include "format/orbax/zarr_metadata.h"
#include "io/buffer.h"

namespace stepwell::db::import {

// An array to be read.
struct ImportArray {
  std::string label;       // "item 'state', leaf 'a/b'"
  std::string param_name;  // the beginning of its keys
  ValueIndex* index = nullptr;
  format::orbax::ZarrArray zarr;
  const format::DTypeInfo* dtype = nullptr;
  uint64_t size_bytes = 0;
  // Chunks that are absent hold the fill value: then these are its bytes. Else they are missing.
  bool may_be_absent = false;
  std::string fill;
  std::string fill_problem;  // why that could not be read, where it would have been
  // Set by ReadArrays: the elements in C order; or, of what is stored as we would store it, the
  // stored values themselves, one a chunk (import_payloads.h), somewhere in that memory.
  std::byte* data = nullptr;
  std::vector<MutableBytes> payloads;
  uint64_t memory_bytes = 0;
  std::shared_ptr<const void> hold;
};

struct ReadOptions {
  size_t threads = 0;
  uint64_t memory_bytes_max = 0;  // never 0
  std::function<bool()> keep_waiting;
};

// Reads an array's metadata, looks at what can be known without its chunks, and fills `zarr`,
// `dtype`, `size_bytes` and `fill`.
Status DescribeArray(int zarr_format, uint64_t memory_bytes_max, ImportArray* array);

// Reads all of them: `data` or `payloads` is theirs then. The first error, in the order of the
// reads, ends it.
Status ReadArrays(io::FileSystem* file_system, const ReadOptions& options,
                  std::vector<ImportArray>* arrays);

}  // namespace stepwell::db::import
