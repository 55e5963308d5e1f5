// SPDX-License-Identifier: Apache-2.0
// Internals of the delta codec, for codec_delta*.cc and their tests. FORMAT.md, section 7, has the
// stream.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

#include "format/codec.h"
#include "format/endian.h"
#include "io/bytes.h"

namespace stepwell::format::delta {

// Tells which elements of a span changed.
enum class Method : uint8_t { kGaps = 0, kBitmap = 1, kAll = 2 };
// Holds bytes whose number is known from elsewhere.
enum class Section : uint8_t { kRaw = 0, kZstd = 1, kConstant = 2 };

// So far a delta may be longer than the chunk, so that tiny chunks have deltas, too.
inline constexpr size_t kOverheadBytesMax = 64;
inline constexpr size_t kZstdLengthBytes = 4;
inline constexpr uint8_t kGapGoesOn = 255;  // that many unchanged elements, and more
inline constexpr uint32_t kZstdMagic = 0xFD2FB528;

// Decoders refuse longer spans, so that what they need besides `out` is bounded.
inline constexpr size_t kSpanItemsMax = size_t{1} << 19;
// Spans with many changes are short: what encoding them needs stays in the second-level cache.
inline constexpr size_t kDenseSpanItems = size_t{1} << 16;
static_assert(kSpanItemsMax % kDenseSpanItems == 0 && kDenseSpanItems % 64 == 0);

// Returns the pattern of a sign-magnitude number as the two's complement integer with the same
// order, and the reverse: the map is its own inverse. Every pattern has its own integer: -0 is -1,
// +0 is 0, and NaNs lie beyond the infinities.
template <typename T>
constexpr T Ordered(T pattern) {
  using Signed = std::make_signed_t<T>;
  constexpr int kSignShift = std::numeric_limits<T>::digits - 1;
  constexpr T kMagnitude = std::numeric_limits<T>::max() >> 1;
  return static_cast<T>(pattern ^
                        (static_cast<T>(static_cast<Signed>(pattern) >> kSignShift) & kMagnitude));
}

// Returns the difference modulo 2^w as an unsigned number that is small where the difference is
// near zero, from below or above.
template <typename T, bool kSignMagnitude>
constexpr T Difference(T base, T now) {
  using Signed = std::make_signed_t<T>;
  constexpr int kSignShift = std::numeric_limits<T>::digits - 1;
  const T difference =
      kSignMagnitude ? static_cast<T>(Ordered(now) - Ordered(base)) : static_cast<T>(now - base);
  return static_cast<T>(static_cast<T>(difference << 1) ^
                        static_cast<T>(static_cast<Signed>(difference) >> kSignShift));
}
template <typename T, bool kSignMagnitude>
constexpr T Applied(T base, T zigzag) {
  const T difference = static_cast<T>(static_cast<T>(zigzag >> 1) ^ static_cast<T>(-(zigzag & 1)));
  return kSignMagnitude ? Ordered(static_cast<T>(Ordered(base) + difference))
                        : static_cast<T>(base + difference);
}

template <typename T>
T ItemAt(const std::byte* items, size_t index) {
  return LoadLittle<T>(items + index * sizeof(T));
}

// Sets bit i of `words` where element i differs, others are zero; ceil(items / 64) words. Returns
// how many differ.
template <typename T>
size_t ChangedBits(const std::byte* base, const std::byte* now, size_t items, uint64_t* words);
extern template size_t ChangedBits<uint8_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
extern template size_t ChangedBits<uint16_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
extern template size_t ChangedBits<uint32_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
extern template size_t ChangedBits<uint64_t>(const std::byte*, const std::byte*, size_t, uint64_t*);

// Returns about how many bytes the changes take at least, from a few hundred elements of `now`.
template <typename T, bool kSignMagnitude>
size_t EstimateBytes(const std::byte* base, const std::byte* now, size_t items);

// Differences are stored as they are, in byte planes, or as fields of a few bits. A field holds
// the difference less the smallest one there can be; all ones say that the rest stands in the
// planes of the exceptions.
constexpr uint8_t kFieldBits[] = {0, 2, 4, 8};
constexpr size_t FieldBytes(size_t count, unsigned bits) { return (count * bits + 7) / 8; }

}  // namespace stepwell::format::delta
