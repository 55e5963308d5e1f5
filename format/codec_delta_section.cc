// SPDX-License-Identifier: Apache-2.0
// Sections of deltas: bytes as they are, all alike, or in one zstd frame.
#include <zstd.h>

#include <algorithm>

#include "format/codec_delta.h"
#include "format/zstd_frame.h"

namespace stepwell::format::delta {
namespace {

constexpr int kZstdLevel = 1;
// Sections have few matches, and a match pays only if it is long. A small table of hashes finds the
// long ones in half the time.
constexpr int kZstdMinMatch = 7;
constexpr int kZstdHashLog = 8;
constexpr size_t kLengthBytes = 4;

// Counts equal pairs in a sample. They are few where all 256 values are about as frequent: from 7.7
// bits a byte on what zstd saves is not worth its time.
bool LooksCompressible(ConstBytes bytes) {
  constexpr size_t kSampled = 1024;
  constexpr size_t kUniformPairs = kSampled * kSampled / 256;
  if (bytes.size() < 4 * kSampled) return true;
  uint32_t counts[256] = {};
  const size_t step = bytes.size() / kSampled;
  for (size_t i = 0; i < kSampled; ++i) ++counts[std::to_integer<size_t>(bytes[i * step])];
  size_t squares = 0;
  for (const size_t count : counts) squares += count * count;
  return squares - kSampled > kUniformPairs * 5 / 4;
}

}  // namespace

Status BadDelta(std::string_view what) { return DataLossError(StrCat("bad delta: ", what)); }

struct Writer::Context {
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, Free> zstd{ZSTD_createCCtx()};
};

Writer::Writer(MutableBytes out) : out_(out) {}
Writer::~Writer() = default;

void Writer::Bytes(ConstBytes bytes) {
  full_ = full_ || out_.size() - size_ < bytes.size();
  if (full_ || bytes.empty()) return;
  std::memcpy(out_.data() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

void Writer::Section(ConstBytes bytes) {
  if (bytes.empty() || full_) return;
  if (std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0) {
    Little(SectionKind::kConstant);
    Little(bytes[0]);
    return;
  }
  if (LooksCompressible(bytes) && ZstdSection(bytes)) return;
  Little(SectionKind::kRaw);
  Bytes(bytes);
}

// Returns false, and writes nothing, where the section would be no shorter, or there is no memory.
bool Writer::ZstdSection(ConstBytes bytes) {
  constexpr size_t kHeadBytes = 1 + kLengthBytes;
  if (bytes.size() <= kHeadBytes || out_.size() - size_ <= kHeadBytes) return false;
  if (context_ == nullptr) {
    context_ = std::make_unique<Context>();
    if (context_->zstd == nullptr) return false;
    ZSTD_CCtx_setParameter(context_->zstd.get(), ZSTD_c_compressionLevel, kZstdLevel);
    ZSTD_CCtx_setParameter(context_->zstd.get(), ZSTD_c_minMatch, kZstdMinMatch);
    ZSTD_CCtx_setParameter(context_->zstd.get(), ZSTD_c_hashLog, kZstdHashLog);
  }
  if (context_->zstd == nullptr) return false;
  MutableBytes room = out_.subspan(size_ + kHeadBytes);
  room = room.first(std::min(room.size(), bytes.size() - kHeadBytes));
  const size_t size =
      ZSTD_compress2(context_->zstd.get(), room.data(), room.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0) return false;
  Little(SectionKind::kZstd);
  Little(static_cast<uint32_t>(size));
  size_ += size;
  return true;
}

struct Reader::Context {
  ZstdDecoder zstd{ZSTD_createDCtx()};
};

Reader::Reader(ConstBytes stream) : left_(stream) {}
Reader::~Reader() = default;

Result<ConstBytes> Reader::Bytes(size_t count) {
  if (left_.size() < count) return BadDelta("cut short");
  const ConstBytes bytes = left_.first(count);
  left_ = left_.subspan(count);
  return bytes;
}

Status Reader::Section(MutableBytes out) {
  if (out.empty()) return OkStatus();
  uint8_t kind = 0;
  STEPWELL_RETURN_IF_ERROR(Little(&kind));
  switch (SectionKind{kind}) {
    case SectionKind::kRaw: {
      STEPWELL_ASSIGN_OR_RETURN(const ConstBytes bytes, Bytes(out.size()));
      std::memcpy(out.data(), bytes.data(), out.size());
      return OkStatus();
    }
    case SectionKind::kConstant: {
      uint8_t value = 0;
      STEPWELL_RETURN_IF_ERROR(Little(&value));
      std::memset(out.data(), value, out.size());
      return OkStatus();
    }
    case SectionKind::kZstd:
      return ZstdSection(out);
  }
  return BadDelta(StrCat("section of kind ", int{kind}));
}

Status Reader::ZstdSection(MutableBytes out) {
  uint32_t frame_bytes = 0;
  STEPWELL_RETURN_IF_ERROR(Little(&frame_bytes));
  STEPWELL_ASSIGN_OR_RETURN(const ConstBytes frame, Bytes(frame_bytes));
  if (context_ == nullptr) context_ = std::make_unique<Context>();
  if (context_->zstd == nullptr) return ResourceExhaustedError("zstd: no memory for a decoder");
  const Status status = ZstdFrameDecode(context_->zstd.get(), frame, out);
  return status.ok() ? status : BadDelta(status.message());
}

}  // namespace stepwell::format::delta
