// SPDX-License-Identifier: Apache-2.0
// Finds the elements that changed, and estimates from a few of them whether a delta can pay.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "format/codec_delta.h"

namespace stepwell::format::delta {
namespace {

constexpr size_t kWordBits = 64;

// Packs eight bytes, each 0 or 1, into eight bits, the first lowest.
uint64_t PackFlags(const uint8_t* flags) {
  uint64_t bytes;
  std::memcpy(&bytes, flags, sizeof(bytes));
  return bytes * 0x0102040810204080u >> 56;
}

// Plain loops over 64 elements, which compilers turn into vector compares.
template <typename T>
uint64_t ChangedWord(const std::byte* base, const std::byte* now) {
  alignas(16) uint8_t flags[kWordBits];
  for (size_t i = 0; i < kWordBits; ++i) {
    flags[i] = ItemAt<T>(base, i) != ItemAt<T>(now, i) ? 1 : 0;
  }
  uint64_t word = 0;
  for (size_t i = 0; i < kWordBits; i += 8) word |= PackFlags(flags + i) << i;
  return word;
}

// The logarithm of the number of differences that have this many bits.
constexpr double BucketBits(size_t bit_width) {
  return bit_width == 0 ? 0 : static_cast<double>(bit_width - 1);
}

constexpr size_t kSampleSpots = 16;
constexpr size_t kSampleItems = 64;  // of a spot

}  // namespace

template <typename T>
size_t ChangedBits(const std::byte* base, const std::byte* now, size_t items, uint64_t* words) {
  size_t changed = 0;
  size_t at = 0;
  for (; at + kWordBits <= items; at += kWordBits) {
    const uint64_t word = ChangedWord<T>(base + at * sizeof(T), now + at * sizeof(T));
    changed += static_cast<size_t>(std::popcount(word));
    *words++ = word;
  }
  if (at == items) return changed;
  uint64_t word = 0;
  for (size_t i = at; i < items; ++i) {
    word |= uint64_t{ItemAt<T>(base, i) != ItemAt<T>(now, i)} << (i - at);
  }
  *words = word;
  return changed + static_cast<size_t>(std::popcount(word));
}
template size_t ChangedBits<uint8_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
template size_t ChangedBits<uint16_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
template size_t ChangedBits<uint32_t>(const std::byte*, const std::byte*, size_t, uint64_t*);
template size_t ChangedBits<uint64_t>(const std::byte*, const std::byte*, size_t, uint64_t*);

template <typename T, bool kSignMagnitude>
size_t EstimateBytes(const std::byte* base, const std::byte* now, size_t items) {
  if (items < 4 * kSampleSpots * kSampleItems) return 0;
  std::array<uint32_t, std::numeric_limits<T>::digits + 1> counts = {};
  for (size_t spot = 0; spot < kSampleSpots; ++spot) {
    const size_t first = (items - kSampleItems) / (kSampleSpots - 1) * spot;
    for (size_t i = first; i < first + kSampleItems; ++i) {
      const T difference = Difference<T, kSignMagnitude>(ItemAt<T>(base, i), ItemAt<T>(now, i));
      ++counts[static_cast<size_t>(std::bit_width(difference))];
    }
  }
  // The entropy of the width, and all bits below the highest.
  constexpr double kSampled = kSampleSpots * kSampleItems;
  double bits = 0;
  for (size_t width = 0; width < counts.size(); ++width) {
    if (counts[width] == 0) continue;
    const double share = counts[width] / kSampled;
    bits += share * (BucketBits(width) - std::log2(share));
  }
  return static_cast<size_t>(bits / 8 * static_cast<double>(items));
}
template size_t EstimateBytes<uint8_t, false>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint8_t, true>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint16_t, false>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint16_t, true>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint32_t, false>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint32_t, true>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint64_t, false>(const std::byte*, const std::byte*, size_t);
template size_t EstimateBytes<uint64_t, true>(const std::byte*, const std::byte*, size_t);

}  // namespace stepwell::format::delta
