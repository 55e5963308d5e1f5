// SPDX-License-Identifier: Apache-2.0
#include "format/path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::format {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

bool Takes(const char* text, const std::vector<std::string>& spellings) {
  return PathPattern::Parse(text).value().Takes(spellings);
}

TEST(PathPattern, TakesThePlaceAndAllBelow) {
  EXPECT_TRUE(Takes("", {"a", "b"}));
  EXPECT_TRUE(Takes("a", {"a", "b"}));
  EXPECT_FALSE(Takes("b", {"a", "b"}));
  EXPECT_TRUE(Takes("a/*", {"a", "b"}));
  EXPECT_FALSE(Takes("a/*", {"a"}));
  EXPECT_TRUE(Takes("a/**", {"a"}));
  EXPECT_TRUE(Takes("**/kernel", {"a", "b", "kernel"}));
  EXPECT_TRUE(Takes("**/kernel", {"kernel"}));
  EXPECT_TRUE(Takes("**/layer/**/bias", {"x", "layer", "layer", "y", "bias", "z"}));
  EXPECT_FALSE(Takes("**/layer/bias", {"layer", "x", "bias"}));
}

TEST(PathPattern, WildcardsStandForCharactersOfOneComponent) {
  EXPECT_TRUE(Takes("l?yer_*", {"l\xC3\xA4yer_"}));  // ä: two bytes, one character
  EXPECT_FALSE(Takes("l?yer", {"lyer"}));
  EXPECT_FALSE(Takes("*", {}));
  EXPECT_TRUE(Takes("*a*a*b", {"aaaaaaaaaaaab"}));
  EXPECT_FALSE(Takes("*a*a*b", {"aaaaaaaaaaaa"}));
  EXPECT_TRUE(Takes("***", {"x"}));  // not **, which stands alone
  EXPECT_FALSE(Takes("***", {}));
  EXPECT_TRUE(Takes("?", {"\xFF"}));  // not UTF-8: a byte is a character
}

TEST(PathPattern, SeveralDeepWildcardsInARowAreOne) {
  EXPECT_EQ(PathPattern::Parse("a/**/**/**/b")->components().size(), 3U);
  EXPECT_TRUE(Takes("**/**", {}));
  EXPECT_TRUE(Takes("a/**/**/b", {"a", "b"}));
}

TEST(PathPattern, WhatItsWildcardsTakeFillsAnotherPattern) {
  using Names = std::vector<std::string>;
  const auto moved = [](const char* from, const char* to, const Names& names) {
    const PathPattern one = PathPattern::Parse(from).value();
    const PathPattern other = PathPattern::Parse(to).value();
    EXPECT_EQ(one.wildcards(), other.wildcards());
    const auto match = one.Match(names);
    if (!match) return Names{"no match"};
    Names made = other.Fill(match->taken);
    made.insert(made.end(), names.begin() + static_cast<ptrdiff_t>(match->length), names.end());
    return made;
  };
  EXPECT_EQ(moved("é*/w", "ü/block*/kernel", {"é1", "w"}), (Names{"ü", "block1", "kernel"}));
  EXPECT_EQ(moved("a?", "?", {"aé", "w"}), (Names{"é", "w"}));
  EXPECT_EQ(moved("**/w", "all/**", {"a", "b", "w"}), (Names{"all", "a", "b"}));
  EXPECT_EQ(moved("**/w", "all/**", {"w", "w"}), (Names{"all", "w"}));  // as few as it can
  EXPECT_EQ(moved("l/*/**/w?", "m.*/**/?", {"l", "3", "x", "y", "w7"}),
            (Names{"m.3", "x", "y", "7"}));
  EXPECT_EQ(moved("a", "b", {"a"}), (Names{"b"}));
  EXPECT_EQ(moved("a/*", "b/*", {"a"}), (Names{"no match"}));
  EXPECT_EQ(moved("*/w", "*", {"a", "v"}), (Names{"no match"}));
  EXPECT_EQ(PathPattern::Parse("**/a?/*b*").value().wildcards(), "/?**");
}

TEST(PathPattern, BackslashTakesTheNextCharacterLiterally) {
  EXPECT_TRUE(Takes(R"(a\/b/\*)", {"a/b", "*"}));
  EXPECT_FALSE(Takes(R"(\*)", {"x"}));
  EXPECT_TRUE(Takes(R"(\*\*)", {"**"}));
  EXPECT_FALSE(Takes(R"(\**)", {"x*"}));
  EXPECT_TRUE(Takes(R"(\[\\\?)", {"[\\?"}));
}

TEST(PathPattern, SaysWhatIsMalformed) {
  const auto message = [](const char* text) {
    const auto parsed = PathPattern::Parse(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
    return parsed.status().message();
  };
  EXPECT_THAT(message("[a]"), HasSubstr("[ is reserved"));
  EXPECT_THAT(message("a\\"), HasSubstr("not at the end"));
  EXPECT_THAT(message("a\\b"), HasSubstr("not before b"));
  EXPECT_THAT(ParseKeys("a/*").status().message(), HasSubstr("wildcard"));
  EXPECT_EQ(*ParseKeys("a/0"), (KeyPath{PathComponent::Key("a"), PathComponent::Key("0")}));
}

TEST(PathPattern, PrintedPathsNameTheSamePlace) {
  const KeyPath path = {PathComponent::Key("a/b"), PathComponent::Attribute("*?[\\"),
                        PathComponent::IntKey(-3), PathComponent::Index(0), PathComponent::Key("")};
  EXPECT_EQ(PathToText(path), R"(a\/b/\*\?\[\\/-3/0/)");
  const auto parsed = PathPattern::Parse(PathToText(path));
  EXPECT_FALSE(parsed->is_glob());
  std::vector<std::string> literals;
  for (const PatternComponent& component : parsed->components()) literals.push_back(component.text);
  EXPECT_EQ(literals, Spellings(path));
  EXPECT_EQ(PathPattern::Of(path).text(), PathToText(path));
}

TEST(PathPattern, ComponentsWithOneSpelling) {
  const auto key = PathComponent::Key;
  const auto attribute = PathComponent::Attribute;
  const auto literal = PathComponent::Literal;
  EXPECT_THAT(ComponentsSpelled("w"), UnorderedElementsAre(key("w"), attribute("w")));
  EXPECT_THAT(ComponentsSpelled("7"),
              UnorderedElementsAre(key("7"), attribute("7"), PathComponent::IntKey(7),
                                   PathComponent::Index(7)));
  EXPECT_THAT(ComponentsSpelled("-7"),
              UnorderedElementsAre(key("-7"), attribute("-7"), PathComponent::IntKey(-7)));
  for (const char* text : {"", "kernel_0", "_", "Truer", "\xC3\xA9"}) {
    EXPECT_EQ(ComponentsSpelled(text).size(), 2U) << text;
  }
  for (const char* text : {"07", "+7", "-0", "9223372036854775808", "7 ", "True", "None", "1.5",
                           "1e-05", "b'x'", "()", "(1, 'a')", "Color.RED"}) {
    EXPECT_THAT(ComponentsSpelled(text),
                UnorderedElementsAre(key(text), attribute(text), literal(text)));
  }
}

}  // namespace
}  // namespace stepwell::format
