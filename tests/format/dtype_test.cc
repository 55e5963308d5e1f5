// SPDX-License-Identifier: Apache-2.0
#include "format/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace stepwell::format {
namespace {

TEST(DTypeTest, NumbersAndNamesAreUniqueAndFound) {
  std::set<std::string_view> names;
  uint16_t number = 0;
  for (const DTypeInfo& info : AllDTypes()) {
    EXPECT_EQ(static_cast<uint16_t>(info.dtype), ++number);
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_EQ(FindDType(info.dtype), &info);
    EXPECT_EQ(FindDType(info.name), &info);
    EXPECT_TRUE(info.value_bits == 0 || info.item_bytes == 1) << info.name;
  }
  EXPECT_EQ(number, 28);
}

TEST(DTypeTest, UnknownOnesAreNull) {
  EXPECT_EQ(FindDType(DType::kInvalid), nullptr);
  EXPECT_EQ(FindDType(static_cast<DType>(29)), nullptr);
  EXPECT_EQ(FindDType(static_cast<DType>(65535)), nullptr);
  EXPECT_EQ(FindDType("float31"), nullptr);
  EXPECT_EQ(FindDType(""), nullptr);
}

double Decoded(DType dtype, uint64_t pattern) { return DecodeNumber(dtype, &pattern); }

TEST(DTypeTest, ElementsAreDecoded) {
  EXPECT_EQ(Decoded(DType::kInt4, 0x8), -8);
  EXPECT_EQ(Decoded(DType::kUInt2, 3), 3);
  EXPECT_EQ(Decoded(DType::kInt64, UINT64_MAX), -1);
  EXPECT_EQ(Decoded(DType::kFloat16, 0x3C00), 1);
  EXPECT_EQ(Decoded(DType::kBFloat16, 0xC040), -3);
  EXPECT_EQ(Decoded(DType::kFloat8E8M0FNU, 128), 2);
  EXPECT_EQ(Decoded(DType::kFloat4E2M1FN, 0xF), -6);
  EXPECT_EQ(Decoded(DType::kFloat8E5M2, 0x7C), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Decoded(DType::kFloat8E4M3FN, 0x7E), 448);
  for (const auto& [dtype, pattern] :
       {std::pair(DType::kFloat8E4M3FN, 0xFF), std::pair(DType::kFloat8E4M3FNUZ, 0x80),
        std::pair(DType::kFloat8E5M2, 0xFE)}) {
    const double nan = Decoded(dtype, static_cast<uint64_t>(pattern));
    EXPECT_TRUE(std::isnan(nan) && std::signbit(nan)) << FindDType(dtype)->name;
  }
  EXPECT_TRUE(std::isnan(Decoded(DType::kComplex64, 0)));
}

}  // namespace
}  // namespace stepwell::format
