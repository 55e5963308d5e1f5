// SPDX-License-Identifier: Apache-2.0
// Stored values that are payloads of ours already: they are saved as they are. Private to db/.
#pragma once

#include <optional>

#include "db/import/arrays.h"
#include "format/codec.h"
#include "io/buffer.h"
#include "io/bytes.h"

namespace stepwell::db::import {

// The codec whose payloads the array's stored values claim to be, in a grid that we would store;
// none: they are to be decoded. Of the whole array, whose chunks are looked up.
Result<std::optional<format::CodecId>> PayloadCodec(const ImportArray& array);

// Whether it is what it claims: its CRC, its length, and that it decodes (into `scratch`).
// kDataLoss.
Status CheckPayload(const ImportArray& array, ConstBytes payload, io::AlignedBuffer* scratch);

}  // namespace stepwell::db::import
