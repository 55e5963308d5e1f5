// SPDX-License-Identifier: Apache-2.0
// From the bytes of a stored value to the elements of its chunks (zarr_metadata.h says which codecs
// made them). The bytes are untrusted: nothing beyond `out` is written, nothing is allocated
// by what they claim, and whatever does not fill `out` exactly is kDataLoss.
#pragma once

#include <cstdint>
#include <vector>

#include "format/orbax/zarr_metadata.h"
#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::orbax {

// The most bytes that any of the codecs makes of a chunk; what is longer is damaged.
uint64_t ZarrEncodedBytesMax(const ZarrCodecs& codecs, uint64_t chunk_bytes);

// Takes the CRC off `stored` and checks it, where there is one.
Result<ConstBytes> CheckZarrCrc(const ZarrCodecs& codecs, ConstBytes stored);
// The chunk of `out.size()` bytes that `stored` is. kUnimplemented: a codec within blosc that is
// not read.
Status DecodeZarrChunk(const ZarrCodecs& codecs, ConstBytes stored, MutableBytes out);

// ---- shards ----

// How many chunks a stored value has; 1 without shards.
uint64_t ZarrInnerCount(const ZarrArray& array);
// Length of a shard's index; 0 without shards.
uint64_t ZarrIndexBytes(const ZarrArray& array);

struct ZarrInnerPlace {
  bool absent = false;
  uint64_t offset_bytes = 0;  // in the value
  uint64_t length_bytes = 0;
};
// `index` is the index's bytes; `value_bytes` the length of the whole value, in which all places
// lie. CRC checked.
Result<std::vector<ZarrInnerPlace>> DecodeZarrIndex(const ZarrArray& array, ConstBytes index,
                                                    uint64_t value_bytes);

}  // namespace stepwell::format::orbax
