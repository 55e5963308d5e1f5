// SPDX-License-Identifier: Apache-2.0
// Encodes deltas. The memory that it takes, about 1.5 MiB, does not depend on the chunk.
#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "format/codec_delta.h"

namespace stepwell::format::delta {
namespace {

constexpr int kZstdLevel = 1;
// Shorter matches cost more than the symbols that they replace, in what is stored here.
constexpr int kZstdMinMatch = 7;

// Up to this share of changed elements gaps are shorter and faster than a bitmap; beyond the other
// share it is not worth telling apart which elements changed.
constexpr bool FewChanged(size_t changed, size_t items) { return changed * 20 <= items * 3; }
constexpr bool MostChanged(size_t changed, size_t items) { return changed * 10 > items * 9; }
constexpr size_t kValuesMax = std::max(kDenseSpanItems, kSpanItemsMax * 3 / 20 + 1);
constexpr size_t kGapBytesMax = kValuesMax + kSpanItemsMax / kGapGoesOn + 1;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};

// Appends to a span of fixed size. Once something does not fit it is full, and all else is dropped.
class Writer {
 public:
  explicit Writer(MutableBytes out) : out_(out) {}
  bool full() const { return full_; }
  size_t size() const { return size_; }

  template <typename U>
  void Little(U value) {
    if (!Fits(sizeof(value))) return;
    StoreLittle(out_.data() + size_, value);
    size_ += sizeof(value);
  }
  void Bytes(ConstBytes bytes) {
    if (bytes.empty() || !Fits(bytes.size())) return;
    std::memcpy(out_.data() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }
  // Returns what is left behind the next `skipped` bytes.
  MutableBytes Room(size_t skipped) {
    return full_ || out_.size() - size_ < skipped ? MutableBytes() : out_.subspan(size_ + skipped);
  }
  void Advance(size_t bytes) { size_ += bytes; }

 private:
  bool Fits(size_t bytes) {
    full_ = full_ || out_.size() - size_ < bytes;
    return !full_;
  }

  MutableBytes out_;
  size_t size_ = 0;
  bool full_ = false;
};

// Writes sections: bytes whose number the reader knows.
class SectionWriter {
 public:
  explicit SectionWriter(Writer* out) : out_(out) {}

  void Add(ConstBytes bytes) {
    if (bytes.empty() || out_->full()) return;
    if (std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0) {
      out_->Little(Section::kConstant);
      out_->Little(bytes[0]);
      return;
    }
    if (LooksCompressible(bytes) && AddZstd(bytes)) return;
    out_->Little(Section::kRaw);
    out_->Bytes(bytes);
  }

 private:
  // Counts equal pairs in a sample: there are few where all 256 values are about as frequent.
  static bool LooksCompressible(ConstBytes bytes) {
    constexpr size_t kSampled = 1024;
    constexpr size_t kUniform = kSampled + kSampled * kSampled / 256;
    if (bytes.size() < 4 * kSampled) return true;
    uint32_t counts[256] = {};
    const size_t step = bytes.size() / kSampled;
    for (size_t i = 0; i < kSampled; ++i) ++counts[std::to_integer<size_t>(bytes[i * step])];
    size_t squares = 0;
    for (const size_t count : counts) squares += count * count;
    return squares > kUniform + kUniform / 16;
  }

  bool AddZstd(ConstBytes bytes) {
    constexpr size_t kHeadBytes = 1 + kZstdLengthBytes;
    if (bytes.size() <= kHeadBytes || !HasContext()) return false;
    MutableBytes room = out_->Room(kHeadBytes);
    room = room.first(std::min(room.size(), bytes.size() - kHeadBytes));
    if (room.empty()) return false;
    const size_t size =
        ZSTD_compress2(context_.get(), room.data(), room.size(), bytes.data(), bytes.size());
    if (ZSTD_isError(size) != 0) return false;
    out_->Little(Section::kZstd);
    out_->Little(static_cast<uint32_t>(size));
    out_->Advance(size);
    return true;
  }

  // Without memory for it sections are raw.
  bool HasContext() {
    if (context_ != nullptr) return true;
    context_.reset(ZSTD_createCCtx());
    if (context_ == nullptr) return false;
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kZstdLevel);
    ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_minMatch, kZstdMinMatch);
    return true;
  }

  Writer* const out_;
  std::unique_ptr<ZSTD_CCtx, FreeContext> context_;
};

// Returns how many bits fields should have: the fewest that leave few exceptions; 0: none do.
template <typename T>
unsigned ChooseFieldBits(const T* values, size_t count, T smallest) {
  constexpr size_t kSampled = 4096;
  const size_t step = count / kSampled + 1;
  size_t sampled = 0;
  std::array<size_t, 3> exceptions = {};
  for (size_t i = 0; i < count; i += step, ++sampled) {
    const T rest = static_cast<T>(values[i] - smallest);
    exceptions[0] += rest >= 3 ? 1 : 0;
    exceptions[1] += rest >= 15 ? 1 : 0;
    exceptions[2] += rest >= 255 ? 1 : 0;
  }
  if (exceptions[0] * 8 <= sampled) return 2;
  if (exceptions[1] * 8 <= sampled) return 4;
  return sizeof(T) > 1 && exceptions[2] * 8 <= sampled ? 8 : 0;
}

template <typename T, bool kSignMagnitude>
class Encoder {
 public:
  Encoder(const std::byte* base, const std::byte* now, size_t items, Writer* out)
      : base_(base), now_(now), items_(items), out_(out), sections_(out) {
    const size_t items_max = std::min(items, kSpanItemsMax);
    const size_t values_max = std::min(items, kValuesMax);
    changed_bits_ = std::make_unique_for_overwrite<uint64_t[]>((items_max + 63) / 64);
    values_ = std::make_unique_for_overwrite<T[]>(values_max);
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(std::min(items, kGapBytesMax));
  }

  void Run() {
    for (size_t at = 0; at < items_ && !out_->full(); at += kSpanItemsMax) {
      const size_t items = std::min(kSpanItemsMax, items_ - at);
      const size_t changed =
          ChangedBits<T>(base_ + at * sizeof(T), now_ + at * sizeof(T), items, &changed_bits_[0]);
      if (FewChanged(changed, items)) {
        AddGaps(at, items, &changed_bits_[0], changed);
      } else {
        AddDense(at, items);
      }
    }
  }

 private:
  void AddDense(size_t first, size_t items) {
    for (size_t at = 0; at < items && !out_->full(); at += kDenseSpanItems) {
      const size_t span = std::min(kDenseSpanItems, items - at);
      const uint64_t* const words = &changed_bits_[at / 64];
      size_t changed = 0;
      for (size_t i = 0; i < (span + 63) / 64; ++i) {
        changed += static_cast<size_t>(std::popcount(words[i]));
      }
      if (FewChanged(changed, span)) {
        AddGaps(first + at, span, words, changed);
      } else if (MostChanged(changed, span)) {
        AddAll(first + at, span);
      } else {
        AddBitmap(first + at, span, words, changed);
      }
    }
  }

  T DifferenceAt(size_t index) const {
    return Difference<T, kSignMagnitude>(ItemAt<T>(base_, index), ItemAt<T>(now_, index));
  }

  // Calls `visit` with each changed element of the span.
  template <typename Visit>
  void ForChanged(size_t items, const uint64_t* words, const Visit& visit) {
    for (size_t i = 0; i < (items + 63) / 64; ++i) {
      for (uint64_t word = words[i]; word != 0; word &= word - 1) {
        visit(i * 64 + static_cast<size_t>(std::countr_zero(word)));
      }
    }
  }

  void AddGaps(size_t first, size_t items, const uint64_t* words, size_t changed) {
    std::byte* to = &bytes_[0];
    T* value = &values_[0];
    size_t next = 0;
    ForChanged(items, words, [&](size_t i) {
      size_t gap = i - next;
      for (; gap >= kGapGoesOn; gap -= kGapGoesOn) *to++ = std::byte{kGapGoesOn};
      *to++ = static_cast<std::byte>(gap);
      *value++ = DifferenceAt(first + i);
      next = i + 1;
    });
    const unsigned bits = AddHead(Method::kGaps, items, changed);
    const auto gap_bytes = static_cast<size_t>(to - &bytes_[0]);
    out_->Little(static_cast<uint32_t>(gap_bytes));
    sections_.Add({&bytes_[0], gap_bytes});
    AddValues(changed, bits, 1);
  }

  void AddBitmap(size_t first, size_t items, const uint64_t* words, size_t changed) {
    T* value = &values_[0];
    ForChanged(items, words, [&](size_t i) { *value++ = DifferenceAt(first + i); });
    const unsigned bits = AddHead(Method::kBitmap, items, changed);
    sections_.Add({reinterpret_cast<const std::byte*>(words), (items + 7) / 8});
    AddValues(changed, bits, 1);
  }

  void AddAll(size_t first, size_t items) {
    for (size_t i = 0; i < items; ++i) values_[i] = DifferenceAt(first + i);
    const unsigned bits = AddHead(Method::kAll, items, items);
    AddValues(items, bits, 0);
  }

  unsigned AddHead(Method method, size_t items, size_t changed) {
    const T smallest = method == Method::kAll ? 0 : 1;
    const unsigned bits = ChooseFieldBits(&values_[0], changed, smallest);
    out_->Little(method);
    out_->Little(static_cast<uint8_t>(bits));
    out_->Little(static_cast<uint32_t>(items));
    out_->Little(static_cast<uint32_t>(changed));
    return bits;
  }

  void AddValues(size_t count, unsigned bits, T smallest) {
    if (count == 0) return;
    if (bits > 0) {
      count = AddFields(count, bits, smallest);
      out_->Little(static_cast<uint32_t>(count));
    }
    for (size_t plane = 0; plane < sizeof(T); ++plane) {
      for (size_t i = 0; i < count; ++i) {
        bytes_[i] = static_cast<std::byte>(values_[i] >> (8 * plane));
      }
      sections_.Add({&bytes_[0], count});
    }
  }

  // Leaves the rests of the exceptions in values_, and returns how many there are.
  size_t AddFields(size_t count, unsigned bits, T smallest) {
    const T all_ones = static_cast<T>((1U << bits) - 1);
    const size_t of_a_byte = 8 / bits;
    size_t exceptions = 0;
    for (size_t i = 0; i < count; i += of_a_byte) {
      unsigned packed = 0;
      for (size_t k = 0; k < std::min(of_a_byte, count - i); ++k) {
        const T value = static_cast<T>(values_[i + k] - smallest);
        const T field = std::min(value, all_ones);
        packed |= static_cast<unsigned>(field) << (k * bits);
        values_[exceptions] = static_cast<T>(value - all_ones);
        exceptions += field == all_ones ? 1 : 0;
      }
      bytes_[i / of_a_byte] = static_cast<std::byte>(packed);
    }
    sections_.Add({&bytes_[0], FieldBytes(count, bits)});
    return exceptions;
  }

  const std::byte* const base_;
  const std::byte* const now_;
  const size_t items_;
  Writer* const out_;
  SectionWriter sections_;
  std::unique_ptr<uint64_t[]> changed_bits_;
  std::unique_ptr<T[]> values_;
  std::unique_ptr<std::byte[]> bytes_;  // of one section
};

// Returns the size of the stream, or 0: it does not fit.
template <typename T, bool kSignMagnitude>
size_t EncodeItems(ConstBytes base, ConstBytes now, MutableBytes out) {
  const size_t items = now.size() / sizeof(T);
  if (EstimateBytes<T, kSignMagnitude>(base.data(), now.data(), items) >= out.size()) return 0;
  Writer writer(out);
  writer.Little(static_cast<uint8_t>(sizeof(T)));
  writer.Little(static_cast<uint8_t>(kSignMagnitude ? 1 : 0));
  writer.Bytes(now.subspan(items * sizeof(T)));
  Encoder<T, kSignMagnitude>(base.data(), now.data(), items, &writer).Run();
  return writer.full() ? 0 : writer.size();
}

}  // namespace
}  // namespace stepwell::format::delta

namespace stepwell::format {

DeltaType DeltaTypeOf(const DTypeInfo& dtype) {
  switch (dtype.dtype) {
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kBFloat16:
    case DType::kFloat8E3M4:
    case DType::kFloat8E4M3:
    case DType::kFloat8E4M3B11FNUZ:
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return {dtype.item_bytes, true};
    case DType::kComplex64:
    case DType::kComplex128:
      return {static_cast<uint8_t>(dtype.item_bytes / 2), true};
    default:
      // float8_e8m0fnu has no sign, and float4_e2m1fn none at the top of its byte.
      return {dtype.item_bytes, false};
  }
}

size_t internal::DeltaBytesMax(size_t logical_bytes) {
  return logical_bytes + delta::kOverheadBytesMax;
}

Result<size_t> internal::DeltaEncode(DeltaType type, ConstBytes base, ConstBytes logical,
                                     MutableBytes out) {
  const auto encode = [&]<typename T>(T) {
    return type.sign_magnitude ? delta::EncodeItems<T, true>(base, logical, out)
                               : delta::EncodeItems<T, false>(base, logical, out);
  };
  switch (type.item_bytes) {
    case 1:
      return encode(uint8_t{});
    case 2:
      return encode(uint16_t{});
    case 4:
      return encode(uint32_t{});
    case 8:
      return encode(uint64_t{});
    default:
      return InvalidArgumentError(StrCat("a delta of items of ", int{type.item_bytes}, " bytes"));
  }
}

}  // namespace stepwell::format
