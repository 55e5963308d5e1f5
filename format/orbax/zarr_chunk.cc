// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/zarr_metadata.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "format/codec.h"
#include "format/crc32c.h"
#include "format/endian.h"
#include "format/orbax/json.h"

namespace stepwell::format::orbax {
namespace {

constexpr size_t kPlaceBytes = 2 * sizeof(uint64_t);
// Bounds the bytes that headers, and data that does not compress, add.
constexpr uint64_t kEncodedSlackBytes = uint64_t{64} << 10;
// For zlib: window of 32 KiB, with zlib's header or gzip's.
constexpr int kZlibWindow = 15;
constexpr int kGzipWindow = kZlibWindow + 16;

Result<ConstBytes> TakeCrc(std::string_view what, ConstBytes stored) {
  if (stored.size() < kCrcBytes) {
    return DataLossError(StrCat(what, " of ", stored.size(), " bytes is shorter than its CRC-32C"));
  }
  const ConstBytes body = stored.first(stored.size() - kCrcBytes);
  const auto expected = LoadLittle<uint32_t>(stored.data() + body.size());
  const uint32_t found = Crc32c(body);
  if (found != expected) {
    return DataLossError(StrCat("wrong CRC-32C of ", what, ": stored ",
                                format::internal::Hex(expected), ", found ",
                                format::internal::Hex(found)));
  }
  return body;
}

Status WrongLength(uint64_t found, uint64_t expected) {
  return DataLossError(StrCat("its chunk has ", found, " bytes, expected ", expected));
}

Status DecodeZstd(ConstBytes in, MutableBytes out) {
  const size_t frame_bytes = ZSTD_findFrameCompressedSize(in.data(), in.size());
  if (ZSTD_isError(frame_bytes)) {
    return DataLossError(StrCat("zstd: ", ZSTD_getErrorName(frame_bytes)));
  }
  if (frame_bytes != in.size()) return DataLossError("bytes behind its zstd frame");
  const size_t size = ZSTD_decompress(out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(size)) return DataLossError(StrCat("zstd: ", ZSTD_getErrorName(size)));
  if (size != out.size()) return WrongLength(size, out.size());
  return OkStatus();
}

Status Inflate(z_stream* stream, ConstBytes in, MutableBytes out) {
  constexpr size_t kStepMax = std::numeric_limits<uInt>::max();
  size_t taken = 0;
  size_t made = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    const size_t in_step = std::min(in.size() - taken, kStepMax);
    const size_t out_step = std::min(out.size() - made, kStepMax);
    stream->next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data() + taken));
    stream->avail_in = static_cast<uInt>(in_step);
    stream->next_out = reinterpret_cast<Bytef*>(out.data() + made);
    stream->avail_out = static_cast<uInt>(out_step);
    result = inflate(stream, Z_NO_FLUSH);
    taken += in_step - stream->avail_in;
    made += out_step - stream->avail_out;
  }
  if (result == Z_BUF_ERROR) {
    if (made == out.size()) return DataLossError("its chunk is longer than it should be");
    return DataLossError(StrCat("its compressed bytes end early; the chunk has ", made,
                                " bytes, expected ", out.size()));
  }
  if (result != Z_STREAM_END) {
    return DataLossError(StrCat("zlib: ", stream->msg != nullptr ? stream->msg : "bad stream"));
  }
  if (made != out.size()) return WrongLength(made, out.size());
  if (taken != in.size()) return DataLossError("bytes behind its compressed stream");
  return OkStatus();
}

Status DecodeZlib(int window, ConstBytes in, MutableBytes out) {
  z_stream stream{};
  if (inflateInit2(&stream, window) != Z_OK) return ResourceExhaustedError("no memory for zlib");
  const Status status = Inflate(&stream, in, out);
  inflateEnd(&stream);
  return status;
}

// ---- fill values: from JSON to the bytes of an element ----

using internal::DTypeClass;

void AppendBits(uint64_t bits, size_t size_bytes, std::string* out) {
  for (size_t i = 0; i < size_bytes; ++i) out->push_back(static_cast<char>(bits >> (8 * i) & 0xFF));
}

Status AppendInteger(const JsonNode& node, const DTypeInfo& dtype, std::string* out) {
  const bool is_unsigned = dtype.name[0] == 'u';
  const int bits = dtype.value_bits != 0 ? dtype.value_bits : 8 * dtype.item_bytes;
  uint64_t value = 0;
  if (is_unsigned) {
    STEPWELL_ASSIGN_OR_RETURN(value, node.Unsigned(UINT64_MAX >> (64 - bits)));
  } else {
    STEPWELL_ASSIGN_OR_RETURN(const int64_t number, node.Signed());
    const int64_t max = static_cast<int64_t>(UINT64_MAX >> (65 - bits));
    if (number < -max - 1 || number > max) {
      return node.Error(StrCat(number, " is not of type ", dtype.name));
    }
    value = static_cast<uint64_t>(number) & UINT64_MAX >> (64 - bits);
  }
  AppendBits(value, dtype.item_bytes, out);
  return OkStatus();
}

// One float of 4 or 8 bytes, or any float whose bits are said.
Status AppendFloat(const JsonNode& node, size_t size_bytes, bool small, std::string* out) {
  double value = 0;
  if (node.value().is_string()) {
    STEPWELL_ASSIGN_OR_RETURN(const std::string_view text, node.Text());
    uint64_t bits = 0;
    if (text.starts_with("0x") && text.size() == 2 + 2 * size_bytes) {
      const auto [stop, error] =
          std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);
      if (error == std::errc() && stop == text.data() + text.size()) {
        AppendBits(bits, size_bytes, out);
        return OkStatus();
      }
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (text == "NaN") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (text == "Infinity" || text == "-Infinity") {
      value = text[0] == '-' ? -kInfinity : kInfinity;
    } else {
      return node.Error(StrCat("\"", Printable(text), "\" is not a number"));
    }
  } else if (node.value().is_number()) {
    value = node.value().get<double>();
  } else {
    return node.Error("is not a number");
  }
  if (small && (value != 0 || std::signbit(value))) {
    return node.Unknown("a fill value other than 0 is not read for this type");
  }
  if (size_bytes == sizeof(double)) {
    AppendBits(std::bit_cast<uint64_t>(value), size_bytes, out);
  } else if (size_bytes == sizeof(float) && !small) {
    // Converting what no float can hold is undefined.
    const double max = std::numeric_limits<float>::max();
    if (std::isfinite(value) && std::abs(value) > max) {
      return node.Unknown("the fill value is beyond the range of its type");
    }
    AppendBits(std::bit_cast<uint32_t>(static_cast<float>(value)), size_bytes, out);
  } else {
    AppendBits(0, size_bytes, out);
  }
  return OkStatus();
}

}  // namespace

uint64_t ZarrEncodedBytesMax(const ZarrCodecs& codecs, uint64_t chunk_bytes) {
  const uint64_t crc_bytes = codecs.crc32c ? kCrcBytes : 0;
  if (codecs.compressor == ZarrCompressor::kNone) return chunk_bytes + crc_bytes;
  return chunk_bytes + chunk_bytes / 8 + kEncodedSlackBytes + crc_bytes;
}

Result<ConstBytes> CheckZarrCrc(const ZarrCodecs& codecs, ConstBytes stored) {
  return codecs.crc32c ? TakeCrc("a chunk", stored) : Result<ConstBytes>(stored);
}

Status DecodeZarrChunk(const ZarrCodecs& codecs, ConstBytes stored, MutableBytes out) {
  STEPWELL_ASSIGN_OR_RETURN(const ConstBytes body, CheckZarrCrc(codecs, stored));
  switch (codecs.compressor) {
    case ZarrCompressor::kNone:
      if (body.size() != out.size()) return WrongLength(body.size(), out.size());
      if (!out.empty()) std::memcpy(out.data(), body.data(), out.size());
      return OkStatus();
    case ZarrCompressor::kZstd:
      return DecodeZstd(body, out);
    case ZarrCompressor::kBlosc:
      return format::internal::BloscDecode(body, /*foreign=*/true, out);
    case ZarrCompressor::kGzip:
      return DecodeZlib(kGzipWindow, body, out);
    case ZarrCompressor::kZlib:
      return DecodeZlib(kZlibWindow, body, out);
  }
  return InternalError("an unknown compressor");
}

uint64_t ZarrInnerCount(const ZarrArray& array) {
  if (!array.sharding) return 1;
  uint64_t count = 1;
  for (size_t axis = 0; axis < array.chunk_shape.size(); ++axis) {
    count *= array.chunk_shape[axis] / array.sharding->inner_shape[axis];
  }
  return count;
}

uint64_t ZarrIndexBytes(const ZarrArray& array) {
  if (!array.sharding) return 0;
  return ZarrInnerCount(array) * kPlaceBytes + (array.sharding->index_crc32c ? kCrcBytes : 0);
}

Result<std::vector<ZarrInnerPlace>> DecodeZarrIndex(const ZarrArray& array, ConstBytes index,
                                                    uint64_t value_bytes) {
  if (!array.sharding || index.size() != ZarrIndexBytes(array)) {
    return InvalidArgumentError("not the length of the index");
  }
  ConstBytes body = index;
  if (array.sharding->index_crc32c) {
    STEPWELL_ASSIGN_OR_RETURN(body, TakeCrc("a shard's index", index));
  }
  std::vector<ZarrInnerPlace> places(body.size() / kPlaceBytes);
  const std::byte* at = body.data();
  for (ZarrInnerPlace& place : places) {
    place.offset_bytes = LoadLittle<uint64_t>(at);
    place.length_bytes = LoadLittle<uint64_t>(at + sizeof(uint64_t));
    at += kPlaceBytes;
    place.absent = place.offset_bytes == UINT64_MAX && place.length_bytes == UINT64_MAX;
    if (place.absent) continue;
    if (place.offset_bytes > value_bytes || place.length_bytes > value_bytes - place.offset_bytes) {
      return DataLossError(StrCat("a shard's index has a chunk at ", place.offset_bytes, " with ",
                                  place.length_bytes, " bytes, of ", value_bytes));
    }
  }
  return places;
}

Result<std::string> ZarrFillElement(std::string_view file, const ZarrArray& array) {
  const DTypeInfo* dtype = FindDType(array.dtype);
  if (dtype == nullptr) return InvalidArgumentError("an array without a type of elements");
  STEPWELL_ASSIGN_OR_RETURN(const Json json,
                            ParseJson(file, array.fill_value, JsonDialect::kStrict));
  const JsonNode root(file, json);
  const JsonNode node = root.Child("fill_value", json);
  std::string out;
  if (json.is_null()) return std::string(dtype->item_bytes, '\0');
  switch (internal::ClassOf(array.dtype)) {
    case DTypeClass::kBool: {
      STEPWELL_ASSIGN_OR_RETURN(const bool value, node.Bool());
      out.push_back(value ? '\1' : '\0');
      break;
    }
    case DTypeClass::kInteger:
      STEPWELL_RETURN_IF_ERROR(AppendInteger(node, *dtype, &out));
      break;
    case DTypeClass::kFloat:
      STEPWELL_RETURN_IF_ERROR(AppendFloat(node, dtype->item_bytes, dtype->item_bytes < 4, &out));
      break;
    case DTypeClass::kComplex:
      STEPWELL_RETURN_IF_ERROR(node.CheckArray(2));
      if (json.size() != 2) return node.Error("a complex number has two parts");
      for (size_t part = 0; part < 2; ++part) {
        const JsonNode element = node.At(part);
        STEPWELL_RETURN_IF_ERROR(AppendFloat(element, dtype->item_bytes / 2, false, &out));
      }
      break;
  }
  return out;
}

}  // namespace stepwell::format::orbax
