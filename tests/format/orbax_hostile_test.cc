// SPDX-License-Identifier: Apache-2.0
// Every decoder of Orbax's JSON files against truncations, mutations and other kinds of JSON.
#include <gtest/gtest.h>

#include "tests/format/support/orbax_examples.h"
#include "tests/prng.h"

namespace stepwell::format::orbax {
namespace {

// Fails as a decoder may, or what it decoded survives encoding.
void ExpectHandled(const FileKind& kind, const std::string& text) {
  const Result<std::string> result = kind.reencode("FILE", text);
  if (result.ok()) return;
  const bool right = result.status().code() == StatusCode::kDataLoss ||
                     result.status().code() == StatusCode::kUnimplemented;
  // A handler's name or user's JSON may be what no encoder takes, such as no entry at all.
  const bool not_encodable = result.status().code() == StatusCode::kInvalidArgument;
  EXPECT_TRUE(right || not_encodable) << kind.name << ": " << result.status().ToString() << "\n"
                                      << text;
  EXPECT_NE(result.status().message().find(not_encodable ? "" : "FILE"), std::string::npos)
      << result.status().ToString();
}

TEST(OrbaxHostile, ExamplesComeBackByteForByte) {
  for (const FileKind& kind : FileKinds()) {
    for (const std::string& example : kind.examples) {
      const Result<std::string> result = kind.reencode("FILE", example);
      ASSERT_TRUE(result.ok()) << kind.name << ": " << result.status().ToString();
      EXPECT_EQ(*result, example) << kind.name;
    }
  }
}

TEST(OrbaxHostile, EveryTruncationIsDataLoss) {
  for (const FileKind& kind : FileKinds()) {
    for (const std::string& example : kind.examples) {
      for (size_t size = 0; size < example.size(); ++size) {
        const Result<std::string> result = kind.reencode("FILE", example.substr(0, size));
        ASSERT_FALSE(result.ok()) << kind.name << " cut to " << size;
        EXPECT_EQ(result.status().code(), StatusCode::kDataLoss) << result.status().ToString();
      }
    }
  }
}

TEST(OrbaxHostile, MutatedTextsAreRefusedOrMeanSomething) {
  constexpr std::string_view kPieces[] = {"0", "-1",   "1e999", "NaN", "18446744073709551616",
                                          "[", "]",    "{",     "}",   "\"",
                                          ",", "null", "true",  "\\",  "\xFF"};
  Prng prng(11);
  for (const FileKind& kind : FileKinds()) {
    for (const std::string& example : kind.examples) {
      for (int round = 0; round < 1500; ++round) {
        std::string text = example;
        const size_t place = prng.Below(text.size());
        switch (prng.Below(3)) {
          case 0:
            text[place] = static_cast<char>(prng.Next());
            break;
          case 1:
            text.replace(place, prng.Below(4), kPieces[prng.Below(std::size(kPieces))]);
            break;
          default:
            text.erase(place, prng.Below(20));
        }
        ExpectHandled(kind, text);
      }
    }
  }
}

// Every value of the text in turn is replaced by one of another type.
TEST(OrbaxHostile, ValuesOfOtherTypesAreRefusedOrMeanSomething) {
  constexpr std::string_view kValues[] = {"null",
                                          "true",
                                          "-3",
                                          "2.5",
                                          "\"\"",
                                          "\"x\"",
                                          "[]",
                                          "[[]]",
                                          "{}",
                                          "[1]",
                                          "[\"\"]",
                                          "{\"\": 1}",
                                          "4611686018427387905",
                                          "9223372036854775808"};
  for (const FileKind& kind : FileKinds()) {
    for (const std::string& example : kind.examples) {
      for (size_t colon = example.find(':'); colon != std::string::npos;
           colon = example.find(':', colon + 1)) {
        const size_t end = example.find_first_of(",]}", colon + 1);
        if (end == std::string::npos) continue;
        for (const std::string_view value : kValues) {
          std::string text = example;
          text.replace(colon + 1, end - colon - 1, value);
          ExpectHandled(kind, text);
        }
      }
    }
  }
}

TEST(OrbaxHostile, OtherFilesOfJsonAreNoneOfThese) {
  for (const FileKind& kind : FileKinds()) {
    if (kind.name == "json") continue;
    for (const char* const text : {"[]", "null", "1", "\"x\"", "", " ", "[{}]"}) {
      const Result<std::string> result = kind.reencode("FILE", text);
      ASSERT_FALSE(result.ok()) << kind.name << " from " << text;
      EXPECT_EQ(result.status().code(), StatusCode::kDataLoss) << result.status().ToString();
    }
    for (const FileKind& other : FileKinds()) {
      for (const std::string& example : other.examples) ExpectHandled(kind, example);
    }
  }
}

TEST(OrbaxHostile, DeepNestingIsRefusedWithoutRecursion) {
  for (const FileKind& kind : FileKinds()) {
    for (const std::string_view open : {"[", "{\"a\":", "{\"custom_metadata\":"}) {
      std::string text;
      for (int depth = 0; depth < 20000; ++depth) text.append(open);
      const Result<std::string> result = kind.reencode("FILE", text);
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().code(), StatusCode::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace stepwell::format::orbax
