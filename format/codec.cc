// SPDX-License-Identifier: Apache-2.0
// Adds and checks the CRC trailer, and picks the codec. The libraries are in codec_*.cc.
#include "format/codec.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "format/crc32c.h"
#include "format/endian.h"

namespace stepwell::format {
namespace {

// Copied bytes are summed while they are in the first-level cache.
constexpr size_t kCopyStepBytes = size_t{16} << 10;

uint32_t CopyAndSum(ConstBytes from, std::byte* to) {
  uint32_t crc = 0;
  for (size_t at = 0; at < from.size(); at += kCopyStepBytes) {
    const size_t step = std::min(kCopyStepBytes, from.size() - at);
    std::memcpy(to + at, from.data() + at, step);
    crc = ExtendCrc32c(crc, {to + at, step});
  }
  return crc;
}

}  // namespace

std::string internal::Hex(uint32_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "0x";
  for (int shift = 28; shift >= 0; shift -= 4) out.push_back(kDigits[(value >> shift) & 0xF]);
  return out;
}

std::span<const CodecInfo> Codecs() {
  static constexpr CodecInfo kCodecs[] = {
      {CodecId::kRaw, "raw", ZarrChain::kBytes, false, [](size_t bytes) { return bytes; }, nullptr,
       nullptr},
      {CodecId::kBloscLz4, "blosc-lz4", ZarrChain::kBlosc, false, internal::BloscBytesMax,
       internal::BloscEncode,
       [](ConstBytes stream, MutableBytes out) {
         return internal::BloscDecode(stream, /*foreign=*/false, out);
       }},
      {CodecId::kLz4Frame, "lz4", ZarrChain::kNone, false, internal::Lz4FrameBytesMax,
       [](size_t, ConstBytes logical, MutableBytes out) {
         return internal::Lz4FrameEncode(logical, out);
       },
       internal::Lz4FrameDecode},
      {CodecId::kDelta, "delta", ZarrChain::kNone, true, internal::DeltaBytesMax, nullptr,
       internal::DeltaDecode},
  };
  return kCodecs;
}

const CodecInfo* FindCodec(CodecId id) {
  for (const CodecInfo& codec : Codecs()) {
    if (codec.id == id) return &codec;
  }
  return nullptr;
}

size_t PayloadBytesMax(CodecId codec, size_t logical_bytes) {
  const CodecInfo* const info = FindCodec(codec);
  return info == nullptr ? 0 : info->bytes_max(logical_bytes) + kCrcBytes;
}

Result<Payload> EncodePayload(CodecId codec, size_t item_bytes, ConstBytes logical,
                              MutableBytes out) {
  if (logical.size() > kPayloadLogicalMax) {
    return InvalidArgumentError(
        StrCat("a chunk of ", logical.size(), " bytes; the limit is ", kPayloadLogicalMax));
  }
  const CodecInfo* const info = FindCodec(codec);
  if (info == nullptr) return InvalidArgumentError(StrCat("codec ", static_cast<unsigned>(codec)));
  if (info->needs_base) return InvalidArgumentError(StrCat(info->name, " needs a base"));
  if (out.size() < PayloadBytesMax(codec, logical.size())) {
    return InvalidArgumentError(StrCat("room for ", out.size(), " bytes, the payload may need ",
                                       PayloadBytesMax(codec, logical.size())));
  }
  Payload payload;
  size_t size = logical.size();
  if (info->encode == nullptr) {
    payload.crc = logical.data() == out.data() ? Crc32c(logical) : CopyAndSum(logical, out.data());
  } else {
    STEPWELL_ASSIGN_OR_RETURN(size,
                              info->encode(item_bytes, logical, out.first(out.size() - kCrcBytes)));
    payload.crc = Crc32c(out.first(size));
  }
  StoreLittle(out.data() + size, payload.crc);
  payload.size_bytes = size + kCrcBytes;
  return payload;
}

Result<Payload> EncodeDelta(DeltaType type, ConstBytes base, ConstBytes logical, MutableBytes out) {
  if (logical.size() > kPayloadLogicalMax || base.size() != logical.size()) {
    return InvalidArgumentError(StrCat("a delta of ", logical.size(), " bytes to ", base.size(),
                                       "; the limit is ", kPayloadLogicalMax));
  }
  // Readers take a longer payload for damage.
  out = out.first(std::min(out.size(), PayloadBytesMax(CodecId::kDelta, logical.size())));
  Payload payload;
  if (out.size() < kCrcBytes) return payload;
  STEPWELL_ASSIGN_OR_RETURN(
      const size_t size,
      internal::DeltaEncode(type, base, logical, out.first(out.size() - kCrcBytes)));
  if (size == 0) return payload;
  payload.crc = Crc32c(out.first(size));
  StoreLittle(out.data() + size, payload.crc);
  payload.size_bytes = size + kCrcBytes;
  return payload;
}

Status CheckPayload(ConstBytes payload, uint32_t crc) {
  if (payload.size() < kCrcBytes) {
    return DataLossError(StrCat("a payload of ", payload.size(), " bytes is shorter than its CRC"));
  }
  const ConstBytes body = payload.first(payload.size() - kCrcBytes);
  const uint32_t found = Crc32c(body);
  if (found != crc) {
    return DataLossError(StrCat("checksum mismatch: expected ", internal::Hex(crc), ", found ",
                                internal::Hex(found)));
  }
  const auto trailer = LoadLittle<uint32_t>(payload.data() + body.size());
  if (trailer != crc) {
    return DataLossError(StrCat("checksum trailer mismatch: expected ", internal::Hex(crc),
                                ", found ", internal::Hex(trailer)));
  }
  return OkStatus();
}

Status DecodePayload(CodecId codec, ConstBytes payload, MutableBytes out) {
  if (payload.size() < kCrcBytes) {
    return DataLossError(StrCat("a payload of ", payload.size(), " bytes is shorter than its CRC"));
  }
  if (out.size() > kPayloadLogicalMax) {
    return DataLossError(
        StrCat("a chunk of ", out.size(), " bytes; the limit is ", kPayloadLogicalMax));
  }
  const ConstBytes body = payload.first(payload.size() - kCrcBytes);
  const CodecInfo* const info = FindCodec(codec);
  if (info == nullptr) {
    return DataLossError(StrCat("unknown codec ", static_cast<unsigned>(codec)));
  }
  if (info->decode != nullptr) return info->decode(body, out);
  if (body.size() != out.size()) {
    return DataLossError(
        StrCat("raw payload holds ", body.size(), " bytes, expected ", out.size()));
  }
  // The payload may have been read straight to its place.
  if (!out.empty() && body.data() != out.data()) std::memcpy(out.data(), body.data(), out.size());
  return OkStatus();
}

double SampleRatio(ConstBytes sample, size_t item_bytes) {
  sample = sample.first(std::min<size_t>(sample.size(), kPayloadLogicalMax));
  if (sample.empty()) return 1;
  std::vector<std::byte> scratch(internal::BloscBytesMax(sample.size()));
  const Result<size_t> size = internal::BloscEncode(item_bytes, sample, scratch);
  if (!size.ok()) return 1;
  return std::max(0.9, static_cast<double>(sample.size()) / static_cast<double>(*size));
}

}  // namespace stepwell::format
