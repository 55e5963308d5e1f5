// SPDX-License-Identifier: Apache-2.0
#include "format/key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/prng.h"

namespace stepwell::format {
namespace {

using Type = PathComponent::Type;

std::string RandomName(Prng& prng) {
  static const std::vector<std::string> kNames = {"",
                                                  "a",
                                                  "b",
                                                  std::string(1, '\0'),
                                                  std::string("a\0", 2),
                                                  std::string("a\0b", 3),
                                                  "a.b",
                                                  "/",
                                                  "%",
                                                  ".",
                                                  "..",
                                                  "\xFF",
                                                  "\x01",
                                                  "\xC3\xA9",
                                                  std::string("\0\xFF", 2),
                                                  std::string("\0\x01", 2),
                                                  std::string(10240, 'x')};
  if (prng.Below(3) > 0) return kNames[prng.Below(kNames.size())];
  std::string name;
  for (uint64_t i = prng.Below(6); i > 0; --i) {
    name.push_back("\0\x01\xFF/az"[prng.Below(6)]);
  }
  return name;
}

KeyPath RandomPath(Prng& prng) {
  static const int64_t kNumbers[] = {0,
                                     1,
                                     -1,
                                     9,
                                     10,
                                     255,
                                     256,
                                     -256,
                                     std::numeric_limits<int64_t>::min(),
                                     std::numeric_limits<int64_t>::max()};
  KeyPath path;
  for (uint64_t i = prng.Below(5); i > 0; --i) {
    PathComponent component;
    component.type = static_cast<Type>(1 + prng.Below(5));
    if (component.type == Type::kIntKey || component.type == Type::kIndex) {
      component.number = kNumbers[prng.Below(10)];
      if (component.type == Type::kIndex && component.number < 0) component.number = 5;
    } else {
      component.name = RandomName(prng);
    }
    path.push_back(component);
  }
  return path;
}

// Component-wise; ancestors first; names as unsigned bytes (std::string compares so).
bool Before(const KeyPath& a, const KeyPath& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](const PathComponent& x, const PathComponent& y) {
                                        if (x.type != y.type) return x.type < y.type;
                                        if (x.number != y.number) return x.number < y.number;
                                        return x.name < y.name;
                                      });
}

bool IsAncestorOrSelf(const KeyPath& a, const KeyPath& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

TEST(KeyTest, EncodingsSortAsPathsDoAndPrefixesAreAncestors) {
  Prng prng(1);
  for (int i = 0; i < 20000; ++i) {
    const KeyPath a = RandomPath(prng);
    KeyPath b = RandomPath(prng);
    if (prng.Below(2) == 0) b.insert(b.begin(), a.begin(), a.end());
    const std::string x = EncodePath(a).value();
    const std::string y = EncodePath(b).value();
    EXPECT_EQ(Before(a, b), x < y);
    EXPECT_EQ(a == b, x == y);
    EXPECT_EQ(IsAncestorOrSelf(a, b), y.compare(0, x.size(), x) == 0);
  }
}

TEST(KeyTest, RoundTrips) {
  Prng prng(2);
  for (int i = 0; i < 5000; ++i) {
    const KeyPath path = RandomPath(prng);
    const std::string item = RandomName(prng);
    EXPECT_TRUE(DecodePath(EncodePath(path).value()).value() == path);
    const std::string key = EncodeLeafKey(item, path).value();
    EXPECT_EQ(key.compare(0, EncodeItem(item).size(), EncodeItem(item)), 0);
    std::string walked;
    for (const PathComponent& component : path) {
      if (IsNumber(component.type)) {
        AppendNumber(component.type, component.number, &walked);
      } else {
        AppendName(component.type, component.name, &walked);
      }
    }
    EXPECT_EQ(walked, EncodePath(path).value());
    EXPECT_EQ(LeafKeyOf(item, walked).value(), key);
    const LeafKey decoded = DecodeLeafKey(key).value();
    EXPECT_EQ(decoded.item, item);
    EXPECT_TRUE(decoded.path == path);
    const uint64_t step = prng.Next();
    EXPECT_EQ(DecodeStep(EncodeStep(step)).value(), step);
  }
}

TEST(KeyTest, WhatDecodesEncodesToTheSameBytes) {
  Prng prng(4);
  int accepted = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string bytes = EncodePath(RandomPath(prng)).value();
    if (bytes.size() > 1000) continue;
    for (uint64_t k = prng.Below(4); k > 0 && !bytes.empty(); --k) {
      bytes[prng.Below(bytes.size())] = static_cast<char>(prng.Below(4) > 0 ? prng.Below(5) : 255);
    }
    bytes.resize(prng.Below(2) > 0 ? bytes.size() : prng.Below(bytes.size() + 1));
    const Result<KeyPath> path = DecodePath(bytes);
    if (path.ok()) {
      ++accepted;
      EXPECT_EQ(EncodePath(*path).value(), bytes);
    } else {
      EXPECT_EQ(path.status().code(), StatusCode::kDataLoss);
    }
    const Result<LeafKey> leaf = DecodeLeafKey(bytes);
    if (leaf.ok()) {
      EXPECT_EQ(EncodeLeafKey(leaf->item, leaf->path).value(), bytes);
    }
  }
  EXPECT_GT(accepted, 5000);
}

TEST(KeyTest, LimitsHold) {
  const KeyPath deep(kPathComponentsMax + 1, PathComponent{Type::kIndex, 1, ""});
  EXPECT_EQ(EncodePath(deep).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodePath({{Type::kKey, 0, std::string(kPathBytesMax, 'x')}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(LeafKeyOf("item", std::string(kPathBytesMax, 'x')).ok());
  EXPECT_EQ(LeafKeyOf("item", std::string(kPathBytesMax + 1, 'x')).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodePath({{Type::kIndex, -1, ""}}).status().code(), StatusCode::kInvalidArgument);
  std::string encoded;
  const std::string one = EncodePath({{Type::kIndex, 1, ""}}).value();
  for (size_t i = 0; i <= kPathComponentsMax; ++i) encoded += one;
  EXPECT_EQ(DecodePath(encoded).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(DecodePath(encoded).status().message(), "bad key: too many path components");
}

TEST(KeyTest, PrefixEndIsTheNextStringOutside) {
  EXPECT_EQ(PrefixEnd("a"), "b");
  EXPECT_EQ(PrefixEnd("a\xFF"), "b");
  EXPECT_EQ(PrefixEnd("\xFF\xFF"), "");
  EXPECT_EQ(PrefixEnd(""), "");
  EXPECT_EQ(PrefixEnd(std::string("\0", 1)), "\x01");
}

TEST(KeyTest, TextEscapesPatterns) {
  EXPECT_EQ(PathToText({{Type::kKey, 0, "a/b*"},
                        {Type::kIntKey, -3, ""},
                        {Type::kIndex, 2, ""},
                        {Type::kAttribute, 0, "w\\.x"},
                        {Type::kLiteral, 0, "(1, '/')"}}),
            "a\\/b\\*/-3/2/w\\\\.x/(1, '\\/')");
  EXPECT_EQ(PathToText({}), "");
}

}  // namespace
}  // namespace stepwell::format
