// SPDX-License-Identifier: Apache-2.0
#include "format/zstd_frame.h"

#include <cstdint>

#include "format/endian.h"

namespace stepwell::format {

Status ZstdFrameDecode(ZSTD_DCtx* decoder, ConstBytes frame, MutableBytes out) {
  // Neither a skippable frame nor one of the formats before version 1, which libzstd may know.
  if (frame.size() < sizeof(uint32_t) || LoadLittle<uint32_t>(frame.data()) != ZSTD_MAGICNUMBER ||
      ZSTD_findFrameCompressedSize(frame.data(), frame.size()) != frame.size()) {
    return DataLossError("no zstd frame");
  }
  if (ZSTD_getFrameContentSize(frame.data(), frame.size()) != out.size()) {
    return DataLossError("a zstd frame of another size");
  }
  const size_t size =
      ZSTD_decompressDCtx(decoder, out.data(), out.size(), frame.data(), frame.size());
  if (ZSTD_isError(size) != 0) return DataLossError(ZSTD_getErrorName(size));
  return size == out.size() ? OkStatus() : DataLossError("a zstd frame of another size");
}

}  // namespace stepwell::format
