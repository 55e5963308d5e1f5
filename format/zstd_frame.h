// SPDX-License-Identifier: Apache-2.0
// One zstd frame of known content size: the strict reading of it that all of format/'s own messages
// share. (Orbax's files are read as their own rules say.)
#pragma once

#include <zstd.h>

#include <memory>

#include "io/bytes.h"
#include "io/result.h"

namespace stepwell::format {

struct FreeZstdDecoder {
  void operator()(ZSTD_DCtx* decoder) const { ZSTD_freeDCtx(decoder); }
};
using ZstdDecoder = std::unique_ptr<ZSTD_DCtx, FreeZstdDecoder>;

// Fills `out`. kDataLoss unless `frame` is one frame of version 1 of zstd's format, with nothing
// behind it, that states and has out.size() bytes.
Status ZstdFrameDecode(ZSTD_DCtx* decoder, ConstBytes frame, MutableBytes out);

}  // namespace stepwell::format
