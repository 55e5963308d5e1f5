// SPDX-License-Identifier: Apache-2.0
// What codec.cc needs from the libraries' wrappers. All sizes are without the CRC trailer; inputs
// are at most kPayloadLogicalMax. Decoders fill all of `out` or return kDataLoss.
#pragma once

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format::internal {

std::string Hex(uint32_t crc);  // "0x1234abcd", for messages

size_t BloscBytesMax(size_t logical_bytes);
Result<size_t> BloscEncode(size_t item_bytes, ConstBytes logical, MutableBytes out);
Status BloscDecode(ConstBytes stream, MutableBytes out);
// The same for streams of other writers: zlib and zstd inside are accepted, too.
Status BloscDecodeForeign(ConstBytes stream, MutableBytes out);

size_t Lz4FrameBytesMax(size_t logical_bytes);
Result<size_t> Lz4FrameEncode(ConstBytes logical, MutableBytes out);
Status Lz4FrameDecode(ConstBytes frame, MutableBytes out);

}  // namespace stepwell::format::internal
