// SPDX-License-Identifier: Apache-2.0
// LZ4 frames: one frame with its content size, nothing before or behind it.
#include <lz4frame.h>

#include <memory>

#include "format/codec.h"

namespace stepwell::format::internal {
namespace {

LZ4F_preferences_t Preferences(size_t logical_bytes) {
  LZ4F_preferences_t preferences = {};
  preferences.frameInfo.contentSize = logical_bytes;
  preferences.frameInfo.blockSizeID = LZ4F_max1MB;
  preferences.frameInfo.blockMode = LZ4F_blockLinked;
  // No checksums of its own: the payload's CRC follows.
  return preferences;
}

Status BadFrame(std::string_view what) { return DataLossError(StrCat("bad LZ4 frame: ", what)); }

struct FreeContext {
  void operator()(LZ4F_dctx* context) const { LZ4F_freeDecompressionContext(context); }
};

}  // namespace

size_t Lz4FrameBytesMax(size_t logical_bytes) {
  const LZ4F_preferences_t preferences = Preferences(logical_bytes);
  return LZ4F_compressFrameBound(logical_bytes, &preferences);
}

Result<size_t> Lz4FrameEncode(ConstBytes logical, MutableBytes out) {
  const LZ4F_preferences_t preferences = Preferences(logical.size());
  const size_t size =
      LZ4F_compressFrame(out.data(), out.size(), logical.data(), logical.size(), &preferences);
  if (LZ4F_isError(size) != 0) return InternalError(StrCat("LZ4: ", LZ4F_getErrorName(size)));
  return size;
}

Status Lz4FrameDecode(ConstBytes frame, MutableBytes out) {
  LZ4F_dctx* raw_context = nullptr;
  if (LZ4F_isError(LZ4F_createDecompressionContext(&raw_context, LZ4F_VERSION)) != 0) {
    return ResourceExhaustedError("LZ4: no memory for a decoder");
  }
  const std::unique_ptr<LZ4F_dctx, FreeContext> context(raw_context);
  LZ4F_frameInfo_t info = {};
  size_t consumed = frame.size();
  const size_t hint = LZ4F_getFrameInfo(context.get(), &info, frame.data(), &consumed);
  if (LZ4F_isError(hint) != 0) return BadFrame(LZ4F_getErrorName(hint));
  if (info.frameType != LZ4F_frame) return BadFrame("skippable frame");
  if (info.dictID != 0) return BadFrame("needs a dictionary");
  // A content size of 0 also stands for "unknown", which only the empty frame may have.
  if (info.contentSize != out.size()) {
    return BadFrame(StrCat("holds ", info.contentSize, " bytes, expected ", out.size()));
  }
  size_t produced = 0;
  for (;;) {
    std::byte nothing{};
    size_t to_bytes = out.size() - produced;
    size_t from_bytes = frame.size() - consumed;
    const size_t result =
        LZ4F_decompress(context.get(), to_bytes > 0 ? out.data() + produced : &nothing, &to_bytes,
                        frame.data() + consumed, &from_bytes, nullptr);
    if (LZ4F_isError(result) != 0) return BadFrame(LZ4F_getErrorName(result));
    produced += to_bytes;
    consumed += from_bytes;
    if (result == 0) break;
    if (to_bytes == 0 && from_bytes == 0) return BadFrame("cut short, or longer than it says");
  }
  if (produced != out.size()) return BadFrame("ends early");
  if (consumed != frame.size()) return BadFrame("bytes behind its end");
  return OkStatus();
}

}  // namespace stepwell::format::internal
