// SPDX-License-Identifier: Apache-2.0
#include <stepwell/metrics.h>

#include <gtest/gtest.h>

namespace stepwell {
namespace {

TEST(StrictJson, NumbersThatAreNotFiniteAreStrings) {
  EXPECT_EQ(StrictJson(R"({"loss": NaN, "up": [Infinity, -Infinity], "acc": 0.5})"),
            R"({"loss": "NaN", "up": ["Infinity", "-Infinity"], "acc": 0.5})");
}

TEST(StrictJson, StringsStay) {
  const char* const text = R"({"NaN": "NaN", "a\"NaN": "\\", "b": "-Infinity\\\" NaN"})";
  EXPECT_EQ(StrictJson(text), text);
  EXPECT_EQ(StrictJson(""), "");
}

}  // namespace
}  // namespace stepwell
