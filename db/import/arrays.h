// SPDX-License-Identifier: Apache-2.0
// Arrays of zarr, of either version, into memory: which stored values make up which arrays, reads
// in the order of the files, decoding on several threads. Private to db/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "db/import/import.h"
#include "db/import/source.h"
#include "format/codec.h"
#include "format/dtype.h"
#include "format/grid.h"
#include "format/orbax/zarr_metadata.h"
#include "io/buffer.h"

namespace stepwell::db::import {

// A box that StreamedArrays reads when a save asks for its number.
struct StreamedBox {
  uint32_t number = 0;
  format::Box box;
};

// An array to be read, or a box of one.
struct ImportArray {
  std::string label;       // "item 'state', leaf 'a/b'"
  std::string param_name;  // the beginning of its keys
  ValueIndex* index = nullptr;
  format::orbax::ZarrArray zarr;  // of a box: as if it were all of the array
  format::Shape origin;           // of a box, on the grid of the chunks; else zeros
  format::Shape whole_shape;
  const format::DTypeInfo* dtype = nullptr;
  uint64_t size_bytes = 0;
  // Chunks that are absent hold the fill value: then these are its bytes. Else they are missing.
  bool may_be_absent = false;
  std::string fill;
  std::string fill_problem;  // why that could not be read, where it would have been
  // Set: the stored values are saved as they are (PayloadCodec).
  std::optional<format::CodecId> kept;
  // Not empty: it is read while it is saved, on the grid of `chunk_shape`.
  std::vector<StreamedBox> streamed;
  format::Shape chunk_shape;
  // Set by ReadArrays: the elements in C order; or, of what is kept, the stored values themselves,
  // one a chunk, somewhere in that memory.
  std::byte* data = nullptr;
  std::vector<MutableBytes> payloads;
  uint64_t memory_bytes = 0;
  std::shared_ptr<const void> hold;
};

// Returns the chunk's indices in the grid of the whole array.
format::Shape ChunkIndices(const ImportArray& array, uint64_t chunk_index);
// The key of the value that has a chunk.
std::string ChunkKey(const ImportArray& array, uint64_t chunk_index);
// A box of an array that is not read yet.
ImportArray BoxOf(const ImportArray& array, const format::Box& box);

// Reads an array's metadata, looks at what can be known without its chunks, and fills `zarr`,
// `dtype`, `size_bytes`, `fill` and `kept`.
Status DescribeArray(int zarr_format, uint64_t memory_bytes_max, ImportArray* array);

// Reads all of them that are not streamed: `data` or `payloads` is theirs then. The first error, in
// the order of the reads, ends it. `options` says `memory_bytes_max`.
Status ReadArrays(io::FileSystem* file_system, const ImportOptions& options,
                  std::vector<ImportArray>* arrays);

}  // namespace stepwell::db::import
