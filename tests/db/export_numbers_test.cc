// SPDX-License-Identifier: Apache-2.0
// Numbers keep the element type that they were imported with, if it holds them.
#include "db/export/orbax/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace stepwell::db {
namespace {

using format::DType;

struct NumberCase {
  const char* text;
  DType imported;
  DType wanted;
};

TEST(ExportNumbersTest, Integers) {
  constexpr NumberCase kCases[] = {
      {"5", DType::kInvalid, DType::kInt64},
      {"-9223372036854775808", DType::kInvalid, DType::kInt64},
      {"9223372036854775808", DType::kInvalid, DType::kUInt64},
      {"18446744073709551615", DType::kInt64, DType::kUInt64},
      {"-128", DType::kInt8, DType::kInt8},
      {"-129", DType::kInt8, DType::kInt64},
      {"127", DType::kInt8, DType::kInt8},
      {"128", DType::kInt8, DType::kInt64},
      {"255", DType::kUInt8, DType::kUInt8},
      {"256", DType::kUInt8, DType::kInt64},
      {"-1", DType::kUInt8, DType::kInt64},
      {"-1", DType::kUInt64, DType::kInt64},
      {"7", DType::kUInt64, DType::kUInt64},
      {"-2147483648", DType::kInt32, DType::kInt32},
      {"4294967295", DType::kUInt32, DType::kUInt32},
      {"-5", DType::kInt16, DType::kInt16},
      {"5", DType::kFloat32, DType::kInt64},
  };
  for (const NumberCase& one : kCases) {
    const auto element = IntegerElement(one.text, one.imported);
    ASSERT_TRUE(element) << one.text;
    EXPECT_EQ(element->dtype, one.wanted) << one.text;
    EXPECT_EQ(element->bytes.size(), format::FindDType(one.wanted)->item_bytes);
  }
  EXPECT_EQ(IntegerElement("-2", DType::kInt16)->bytes, "\xfe\xff");
  for (const char* const bad : {"", "x", "1x", "18446744073709551616", "-9223372036854775809"}) {
    EXPECT_FALSE(IntegerElement(bad, DType::kInvalid)) << bad;
  }
}

std::string Bytes(uint64_t bits, size_t size) {
  std::string bytes(size, '\0');
  std::memcpy(bytes.data(), &bits, size);
  return bytes;
}

TEST(ExportNumbersTest, Floats) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(FloatElement(0.1, DType::kInvalid).dtype, DType::kFloat64);
  EXPECT_EQ(FloatElement(0.1, DType::kFloat32).dtype, DType::kFloat64);  // not exactly
  EXPECT_EQ(FloatElement(1e300, DType::kFloat32).dtype, DType::kFloat64);
  EXPECT_EQ(FloatElement(-2.5, DType::kFloat32).bytes, Bytes(0xC0200000, 4));
  EXPECT_EQ(FloatElement(-2.5, DType::kBFloat16).bytes, Bytes(0xC020, 2));
  EXPECT_EQ(FloatElement(1 + std::ldexp(1, -20), DType::kBFloat16).dtype, DType::kFloat64);
  EXPECT_EQ(FloatElement(NAN, DType::kFloat32).dtype, DType::kFloat32);
  EXPECT_EQ(FloatElement(-2.5, DType::kFloat16).bytes, Bytes(0xC100, 2));
  EXPECT_EQ(FloatElement(-0.0, DType::kFloat16).bytes, Bytes(0x8000, 2));
  EXPECT_EQ(FloatElement(65504, DType::kFloat16).bytes, Bytes(0x7BFF, 2));
  EXPECT_EQ(FloatElement(65536, DType::kFloat16).dtype, DType::kFloat64);
  EXPECT_EQ(FloatElement(std::ldexp(1, -14), DType::kFloat16).bytes, Bytes(0x0400, 2));
  EXPECT_EQ(FloatElement(std::ldexp(3, -24), DType::kFloat16).bytes, Bytes(3, 2));
  EXPECT_EQ(FloatElement(std::ldexp(1, -25), DType::kFloat16).dtype, DType::kFloat64);
  EXPECT_EQ(FloatElement(-infinity, DType::kFloat16).bytes, Bytes(0xFC00, 2));
  EXPECT_EQ(FloatElement(NAN, DType::kFloat16).bytes.size(), 2U);
}

}  // namespace
}  // namespace stepwell::db
