// SPDX-License-Identifier: Apache-2.0
#include <stepwell/text.h>

#include <gtest/gtest.h>

namespace stepwell {
namespace {

TEST(TableTest, SizesHaveOneDigitAndNever1024) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes((uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "16.0 EiB");
}

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(Table({{"NAME", "SIZE"}, {"größe", "1"}, {"a", "12345"}}, {false, true}),
            "NAME    SIZE\ngröße      1\na      12345\n");
  EXPECT_EQ(Table({{"a", "1"}, {"", ""}, {"bb", "22", "3"}}, {false}), "a    1\n\nbb  22  3\n");
  EXPECT_EQ(Table({}, {}), "");
}

}  // namespace
}  // namespace stepwell
