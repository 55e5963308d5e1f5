// SPDX-License-Identifier: Apache-2.0
// One stored value of an array to its place in the array's memory. Private to db/.
#pragma once

#include <cstdint>
#include <optional>

#include "db/import/arrays.h"
#include "format/codec.h"
#include "io/buffer.h"
#include "io/bytes.h"

namespace stepwell::db::import {

// Room of at least `bytes`; kResourceExhausted when there is none.
Status EnsureRoom(uint64_t bytes, io::AlignedBuffer* buffer);

// Decodes all chunks of a stored value, chunk `chunk_index` of the array's grid. `scratch` is for
// chunks that are not one range of the array's memory. Different chunks may be decoded at once.
Status DecodeValue(const ImportArray& array, uint64_t chunk_index, ConstBytes value,
                   io::AlignedBuffer* scratch);
// The same where the value is absent: its elements become the fill value.
Status FillValue(const ImportArray& array, uint64_t chunk_index, io::AlignedBuffer* scratch);

// Checks the bytes around a value's only chunk, which was read to the array's memory already.
// `chunk` is that memory, `rest` the value without it: CRC, index. kFailedPrecondition: the value
// is laid out in another way.
Status CheckPlainValue(const ImportArray& array, ConstBytes chunk, ConstBytes crc,
                       ConstBytes index);

// ---- stored values that are payloads of ours already, and saved as they are ----

// The codec whose payloads the array's stored values claim to be, in a grid that we would store;
// none: they are to be decoded. Of the whole array, whose chunks are looked up.
Result<std::optional<format::CodecId>> PayloadCodec(const ImportArray& array);

// Checks that the payload is what it claims to be: its CRC, its length, and that it decodes (into
// `scratch`). kDataLoss.
Status CheckPayload(const ImportArray& array, ConstBytes payload, io::AlignedBuffer* scratch);

}  // namespace stepwell::db::import
