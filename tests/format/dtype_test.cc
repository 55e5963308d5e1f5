// SPDX-License-Identifier: Apache-2.0
#include "format/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

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

}  // namespace
}  // namespace stepwell::format
