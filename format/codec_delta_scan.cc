// SPDX-License-Identifier: Apache-2.0
// Finds the elements that changed, and estimates from a few of them whether a delta can pay.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "format/codec_delta.h"

namespace stepwell::format::delta {
namespace {

// Plain loops over 64 elements, which compilers turn into vector compares.
template <typename T>
uint64_t ChangedWord(const std::byte* base, const std::byte* now) {
  uint8_t flags[kWordBits];
  for (size_t i = 0; i < kWordBits; ++i) {
    flags[i] = ItemAt<T>(base, i) != ItemAt<T>(now, i) ? 1 : 0;
  }
  return WordOf(flags);
}

// The logarithm of the number of differences that have this many bits.
constexpr double BucketBits(size_t bit_width) {
  return bit_width == 0 ? 0 : static_cast<double>(bit_width - 1);
}

constexpr size_t kSampleSpots = 16;
constexpr size_t kSampleItems = 64;  // of a spot

}  // namespace

size_t CountBits(const uint64_t* words, size_t count) {
  size_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits += CountBits(words[i]);
  return bits;
}

template <typename T>
size_t ChangedBits(const std::byte* base, const std::byte* now, size_t items, uint64_t* words) {
  const size_t whole = items / kWordBits;
  for (size_t i = 0; i < whole; ++i) {
    const size_t at = i * kWordBits * sizeof(T);
    words[i] = ChangedWord<T>(base + at, now + at);
  }
  if (whole * kWordBits == items) return CountBits(words, whole);
  words[whole] = 0;
  for (size_t i = whole * kWordBits; i < items; ++i) {
    words[whole] |= uint64_t{ItemAt<T>(base, i) != ItemAt<T>(now, i)} << (i % kWordBits);
  }
  return CountBits(words, whole + 1);
}
template size_t ChangedBits<uint8_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
template size_t ChangedBits<uint16_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
template size_t ChangedBits<uint32_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
template size_t ChangedBits<uint64_t>(const std::byte*, const std::byte*, size_t, uint64_t*);

template <typename T, bool kSignMagnitude>
Estimate EstimateDelta(const std::byte* base, const std::byte* now, size_t items) {
  if (items < 4 * kSampleSpots * kSampleItems) return {};
  std::array<uint32_t, std::numeric_limits<T>::digits + 1> counts = {};
  for (size_t spot = 0; spot < kSampleSpots; ++spot) {
    const size_t first = (items - kSampleItems) / (kSampleSpots - 1) * spot;
    for (size_t i = first; i < first + kSampleItems; ++i) {
      const T difference = Difference<T, kSignMagnitude>(ItemAt<T>(base, i), ItemAt<T>(now, i));
      ++counts[static_cast<size_t>(std::bit_width(difference))];
    }
  }
  // The entropy of the width, and all bits below the highest.
  constexpr size_t kSampled = kSampleSpots * kSampleItems;
  double bits = 0;
  for (size_t width = 0; width < counts.size(); ++width) {
    if (counts[width] == 0) continue;
    const double share = counts[width] / static_cast<double>(kSampled);
    bits += share * (BucketBits(width) - std::log2(share));
  }
  return {static_cast<size_t>(bits / 8 * static_cast<double>(items)),
          !FewChanged(kSampled - counts[0], kSampled)};
}
template Estimate EstimateDelta<uint8_t, false>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint8_t, true>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint16_t, false>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint16_t, true>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint32_t, false>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint32_t, true>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint64_t, false>(const std::byte*, const std::byte*, size_t);
template Estimate EstimateDelta<uint64_t, true>(const std::byte*, const std::byte*, size_t);

}  // namespace stepwell::format::delta
