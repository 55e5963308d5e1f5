// SPDX-License-Identifier: Apache-2.0
// Statistics of elements of every type, against a plain loop over their values.
#include "format/element_statistics.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "format/grid.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

using Bytes = std::vector<std::byte>;

bool IsComplex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

// The values that an element has: one, or two parts.
std::vector<double> ValuesOf(const DTypeInfo& dtype, const std::byte* element) {
  if (!IsComplex(dtype.dtype)) return {DecodeNumber(dtype.dtype, element)};
  const size_t part = dtype.item_bytes / 2U;
  const DType of_parts = part == 4 ? DType::kFloat32 : DType::kFloat64;
  return {DecodeNumber(of_parts, element), DecodeNumber(of_parts, element + part)};
}

LeafStatistics Plain(const DTypeInfo& dtype, const Bytes& bytes) {
  LeafStatistics plain;
  for (size_t at = 0; at < bytes.size(); at += dtype.item_bytes) {
    ++plain.elements;
    const std::vector<double> values = ValuesOf(dtype, &bytes[at]);
    bool finite = true;
    for (const double value : values) finite = finite && std::isfinite(value);
    if (!finite) {
      ++plain.nonfinite;
      continue;
    }
    for (const double& value : values) {
      const bool is_first = plain.elements - plain.nonfinite == 1 && &value == &values.front();
      plain.min = is_first ? value : std::min(plain.min, value);
      plain.max = is_first ? value : std::max(plain.max, value);
      plain.sum += value;
      plain.sum_of_squares += value * value;
    }
  }
  return plain;
}

// Those of short floats are taken in float32, some at a time; the others in another order.
double ToleranceOf(const DTypeInfo& dtype) {
  switch (dtype.dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kComplex64:
      return 2e-6;
    default:
      return 1e-12;
  }
}

void ExpectSame(const LeafStatistics& taken, const LeafStatistics& plain, double tolerance) {
  EXPECT_EQ(taken.elements, plain.elements);
  EXPECT_EQ(taken.nonfinite, plain.nonfinite);
  EXPECT_EQ(taken.min, plain.min);
  EXPECT_EQ(taken.max, plain.max);
  const double squares = plain.sum_of_squares;
  if (std::isfinite(squares)) {
    EXPECT_NEAR(taken.sum_of_squares, squares, tolerance * squares);
    // What the terms may cancel out is bounded by their magnitudes.
    const double magnitudes = std::sqrt(squares) * std::sqrt(static_cast<double>(plain.elements));
    EXPECT_NEAR(taken.sum, plain.sum, tolerance * magnitudes);
  } else {
    EXPECT_EQ(taken.sum_of_squares, squares);
  }
}

void ExpectPlain(const DTypeInfo& dtype, const Bytes& bytes) {
  const LeafStatistics plain = Plain(dtype, bytes);
  LeafStatistics fast;
  AddElements(dtype, bytes, &fast);
  ExpectSame(fast, plain, ToleranceOf(dtype));
  LeafStatistics portable;
  AddElementsPortably(dtype, bytes, &portable);
  ExpectSame(portable, plain, ToleranceOf(dtype));
}

enum class Mix { kAnyBits, kFinite, kRarelyNot, kNone };

// Bits of all kinds, in which exponents of all ones are rare, or absent, or everywhere.
Bytes RandomElements(const DTypeInfo& dtype, size_t count, Mix mix, Prng* prng) {
  Bytes bytes(count * dtype.item_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng->Next());
  if (dtype.value_bits != 0) {
    for (std::byte& byte : bytes) byte &= static_cast<std::byte>((1U << dtype.value_bits) - 1);
  }
  if (dtype.dtype == DType::kBool) {
    for (std::byte& byte : bytes) byte &= std::byte{1};
  }
  if (mix == Mix::kAnyBits) return bytes;
  for (size_t at = 0; at < bytes.size(); at += dtype.item_bytes) {
    const bool may = mix == Mix::kRarelyNot && prng->Next() % 1000 == 0;
    const auto finite = [&] {
      for (const double value : ValuesOf(dtype, &bytes[at])) {
        if (!std::isfinite(value)) return false;
      }
      return true;
    };
    while (!may && finite() != (mix != Mix::kNone) && prng->Next() % 4096 != 0) {
      for (size_t i = 0; i < dtype.item_bytes; ++i) {
        bytes[at + i] = mix == Mix::kNone ? std::byte{0xFF} : static_cast<std::byte>(prng->Next());
      }
      if (mix == Mix::kNone) break;
    }
  }
  return bytes;
}

TEST(ElementStatisticsTest, EveryTypeAgreesWithAPlainLoop) {
  Prng prng(11);
  for (const DTypeInfo& dtype : AllDTypes()) {
    SCOPED_TRACE(dtype.name);
    for (const size_t count : {0U, 1U, 2U, 7U, 8U, 31U, 33U, 2047U, 2048U, 2049U, 5000U}) {
      SCOPED_TRACE(count);
      for (const Mix mix : {Mix::kAnyBits, Mix::kFinite, Mix::kRarelyNot, Mix::kNone}) {
        ExpectPlain(dtype, RandomElements(dtype, count, mix, &prng));
      }
    }
  }
}

TEST(ElementStatisticsTest, EveryPatternOfShortTypes) {
  for (const DTypeInfo& dtype : AllDTypes()) {
    if (dtype.item_bytes > 2) continue;
    SCOPED_TRACE(dtype.name);
    const size_t patterns = size_t{1} << (8 * dtype.item_bytes);
    for (size_t pattern = 0; pattern < patterns; ++pattern) {
      Bytes one(dtype.item_bytes);
      std::memcpy(one.data(), &pattern, one.size());
      const LeafStatistics plain = Plain(dtype, one);
      LeafStatistics taken;
      AddElements(dtype, one, &taken);
      ASSERT_EQ(taken, plain) << pattern;
    }
  }
}

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
LeafStatistics Of(DType dtype, const Bytes& bytes) {
  LeafStatistics taken;
  AddElements(*FindDType(dtype), bytes, &taken);
  return taken;
}

TEST(ElementStatisticsTest, NaNsAndInfinitiesEnterNothingElse) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto quiet = std::bit_cast<float>(0xFFC00001U);
  const auto signalling = std::bit_cast<float>(0x7F800001U);
  const LeafStatistics taken =
      Of(DType::kFloat32,
         BytesOf<float>({kInfinity, -3, quiet, std::numeric_limits<float>::max(), -kInfinity, 4,
                         signalling, std::numeric_limits<float>::lowest()}));
  EXPECT_EQ(taken.elements, 8U);
  EXPECT_EQ(taken.nonfinite, 4U);
  EXPECT_EQ(taken.min, static_cast<double>(std::numeric_limits<float>::lowest()));
  EXPECT_EQ(taken.max, static_cast<double>(std::numeric_limits<float>::max()));
  EXPECT_TRUE(std::isfinite(taken.sum));
  EXPECT_TRUE(std::isfinite(taken.norm()));
  EXPECT_FALSE(Of(DType::kFloat32, BytesOf<float>({quiet})).has_range());
  EXPECT_FALSE(Of(DType::kFloat32, {}).has_range());
}

TEST(ElementStatisticsTest, AComplexNumberIsOneElement) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const LeafStatistics taken =
      Of(DType::kComplex64, BytesOf<float>({3, 4, nan, 100, -100, nan, -1, 0}));
  EXPECT_EQ(taken.elements, 4U);
  EXPECT_EQ(taken.nonfinite, 2U);
  EXPECT_EQ(taken.min, -1);
  EXPECT_EQ(taken.max, 4);
  EXPECT_EQ(taken.sum_of_squares, 26);
}

TEST(ElementStatisticsTest, ZerosHaveSigns) {
  EXPECT_TRUE(std::signbit(Of(DType::kFloat32, BytesOf<float>({0.0F, -0.0F})).min));
  EXPECT_FALSE(std::signbit(Of(DType::kFloat32, BytesOf<float>({-0.0F, 0.0F})).max));
  EXPECT_TRUE(std::signbit(Of(DType::kFloat64, BytesOf<double>({-0.0})).max));
}

// A thread takes its modes from the one that started it.
TEST(ElementStatisticsTest, DenormalNumbersAreNoZeros) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Bytes floats = BytesOf<float>({tiny, 3 * tiny});
  const Bytes halves = BytesOf<uint16_t>({0x0001, 0x8003});
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  const LeafStatistics of_floats = Of(DType::kFloat32, floats);
  const LeafStatistics of_halves = Of(DType::kFloat16, halves);
  const unsigned during = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(during & 0x8040U, 0x8040U);
  EXPECT_EQ(of_floats.min, 0x1p-149);
  EXPECT_EQ(of_floats.max, 3 * 0x1p-149);
  EXPECT_EQ(of_floats.sum_of_squares, 10 * 0x1p-298);
  EXPECT_EQ(of_halves.min, -3 * 0x1p-24);
  EXPECT_EQ(of_halves.sum, -2 * 0x1p-24);
}

// A sum of equal terms in one variable of float32 would stop growing at 2^24.
TEST(ElementStatisticsTest, ErrorsDoNotGrowWithTheArray) {
  constexpr size_t kCount = 1U << 22;
  const LeafStatistics ones = Of(DType::kFloat32, BytesOf(std::vector<float>(kCount, 0.1F)));
  const auto tenth = static_cast<double>(0.1F);
  EXPECT_NEAR(ones.sum_of_squares, kCount * tenth * tenth, 1e-6 * kCount * tenth * tenth);
  EXPECT_NEAR(ones.mean(), tenth, 1e-7);
}

// Squares that float32 cannot hold, or only as denormal numbers, are taken in float64.
TEST(ElementStatisticsTest, LargeAndSmallNumbersHaveSquares) {
  for (const float scale : {1e-44F, 1e-30F, 1e-13F, 1e-12F, 1.0F, 1e18F, 2e18F, 1e19F, 1e38F}) {
    std::vector<float> floats;
    std::vector<uint16_t> bfloats;
    for (int i = 0; i < 3000; ++i) {
      const float value = scale * static_cast<float>(i % 7 - 3);
      floats.push_back(value);
      bfloats.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    }
    SCOPED_TRACE(scale);
    ExpectPlain(*FindDType(DType::kFloat32), BytesOf(floats));
    ExpectPlain(*FindDType(DType::kBFloat16), BytesOf(bfloats));
    // Beside large ones, small ones make no difference.
    floats.insert(floats.end(), 3000, 1e-39F);
    ExpectPlain(*FindDType(DType::kFloat32), BytesOf(floats));
  }
}

TEST(ElementStatisticsTest, LongIntegersAreRounded) {
  const LeafStatistics taken =
      Of(DType::kUInt64, BytesOf<uint64_t>({UINT64_MAX, (uint64_t{1} << 53) + 1}));
  EXPECT_EQ(taken.max, 0x1p64);
  EXPECT_EQ(taken.min, 0x1p53);
  EXPECT_EQ(Of(DType::kInt64, BytesOf<int64_t>({INT64_MIN})).min, -0x1p63);
}

// Padding is no element of the array, whatever it holds.
TEST(ElementStatisticsTest, ChunksCountWithoutTheirPadding) {
  Prng prng(12);
  const DTypeInfo& dtype = *FindDType(DType::kFloat32);
  const std::vector<std::pair<Shape, Shape>> grids = {{{}, {}},
                                                      {{5}, {5}},
                                                      {{5}, {3}},
                                                      {{7, 4}, {3, 4}},
                                                      {{7, 5}, {3, 2}},
                                                      {{2, 3, 5}, {1, 2, 4}},
                                                      {{4, 1, 6}, {4, 1, 4}},
                                                      {{3, 3, 2, 2}, {2, 3, 1, 2}},
                                                      {{1, 9}, {4, 4}}};
  for (const auto& [shape, chunk_shape] : grids) {
    const uint64_t count = ElementCount(shape, 4).value();
    const Bytes array = RandomElements(dtype, count, Mix::kRarelyNot, &prng);
    LeafStatistics all;
    for (uint64_t chunk = 0; chunk < ChunkCount(shape, chunk_shape); ++chunk) {
      // NaNs where the chunk has nothing of the array.
      Bytes bytes(ChunkBytes(chunk_shape, 4), std::byte{0xFF});
      GatherChunkPart({array.data(), shape, CStrides(shape, 4)}, Shape(shape.size(), 0), shape,
                      dtype, chunk_shape, chunk, bytes.data());
      all.Add(StatisticsOfChunk(dtype, shape, chunk_shape, chunk, bytes));
    }
    ExpectSame(all, Plain(dtype, array), ToleranceOf(dtype));
  }
}

TEST(ElementStatisticsTest, MergingIsAsIfTakenAtOnce) {
  Prng prng(13);
  const DTypeInfo& dtype = *FindDType(DType::kBFloat16);
  const Bytes all = RandomElements(dtype, 3000, Mix::kAnyBits, &prng);
  for (const ptrdiff_t cut : {0, 1, 1500, 3000}) {
    LeafStatistics first = Of(dtype.dtype, Bytes(all.begin(), all.begin() + 2 * cut));
    first.Add(Of(dtype.dtype, Bytes(all.begin() + 2 * cut, all.end())));
    ExpectSame(first, Plain(dtype, all), ToleranceOf(dtype));
  }
  LeafStatistics counted{.elements = 3, .changed = 1, .changed_count = ChangedCount::kExact};
  counted.Add({.elements = 5, .changed = 5, .changed_count = ChangedCount::kAtMost});
  EXPECT_EQ(counted.changed, 6U);
  EXPECT_EQ(counted.changed_count, ChangedCount::kAtMost);
  counted.Add({});
  EXPECT_EQ(counted.changed_count, ChangedCount::kAtMost);
  counted.Add({.elements = 5});
  EXPECT_EQ(counted.changed_count, ChangedCount::kUnknown);
  EXPECT_EQ(counted.changed, 0U);
}

TEST(ElementStatisticsTest, DifferencesAreCountedByElement) {
  Prng prng(14);
  for (const size_t item_bytes : {1U, 2U, 4U, 8U, 16U}) {
    Bytes before(item_bytes * 1001);
    for (std::byte& byte : before) byte = static_cast<std::byte>(prng.Next());
    Bytes after = before;
    EXPECT_EQ(CountDifferent(item_bytes, before, after), 0U);
    for (const size_t element : {0U, 500U, 1000U}) {
      after[element * item_bytes + prng.Next() % item_bytes] ^= std::byte{0x80};
    }
    EXPECT_EQ(CountDifferent(item_bytes, before, after), 3U) << item_bytes;
  }
}

}  // namespace
}  // namespace stepwell::format
