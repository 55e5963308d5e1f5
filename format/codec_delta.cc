// SPDX-License-Identifier: Apache-2.0
// Encodes deltas. What that takes besides the output, at most 3 MiB, does not depend on the chunk.
#include <algorithm>
#include <bit>

#include "format/codec_delta.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace stepwell::format::delta {
namespace {

// Beyond this share it is not worth telling apart which elements changed. Where elements are short,
// what is not a change costs next to nothing among the differences, and takes less time there.
template <typename T>
constexpr bool MostChanged(size_t changed, size_t items) {
  return sizeof(T) <= 2 ? changed * 5 > items * 2 : changed * 10 > items * 9;
}
constexpr size_t kValuesMax = std::max(kDenseSpanItems, kSpanItemsMax * 3 / 20 + kWordBits);
constexpr size_t kGapBytesMax = kValuesMax + kSpanItemsMax / kGapGoesOn + 1;

// Calls `visit` with the number of each bit that is set.
template <typename Visit>
void ForEachBit(uint64_t word, const Visit& visit) {
  for (; word != 0; word &= word - 1) visit(static_cast<size_t>(std::countr_zero(word)));
}

// Moves the values whose bits are set to the front; returns how many.
template <typename T>
size_t Compact(const uint64_t* words, size_t items, T* values) {
  constexpr unsigned kManyBits = 20;  // from here on looking at each bit is faster
  size_t kept = 0;
  for (size_t first = 0; first < items; first += kWordBits) {
    const uint64_t word = words[first / kWordBits];
    if (CountBits(word) < kManyBits) {
      ForEachBit(word, [&](size_t i) { values[kept++] = values[first + i]; });
      continue;
    }
    const size_t end = std::min(kWordBits, items - first);
    for (size_t i = 0; i < end; ++i) {
      values[kept] = values[first + i];
      kept += word >> i & 1;
    }
  }
  return kept;
}

// Stores byte `plane` of each value.
template <typename T>
void SplitPlane(const T* values, size_t count, size_t plane, std::byte* bytes) {
  size_t i = 0;
#ifdef __SSE2__
  // Compilers narrow 32 bits to 8 with twice the instructions.
  if constexpr (sizeof(T) == 4) {
    const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(8 * plane));
    const auto four = [&](const T* from) {
      const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      return _mm_and_si128(_mm_srl_epi32(value, shift), _mm_set1_epi32(0xFF));
    };
    for (; i + 16 <= count; i += 16) {
      const __m128i low = _mm_packs_epi32(four(values + i), four(values + i + 4));
      const __m128i high = _mm_packs_epi32(four(values + i + 8), four(values + i + 12));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + i), _mm_packus_epi16(low, high));
    }
  }
#endif
  for (; i < count; ++i) bytes[i] = static_cast<std::byte>(values[i] >> (8 * plane));
}

// Returns how many bits fields should have: the fewest that leave few exceptions; 0: none do.
template <typename T>
unsigned ChooseFieldBits(const T* values, size_t count, T smallest) {
  constexpr size_t kSampled = 4096;
  const size_t step = count / kSampled + 1;
  size_t sampled = 0;
  size_t exceptions[3] = {};
  for (size_t i = 0; i < count; i += step, ++sampled) {
    const T rest = static_cast<T>(values[i] - smallest);
    exceptions[0] += rest >= AllOnes(2) ? 1 : 0;
    exceptions[1] += rest >= AllOnes(4) ? 1 : 0;
    exceptions[2] += rest >= AllOnes(8) ? 1 : 0;
  }
  if (exceptions[0] * 8 <= sampled) return 2;
  if (exceptions[1] * 8 <= sampled) return 4;
  return sizeof(T) > 1 && exceptions[2] * 8 <= sampled ? 8 : 0;
}

// Packs fields of a byte each; `packed` has FieldBytes(count, bits), and `fields` zeros behind its
// end.
void PackFields(const std::byte* fields, size_t count, unsigned bits, std::byte* packed) {
  const size_t bytes = FieldBytes(count, bits);
  if (bits == 4) {
    for (size_t i = 0; i < bytes; ++i) {
      const auto two = LoadLittle<uint16_t>(fields + 2 * i);
      packed[i] = static_cast<std::byte>(two | two >> 4);
    }
  } else {
    for (size_t i = 0; i < bytes; ++i) {
      const auto four = LoadLittle<uint32_t>(fields + 4 * i);
      packed[i] = static_cast<std::byte>(four | four >> 6 | four >> 12 | four >> 18);
    }
  }
}

template <typename T, bool kSignMagnitude>
class Encoder {
 public:
  Encoder(const std::byte* base, const std::byte* now, size_t items, Writer* out)
      : base_(base), now_(now), items_(items), out_(out) {
    const auto padded = [items](size_t bound) {
      return WordCount(std::min(items, bound)) * kWordBits;
    };
    changed_ =
        std::make_unique_for_overwrite<uint64_t[]>(WordCount(std::min(items, kSpanItemsMax)));
    values_ = std::make_unique_for_overwrite<T[]>(padded(kValuesMax));
    fields_ = std::make_unique_for_overwrite<std::byte[]>(padded(kValuesMax));
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(padded(kGapBytesMax));
  }

  // `scan_items` are looked at at once; those of a dense chunk should stay in the cache.
  void Run(size_t scan_items) {
    for (size_t at = 0; at < items_ && !out_->full(); at += scan_items) {
      const size_t items = std::min(scan_items, items_ - at);
      const size_t changed =
          ChangedBits<T>(base_ + at * sizeof(T), now_ + at * sizeof(T), items, &changed_[0]);
      if (FewChanged(changed, items)) {
        AddGaps(at, items, &changed_[0], changed);
      } else {
        AddDense(at, items);
      }
    }
  }

 private:
  void AddDense(size_t first, size_t items) {
    for (size_t at = 0; at < items && !out_->full(); at += kDenseSpanItems) {
      const size_t span = std::min(kDenseSpanItems, items - at);
      const uint64_t* const words = &changed_[at / kWordBits];
      const size_t changed = CountBits(words, WordCount(span));
      if (FewChanged(changed, span)) {
        AddGaps(first + at, span, words, changed);
      } else if (MostChanged<T>(changed, span)) {
        AddAll(first + at, span);
      } else {
        AddBitmap(first + at, span, words);
      }
    }
  }

  void AddGaps(size_t first, size_t items, const uint64_t* words, size_t changed) {
    const std::byte* const base = base_ + first * sizeof(T);
    const std::byte* const now = now_ + first * sizeof(T);
    std::byte* to = &bytes_[0];
    T* value = &values_[0];
    size_t next = 0;
    for (size_t i = 0; i < WordCount(items); ++i) {
      ForEachBit(words[i], [&](size_t bit) {
        const size_t at = i * kWordBits + bit;
        size_t gap = at - next;
        for (; gap >= kGapGoesOn; gap -= kGapGoesOn) *to++ = std::byte{kGapGoesOn};
        *to++ = static_cast<std::byte>(gap);
        *value++ = Difference<T, kSignMagnitude>(ItemAt<T>(base, at), ItemAt<T>(now, at));
        next = at + 1;
      });
    }
    const unsigned bits = AddHead(Method::kGaps, items, changed);
    const auto gap_bytes = static_cast<size_t>(to - &bytes_[0]);
    out_->Little(static_cast<uint32_t>(gap_bytes));
    out_->Section({&bytes_[0], gap_bytes});
    AddValues(changed, bits, 1);
  }

  void AddBitmap(size_t first, size_t items, const uint64_t* words) {
    FillDifferences(first, items);
    const size_t changed = Compact(words, items, &values_[0]);
    const unsigned bits = AddHead(Method::kBitmap, items, changed);
    out_->Section({reinterpret_cast<const std::byte*>(words), (items + 7) / 8});
    AddValues(changed, bits, 1);
  }

  void AddAll(size_t first, size_t items) {
    FillDifferences(first, items);
    const unsigned bits = AddHead(Method::kAll, items, items);
    AddValues(items, bits, 0);
  }

  void FillDifferences(size_t first, size_t items) {
    const std::byte* const base = base_ + first * sizeof(T);
    const std::byte* const now = now_ + first * sizeof(T);
    T* const values = &values_[0];
    for (size_t i = 0; i < items; ++i) {
      values[i] = Difference<T, kSignMagnitude>(ItemAt<T>(base, i), ItemAt<T>(now, i));
    }
  }

  // Returns the bits of the fields of the values.
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
      SplitPlane(&values_[0], count, plane, &bytes_[0]);
      out_->Section({&bytes_[0], count});
    }
  }

  // Leaves the rests of the exceptions in values_, and returns how many there are.
  size_t AddFields(size_t count, unsigned bits, T smallest) {
    const uint8_t all_ones = AllOnes(bits);
    T* const values = &values_[0];
    std::byte* const fields = &fields_[0];
    for (size_t i = 0; i < count; ++i) {
      const T value = static_cast<T>(values[i] - smallest);
      fields[i] = static_cast<std::byte>(value < all_ones ? value : all_ones);
    }
    std::memset(fields + count, 0, WordCount(count) * kWordBits - count);
    size_t exceptions = 0;
    for (size_t first = 0; first < count; first += kWordBits) {
      ForEachBit(EqualWord(fields + first, all_ones), [&](size_t i) {
        values[exceptions++] = static_cast<T>(values[first + i] - smallest - all_ones);
      });
    }
    if (bits == 8) {
      out_->Section({fields, count});
    } else {
      PackFields(fields, count, bits, &bytes_[0]);
      out_->Section({&bytes_[0], FieldBytes(count, bits)});
    }
    return exceptions;
  }

  const std::byte* const base_;
  const std::byte* const now_;
  const size_t items_;
  Writer* const out_;
  // Buffers for one span, padded to whole words of elements.
  std::unique_ptr<uint64_t[]> changed_;
  std::unique_ptr<T[]> values_;
  std::unique_ptr<std::byte[]> fields_;
  std::unique_ptr<std::byte[]> bytes_;  // of one section
};

// Returns the size of the stream, or 0: it does not fit.
template <typename T, bool kSignMagnitude>
size_t EncodeItems(ConstBytes base, ConstBytes now, MutableBytes out) {
  const size_t items = now.size() / sizeof(T);
  const Estimate estimate = EstimateDelta<T, kSignMagnitude>(base.data(), now.data(), items);
  if (estimate.bytes >= out.size()) return 0;
  Writer writer(out);
  writer.Little(static_cast<uint8_t>(sizeof(T)));
  writer.Little(static_cast<uint8_t>(kSignMagnitude ? 1 : 0));
  writer.Bytes(now.subspan(items * sizeof(T)));
  Encoder<T, kSignMagnitude>(base.data(), now.data(), items, &writer)
      .Run(estimate.dense ? kDenseSpanItems : kSpanItemsMax);
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
