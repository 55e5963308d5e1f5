// SPDX-License-Identifier: Apache-2.0
#include "format/element_statistics.h"

#include <xmmintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "format/endian.h"

namespace stepwell::format {
namespace {

// Says whether denormal numbers are numbers or, faster, zeros, while it lives. A thread inherits
// this from the one that started it, and libraries that were linked with -ffast-math set it.
class Denormals {
 public:
  enum class As : unsigned { kNumbers = 0, kZeros = 0x8040 };  // FTZ and DAZ
  explicit Denormals(As as) : before_(_mm_getcsr()) {
    _mm_setcsr((before_ & ~static_cast<unsigned>(As::kZeros)) | static_cast<unsigned>(as));
  }
  ~Denormals() { _mm_setcsr(before_); }
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
  const unsigned before_;
};

// Elements are looked at several times, so few at once that they stay in the first-level cache.
// Each block has a sum of its own, so that rounding errors do not grow with the array.
template <typename T>
constexpr size_t kBlockItems = 8192 / sizeof(T);

template <typename T>
[[gnu::always_inline]] inline T At(const std::byte* items, size_t index) {
  return LoadLittle<T>(items + index * sizeof(T));
}

// What is below is compiled twice, for all of x86-64 and for AVX2, so all of it is inlined.
#define STEPWELL_INLINE [[gnu::always_inline]] inline

// ---- floating-point numbers, as the integers of their bits -----------------------------------

using Floats [[gnu::vector_size(32)]] = float;    // 8
using Words [[gnu::vector_size(32)]] = uint32_t;  // 8
constexpr size_t kLoaded = 16;                    // elements, as two vectors of Floats

template <typename Integer, int kFractionBits>
struct FloatBits {
  static constexpr int kFraction = kFractionBits;
  using Bits = Integer;  // signed
  using Unsigned = std::make_unsigned_t<Integer>;
  static constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  static constexpr Bits kInfinity = static_cast<Bits>(kMagnitude >> kFractionBits << kFractionBits);
};

struct Float64 : FloatBits<int64_t, 52> {
  static constexpr DType kType = DType::kFloat64;
};
// Load: kLoaded elements, in any order.
struct Float32 : FloatBits<int32_t, 23> {
  static constexpr DType kType = DType::kFloat32;
  STEPWELL_INLINE static void Load(const std::byte* items, Floats (&values)[2]) {
    std::memcpy(&values[0], items, sizeof(Floats));
    std::memcpy(&values[1], items + sizeof(Floats), sizeof(Floats));
  }
};
struct BFloat16 : FloatBits<int16_t, 7> {
  static constexpr DType kType = DType::kBFloat16;
  STEPWELL_INLINE static void Load(const std::byte* items, Floats (&values)[2]) {
    Words words;  // of two elements each
    std::memcpy(&words, items, sizeof(words));
    values[0] = reinterpret_cast<Floats>(words << 16);
    values[1] = reinterpret_cast<Floats>(words & 0xFFFF0000U);
  }
};
struct Float16 : FloatBits<int16_t, 10> {
  static constexpr DType kType = DType::kFloat16;
  STEPWELL_INLINE static void Load(const std::byte* items, Floats (&values)[2]) {
    Words words;
    std::memcpy(&words, items, sizeof(words));
    LoadLow(words, &values[0]);
    LoadLow(words >> 16, &values[1]);
  }

 private:
  // Denormal numbers get an exponent, and what that adds is taken away: numbers that are denormal
  // on the way would be very slow.
  STEPWELL_INLINE static void LoadLow(const Words& words, Floats* values) {
    constexpr uint32_t kOne = uint32_t{1} << 23;                            // of an exponent
    const auto denormal = reinterpret_cast<Words>((words & 0x7C00U) == 0);  // all ones, or zero
    const Words raised = ((words & 0x7FFFU) << 13) + (127 - 15) * kOne + (denormal & kOne);
    const Floats magnitude = reinterpret_cast<Floats>(raised) -
                             reinterpret_cast<Floats>(denormal & ((127 - 15 + 1) * kOne));
    *values =
        reinterpret_cast<Floats>(reinterpret_cast<Words>(magnitude) | (words & 0x8000U) << 16);
  }
};

// Maps bits to integers with the order of the numbers, and back: it is its own inverse.
template <typename Float>
STEPWELL_INLINE typename Float::Bits Ordered(typename Float::Bits bits) {
  constexpr int kSignShift = 8 * sizeof(bits) - 1;
  return static_cast<typename Float::Bits>(bits ^ (bits >> kSignShift & Float::kMagnitude));
}

template <typename Float>
STEPWELL_INLINE double ValueOf(typename Float::Bits bits) {
  return DecodeNumber(Float::kType, &bits);
}

// Sums in lanes, which compilers turn into vectors.
template <typename T>
STEPWELL_INLINE void AddSums(const std::byte* items, size_t count, LeafStatistics* statistics) {
  constexpr size_t kLanes = 8;
  double sums[kLanes] = {};
  double squares[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(At<T>(items, i + lane));
      sums[lane] += value;
      squares[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const auto value = static_cast<double>(At<T>(items, i));
    sums[0] += value;
    squares[0] += value * value;
  }
  double sum = 0;
  double sum_of_squares = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sum += sums[lane];
    sum_of_squares += squares[lane];
  }
  statistics->sum += sum;
  statistics->sum_of_squares += sum_of_squares;
}

// Adds up so many numbers in a float32 before they go into a float64. The norm's relative error is
// below one in a million, and so is that of the sum, as a part of the sum of the magnitudes.
constexpr size_t kRun = 16;
// That holds for blocks whose greatest magnitude lies between these powers of two: no sum
// overflows, and what is lost where numbers or squares are denormal, which processors are slow at,
// is far below the error.
constexpr int kExponentMin = -40;
constexpr int kExponentMax = 60;

STEPWELL_INLINE void AddLanes(const Floats& values, double (&lanes)[kLoaded / 2]) {
  float stored[kLoaded / 2];
  std::memcpy(stored, &values, sizeof(stored));
  for (size_t lane = 0; lane < kLoaded / 2; ++lane) {
    lanes[lane] += static_cast<double>(stored[lane]);
  }
}

// `count`: at most kRun * kLoaded elements, in whole loads.
template <typename Float>
STEPWELL_INLINE void AddRun(const std::byte* items, size_t count, double (&sums)[kLoaded / 2],
                            double (&squares)[kLoaded / 2]) {
  Floats sum[2] = {};
  Floats square[2] = {};
  for (size_t at = 0; at < count; at += kLoaded) {
    Floats values[2];
    Float::Load(items + at * sizeof(typename Float::Bits), values);
    for (size_t half = 0; half < 2; ++half) {
      sum[half] += values[half];
      square[half] += values[half] * values[half];
    }
  }
  AddLanes(sum[0] + sum[1], sums);
  AddLanes(square[0] + square[1], squares);
}

template <typename Float>
STEPWELL_INLINE void AddShortSums(const std::byte* items, size_t count,
                                  LeafStatistics* statistics) {
  constexpr size_t kItemBytes = sizeof(typename Float::Bits);
  const Denormals denormals(Denormals::As::kZeros);
  double sums[kLoaded / 2] = {};
  double squares[kLoaded / 2] = {};
  const size_t whole = count / kLoaded * kLoaded;
  for (size_t at = 0; at < whole; at += kRun * kLoaded) {
    AddRun<Float>(items + at * kItemBytes, std::min(kRun * kLoaded, whole - at), sums, squares);
  }
  if (whole < count) {
    std::byte rest[kLoaded * kItemBytes] = {};
    std::memcpy(rest, items + whole * kItemBytes, (count - whole) * kItemBytes);
    AddRun<Float>(rest, kLoaded, sums, squares);
  }
  for (size_t lane = 0; lane < kLoaded / 2; ++lane) {
    statistics->sum += sums[lane];
    statistics->sum_of_squares += squares[lane];
  }
}

// `largest`: the bits of the greatest magnitude.
template <typename Float>
STEPWELL_INLINE void AddFloatSums(const std::byte* items, size_t count,
                                  typename Float::Bits largest, LeafStatistics* statistics) {
  if constexpr (std::is_same_v<Float, Float64>) {
    AddSums<double>(items, count, statistics);
  } else {
    constexpr int kBias = 127;
    constexpr bool kIsHalf = std::is_same_v<Float, Float16>;  // all of them are in range
    if (kIsHalf || (largest >> Float::kFraction >= kBias + kExponentMin &&
                    largest >> Float::kFraction <= kBias + kExponentMax)) {
      return AddShortSums<Float>(items, count, statistics);
    }
    if constexpr (std::is_same_v<Float, Float32>) return AddSums<float>(items, count, statistics);
    float values[kBlockItems<typename Float::Bits>];
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = At<typename Float::Unsigned>(items, i);
      values[i] = std::bit_cast<float>(bits << 16);  // only bfloat16 comes here
    }
    AddSums<float>(reinterpret_cast<const std::byte*>(values), count, statistics);
  }
}

template <typename Float>
struct OrderedRange {
  typename Float::Bits min = std::numeric_limits<typename Float::Bits>::max();
  typename Float::Bits max = std::numeric_limits<typename Float::Bits>::min();
};
template <typename Float>
STEPWELL_INLINE OrderedRange<Float> RangeOf(const std::byte* items, size_t count) {
  using Bits = typename Float::Bits;
  using Vector [[gnu::vector_size(32)]] = Bits;
  constexpr size_t kLanes = sizeof(Vector) / sizeof(Bits);
  OrderedRange<Float> range;
  Vector min = range.min + Vector{};
  Vector max = range.max + Vector{};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vector bits;
    std::memcpy(&bits, items + i * sizeof(Bits), sizeof(bits));
    const Vector ordered = bits ^ ((bits >> (8 * sizeof(Bits) - 1)) & Float::kMagnitude);
    min = ordered < min ? ordered : min;
    max = ordered > max ? ordered : max;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    range.min = std::min<Bits>(range.min, min[lane]);
    range.max = std::max<Bits>(range.max, max[lane]);
  }
  for (; i < count; ++i) {
    const Bits ordered = Ordered<Float>(At<Bits>(items, i));
    range.min = std::min(range.min, ordered);
    range.max = std::max(range.max, ordered);
  }
  return range;
}

STEPWELL_INLINE void AddRange(double min, double max, bool is_first, LeafStatistics* statistics) {
  statistics->min = is_first ? min : std::min(statistics->min, min);
  statistics->max = is_first ? max : std::max(statistics->max, max);
}

// Moves the elements of which all parts are finite to `kept`; returns how many parts these have.
template <typename Float, size_t kParts>
size_t KeepFinite(const std::byte* items, size_t count, std::byte* kept) {
  size_t parts = 0;
  for (size_t i = 0; i < count; i += kParts) {
    bool finite = true;
    for (size_t part = 0; part < kParts; ++part) {
      const auto bits = At<typename Float::Bits>(items, i + part);
      StoreLittle(kept + (parts + part) * sizeof(bits), bits);
      finite = finite && (bits & Float::kMagnitude) < Float::kInfinity;
    }
    parts += finite ? kParts : 0;
  }
  return parts;
}

// A complex number has two parts. What is not finite lies beyond the finite numbers in the order of
// the integers, on both ends, so that the range tells whether there is any.
template <typename Float, size_t kParts>
STEPWELL_INLINE void AddFloats(ConstBytes bytes, LeafStatistics* statistics) {
  using Bits = typename Float::Bits;
  constexpr Bits kLargest = Float::kInfinity - 1;
  constexpr size_t kBlock = kBlockItems<Bits>;
  std::byte finite[kBlock * sizeof(Bits)];
  const size_t all = bytes.size() / sizeof(Bits);
  const bool is_first = !statistics->has_range();
  OrderedRange<Float> range;
  for (size_t at = 0; at < all; at += kBlock) {
    size_t count = std::min(kBlock, all - at);
    const std::byte* items = bytes.data() + at * sizeof(Bits);
    statistics->elements += count / kParts;
    OrderedRange<Float> here = RangeOf<Float>(items, count);
    if (here.max > kLargest || here.min < -1 - kLargest) {
      const size_t kept = KeepFinite<Float, kParts>(items, count, finite);
      statistics->nonfinite += (count - kept) / kParts;
      if (kept == 0) continue;
      items = finite;
      count = kept;
      here = RangeOf<Float>(items, count);
    }
    range.min = std::min(range.min, here.min);
    range.max = std::max(range.max, here.max);
    const auto largest = std::max(here.max, static_cast<Bits>(-1 - here.min));
    AddFloatSums<Float>(items, count, largest, statistics);
  }
  if (range.min > range.max) return;
  AddRange(ValueOf<Float>(Ordered<Float>(range.min)), ValueOf<Float>(Ordered<Float>(range.max)),
           is_first, statistics);
}

// ---- integers --------------------------------------------------------------------------------

template <typename T>
STEPWELL_INLINE void AddIntegerSums(const std::byte* items, size_t count,
                                    LeafStatistics* statistics) {
  if constexpr (sizeof(T) > 1) return AddSums<T>(items, count, statistics);
  int32_t sum = 0;  // enough for a block of bytes
  int32_t sum_of_squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<int32_t>(At<T>(items, i));
    sum += value;
    sum_of_squares += value * value;
  }
  statistics->sum += sum;
  statistics->sum_of_squares += sum_of_squares;
}

template <typename T>
STEPWELL_INLINE void AddIntegers(ConstBytes bytes, LeafStatistics* statistics) {
  constexpr size_t kBlock = kBlockItems<T>;
  const size_t all = bytes.size() / sizeof(T);
  for (size_t at = 0; at < all; at += kBlock) {
    const size_t count = std::min(kBlock, all - at);
    const std::byte* const items = bytes.data() + at * sizeof(T);
    T min = std::numeric_limits<T>::max();
    T max = std::numeric_limits<T>::min();
    for (size_t i = 0; i < count; ++i) {
      min = std::min(min, At<T>(items, i));
      max = std::max(max, At<T>(items, i));
    }
    AddRange(static_cast<double>(min), static_cast<double>(max), !statistics->has_range(),
             statistics);
    statistics->elements += count;
    AddIntegerSums<T>(items, count, statistics);
  }
}

// ---- types of a byte or less -----------------------------------------------------------------

using ByteValues = std::array<double, 256>;

const ByteValues& ValuesOf(DType dtype) {
  static const auto tables = [] {
    std::array<ByteValues, 32> made = {};
    for (const DTypeInfo& info : AllDTypes()) {
      if (info.item_bytes != 1) continue;
      for (size_t byte = 0; byte < 256; ++byte) {
        const auto element = static_cast<uint8_t>(byte);
        made[static_cast<size_t>(info.dtype)][byte] = DecodeNumber(info.dtype, &element);
      }
    }
    return made;
  }();
  return tables[static_cast<size_t>(dtype)];
}

void AddBytes(DType dtype, ConstBytes bytes, LeafStatistics* statistics) {
  // Four tables, so that equal neighbours do not wait for each other.
  std::array<std::array<uint32_t, 256>, 4> counts = {};  // of a chunk
  const auto* const items = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t fours = bytes.size() / 4 * 4;
  for (size_t i = 0; i < fours; i += 4) {
    for (size_t table = 0; table < 4; ++table) ++counts[table][items[i + table]];
  }
  for (size_t i = fours; i < bytes.size(); ++i) ++counts[0][items[i]];
  const ByteValues& values = ValuesOf(dtype);
  for (size_t byte = 0; byte < 256; ++byte) {
    const uint64_t count =
        uint64_t{counts[0][byte]} + counts[1][byte] + counts[2][byte] + counts[3][byte];
    if (count == 0) continue;
    const double value = values[byte];
    if (!std::isfinite(value)) {
      statistics->elements += count;
      statistics->nonfinite += count;
      continue;
    }
    AddRange(value, value, !statistics->has_range(), statistics);
    statistics->elements += count;
    statistics->sum += static_cast<double>(count) * value;
    statistics->sum_of_squares += static_cast<double>(count) * (value * value);
  }
}

STEPWELL_INLINE void AddInline(DType dtype, ConstBytes elements, LeafStatistics* statistics) {
  switch (dtype) {
    case DType::kInt8:
      return AddIntegers<int8_t>(elements, statistics);
    case DType::kInt16:
      return AddIntegers<int16_t>(elements, statistics);
    case DType::kInt32:
      return AddIntegers<int32_t>(elements, statistics);
    case DType::kInt64:
      return AddIntegers<int64_t>(elements, statistics);
    case DType::kUInt8:
      return AddIntegers<uint8_t>(elements, statistics);
    case DType::kUInt16:
      return AddIntegers<uint16_t>(elements, statistics);
    case DType::kUInt32:
      return AddIntegers<uint32_t>(elements, statistics);
    case DType::kUInt64:
      return AddIntegers<uint64_t>(elements, statistics);
    case DType::kFloat16:
      return AddFloats<Float16, 1>(elements, statistics);
    case DType::kBFloat16:
      return AddFloats<BFloat16, 1>(elements, statistics);
    case DType::kFloat32:
      return AddFloats<Float32, 1>(elements, statistics);
    case DType::kFloat64:
      return AddFloats<Float64, 1>(elements, statistics);
    case DType::kComplex64:
      return AddFloats<Float32, 2>(elements, statistics);
    case DType::kComplex128:
      return AddFloats<Float64, 2>(elements, statistics);
    default:
      return AddBytes(dtype, elements, statistics);
  }
}

[[gnu::target("avx2")]] void AddWithAvx2(DType dtype, ConstBytes elements,
                                         LeafStatistics* statistics) {
  AddInline(dtype, elements, statistics);
}

}  // namespace

void AddElementsPortably(const DTypeInfo& dtype, ConstBytes elements, LeafStatistics* statistics) {
  const Denormals denormals(Denormals::As::kNumbers);
  AddInline(dtype.dtype, elements, statistics);
}

void AddElements(const DTypeInfo& dtype, ConstBytes elements, LeafStatistics* statistics) {
  const Denormals denormals(Denormals::As::kNumbers);
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return AddWithAvx2(dtype.dtype, elements, statistics);
  AddElementsPortably(dtype, elements, statistics);
}

}  // namespace stepwell::format
