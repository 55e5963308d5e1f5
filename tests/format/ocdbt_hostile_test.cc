// SPDX-License-Identifier: Apache-2.0
// OCDBT databases that are damaged, or made to do damage.
#include <gtest/gtest.h>

#include "format/orbax/ocdbt_read.h"
#include "tests/format/support/ocdbt_bytes.h"
#include "tests/prng.h"

namespace stepwell::format::orbax {
namespace {

using internal::FrameMagic;

constexpr uint64_t kHuge = uint64_t{1} << 62;

void ExpectRefused(const Status& status, const std::string& what,
                   StatusCode code = StatusCode::kDataLoss) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
}

Status DecodeNode(const std::string& bytes, uint8_t height = 0) {
  return DecodeOcdbtNode(AsBytes(bytes), height, "").status();
}
Status DecodeManifest(const std::string& bytes) {
  return DecodeOcdbtManifest(AsBytes(bytes)).status();
}
Status DecodeLeafBody(const std::string& body) {
  return DecodeNode(Frame(FrameMagic::kNode, body));
}
Status DecodeInteriorBody(const std::string& body) {
  return DecodeNode(Frame(FrameMagic::kNode, body), 1);
}

// The checksums of compressed frames cover the stored bytes.
std::string CompressedLeaf() {
  OcdbtOptions options;
  options.nodes_path = "n";
  OcdbtBuilder builder = OcdbtBuilder::Create(options).value();
  for (int i = 100; i < 200; ++i) {
    EXPECT_TRUE(builder.AddInline(StrCat("some/key/", i), "a value that is repeated").ok());
  }
  const std::string nodes = builder.Finish().value().nodes;
  EXPECT_EQ(nodes[13], 1);
  EXPECT_LT(nodes.size(), 400U);
  return nodes;
}

TEST(OcdbtHostileTest, EveryTruncationAndEveryFlippedByteIsDataLoss) {
  const std::map<std::string, Status (*)(const std::string&)> decoders = {
      {RealManifest(), DecodeManifest},
      {RealLeaf(), [](const std::string& bytes) { return DecodeNode(bytes); }},
      {CompressedLeaf(), [](const std::string& bytes) { return DecodeNode(bytes); }}};
  for (const auto& [bytes, decode] : decoders) {
    ASSERT_TRUE(decode(bytes).ok());
    for (size_t size = 0; size < bytes.size(); ++size) {
      ExpectRefused(decode(bytes.substr(0, size)), "bad OCDBT ");
    }
    ExpectRefused(decode(bytes + '\0'), "bad OCDBT ");
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (int bits = 1; bits < 256; ++bits) {
        std::string bad = bytes;
        bad[at] = static_cast<char>(bad[at] ^ bits);
        ASSERT_EQ(decode(bad).code(), StatusCode::kDataLoss) << at << " " << bits;
      }
    }
  }
}

// With checksums made right: whatever it is, it ends, and says that it is bad or unknown.
TEST(OcdbtHostileTest, MutationsBehindRightChecksumsAreRefusedOrHarmless) {
  Prng prng(1);
  const Files good = {{kRealFile, kRealValue + RealLeaf()}};
  const auto mutate = [&prng](const std::string& frame) {
    std::string body = frame.substr(14, frame.size() - 18);
    for (uint64_t i = 1 + prng.Below(3); i > 0; --i) {
      const size_t at = prng.Below(body.size());
      body[at] = static_cast<char>(prng.Below(2) == 0 ? prng.Next() : prng.Below(4));
    }
    return body;
  };
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string manifest =
        i % 2 == 0 ? RealManifest() : Frame(FrameMagic::kManifest, mutate(RealManifest()));
    Files files = good;
    if (i % 2 == 0) files[kRealFile] = kRealValue + Frame(FrameMagic::kNode, mutate(RealLeaf()));
    Found found;
    const Status status = WalkOcdbt(AsBytes(manifest), {}, ReadOf(files), CollectIn(&found));
    if (status.ok()) continue;
    ++refused;
    // kNotFound: of ReadOf.
    EXPECT_TRUE(status.code() == StatusCode::kDataLoss ||
                status.code() == StatusCode::kUnimplemented ||
                status.code() == StatusCode::kNotFound)
        << status.ToString();
  }
  EXPECT_GT(refused, 5000);
}

TEST(OcdbtHostileTest, HugeCountsTakeNoMemory) {
  for (const uint64_t count : {uint64_t{1000}, kHuge, ~uint64_t{0}}) {
    ExpectRefused(DecodeLeafBody(Varints({0, count, 0, 0})), "files in");
    ExpectRefused(DecodeLeafBody(Varints({0, 0, count, 0, 0})), "entries in");
    ExpectRefused(DecodeInteriorBody(Varints({1, 0, count, 0, 0})), "entries in");
    const std::string config = std::string(16, 'u') + Varints({0, 100, 100, 4, 0, 1, 0, 0});
    ExpectRefused(DecodeManifest(Frame(FrameMagic::kManifest, config + Varints({count, 1, 0}))),
                  "versions in");
    const std::string version = Varints({1, 1, 0, 0, 0, 9, 9, 9, 9}) + std::string(8, '\0');
    ExpectRefused(DecodeManifest(Frame(FrameMagic::kManifest, config + version + Varints({count}))),
                  "version tree nodes in");
    ExpectRefused(DecodeLeafBody(Varints({0, 0, 1, 1}) + "k" + Varints({count, 0})),
                  count == 1000 ? "ends too early" : "more than 1 MiB");
    ExpectRefused(DecodeLeafBody(Varints({0, 0, 1, count}) + "xx"),
                  count == 1000 ? "ends too early" : "key bytes");
  }
  // Eleven bytes, and more than 64 bits.
  ExpectRefused(DecodeLeafBody(std::string(1, '\0') + std::string(20, '\x80')), "64 bits");
  ExpectRefused(DecodeLeafBody(std::string(1, '\0') + std::string(9, '\xFF') + '\x02'), "64 bits");
  // 2^20 entries and one more, with room for them.
  ExpectRefused(DecodeLeafBody(Varints({0, 0, (1 << 20) + 1}) + std::string(5 << 20, '\0')),
                "number of entries");
  ExpectRefused(DecodeLeafBody(Varints({0, 0, 0})), "number of entries");
}

// Each path shares nearly all of the one before: two bytes could become 60,000.
TEST(OcdbtHostileTest, PathsAreNotAmplified) {
  const size_t files = 5000;
  std::string body = Varints({0, files});
  for (size_t i = 1; i < files; ++i) internal::AppendVarint(60'000, &body);
  internal::AppendVarint(60'000, &body);
  for (size_t i = 1; i < files; ++i) internal::AppendVarint(1, &body);
  body += std::string(files, '\0') + std::string(60'000 + files, 'p') + Varints({1, 0, 0, 0});
  ExpectRefused(DecodeLeafBody(body), "take too much room");
}

// Keys that do the same are not put together by the decoder, and a walk ends when its visitor does.
TEST(OcdbtHostileTest, KeysAreNotAmplified) {
  const size_t keys = 5000;
  std::string body = Varints({0, 0, keys});
  for (size_t i = 1; i < keys; ++i) internal::AppendVarint(60'000 + i - 1, &body);
  internal::AppendVarint(60'000, &body);
  for (size_t i = 1; i < keys; ++i) internal::AppendVarint(1, &body);
  body += std::string(60'000 + keys - 1, 'k') + std::string(2 * keys, '\0');
  EXPECT_TRUE(DecodeLeafBody(body).ok());
}

TEST(OcdbtHostileTest, LittleThatDecompressesToMuchIsRefused) {
  std::string bomb;
  ASSERT_TRUE(internal::FrameEncoder(true)
                  .Append(FrameMagic::kNode, std::string(64 << 20, '\0'), &bomb)
                  .ok());
  ASSERT_LT(bomb.size(), 10'000U);
  ExpectRefused(DecodeNode(bomb), StrCat("more than ", (1 << 20) + 1024 * bomb.size(), " bytes"));
  // One MiB may come from anything.
  std::string small;
  ASSERT_TRUE(internal::FrameEncoder(true)
                  .Append(FrameMagic::kNode,
                          Varints({0, 0, 1, 0, 1 << 20, 0}) + std::string(1 << 20, 'v'), &small)
                  .ok());
  EXPECT_TRUE(DecodeNode(small).ok()) << DecodeNode(small).ToString();
}

TEST(OcdbtHostileTest, FramesAreExactlyOneOfZstd) {
  const std::string_view zstd("\0\x01", 2);
  const std::string leaf = CompressedLeaf();
  const std::string stream = leaf.substr(14, leaf.size() - 18);
  EXPECT_TRUE(DecodeNode(Frame(FrameMagic::kNode, stream, zstd)).ok());
  ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, stream + stream, zstd)), "behind its zstd");
  ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, stream + "x", zstd)), "behind its zstd");
  ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, "", zstd)), "no zstd frame");
  ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, Hex("502a4d18 00000000"), zstd)),
                "no zstd frame");  // skippable
  for (size_t size = 4; size < stream.size(); ++size) {
    ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, stream.substr(0, size), zstd)), "zstd");
  }
}

TEST(OcdbtHostileTest, WhatIsNotReadIsSaidByName) {
  const std::string body = RealManifest().substr(14, RealManifest().size() - 18);
  std::string numbered = body;
  numbered[16] = 1;
  ExpectRefused(DecodeManifest(Frame(FrameMagic::kManifest, numbered)), "numbered manifests",
                StatusCode::kUnimplemented);
  ExpectRefused(DecodeNode(Frame(FrameMagic::kVersionNode, body)), "version tree node",
                StatusCode::kUnimplemented);
  ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, body, std::string_view("\x01\0", 2))),
                "of version 1", StatusCode::kUnimplemented);
  ExpectRefused(DecodeNode(Frame(FrameMagic::kNode, body, std::string_view("\0\x02", 2))),
                "of compression 2", StatusCode::kUnimplemented);
  std::string unknown = body;
  unknown[16] = 2;
  ExpectRefused(DecodeManifest(Frame(FrameMagic::kManifest, unknown)), "unknown kind");
  ExpectRefused(DecodeManifest(RealLeaf()), "wrong magic");
  ExpectRefused(DecodeNode(RealManifest()), "wrong magic");
  ExpectRefused(DecodeNode(RealLeaf(), 1), "height 0 where 1 is expected");
}

TEST(OcdbtHostileTest, LeavesAndInteriorNodesAreChecked) {
  const std::string value = Varints({0, 0});  // no length, inline: of one entry
  const std::string values = Varints({0, 0, 0, 0});
  const auto two_keys = [&values](const std::vector<uint64_t>& lengths, const std::string& keys) {
    return DecodeLeafBody(Varints({0, 0, 2}) + Varints(lengths) + keys + values);
  };
  EXPECT_TRUE(two_keys({1, 1, 1}, "ab").ok());
  EXPECT_TRUE(two_keys({0, 0, 1}, "a").ok());
  ExpectRefused(two_keys({0, 1, 1}, "ba"), "do not ascend");
  ExpectRefused(two_keys({1, 1, 0}, "a"), "do not ascend");
  ExpectRefused(two_keys({2, 1, 1}, "ab"), "shares more");
  ExpectRefused(two_keys({65535, 65535, 1}, std::string(65535, 'k') + "l"), "more than 65535");
  ExpectRefused(DecodeLeafBody(Varints({0, 0, 1, 1}) + "k" + Varints({0, 2})), "kind of value");
  ExpectRefused(DecodeLeafBody(Varints({0, 0, 1, 1}) + "k" + Varints({0, 1, 0, 0})),
                "file that is not there");
  ExpectRefused(DecodeLeafBody(Varints({0, 0, 1, 1}) + "k" + value + "x"), "behind its end");
  const auto file = [](const std::string& path) {
    return Varints({0, 1, path.size(), 0}) + path + Varints({1, 0, 5, 1, 0, 9});
  };
  EXPECT_TRUE(DecodeLeafBody(file("d/x")).ok());
  for (const char* path : {"", "/d", "../x", "d/../x", "d//x", "d/x.__lock"}) {
    ExpectRefused(DecodeLeafBody(file(path)), "OCDBT file name");
  }
  ExpectRefused(DecodeLeafBody(Varints({0, 1, 1, 2}) + "x" + Varints({1, 0, 5, 1, 0, 9})),
                "longer than its path");
  ExpectRefused(
      DecodeLeafBody(Varints({0, 2, 2, 2, 1, 1, 2}) + "abc" + Varints({1, 0, 5, 1, 0, 9})),
      "more than the bases");
  const auto range = [](uint64_t offset, uint64_t length) {
    return DecodeLeafBody(Varints({0, 1, 1, 0}) + "x" + Varints({1, 0, length, 1, 0, offset}));
  };
  EXPECT_TRUE(range((uint64_t{1} << 63) - 2, 1).ok());
  for (const uint64_t offset : {(uint64_t{1} << 63) - 1, uint64_t{1} << 63, ~uint64_t{0}}) {
    ExpectRefused(range(offset, 1), "beyond 2^63");
    ExpectRefused(range(1, offset), "beyond 2^63");
  }
  ExpectRefused(DecodeInteriorBody(Varints({1, 1, 1, 0}) + "x" + Varints({1, 1, 2}) + "k" +
                                   Varints({0, 0, 0, 0, 0, 0})),
                "more common bytes");
}

TEST(OcdbtHostileTest, ManifestsAreChecked) {
  const auto decode = [](uint64_t arity, const std::vector<uint64_t>& generations,
                         const std::vector<uint64_t>& times) {
    const size_t n = generations.size();
    std::string body = std::string(16, 'u') + Varints({0, 100, 100, arity, 0, 1, 1, 0}) + "x" +
                       Varints({n}) + Varints(generations) + std::string(4 * n, '\0') +
                       std::string(3 * n, '\0');
    for (const uint64_t time : times) {
      std::byte bytes[8];
      StoreLittle(bytes, time);
      body += AsText(bytes);
    }
    return DecodeManifest(Frame(FrameMagic::kManifest, body + Varints({0})));
  };
  EXPECT_TRUE(decode(4, {1, 9}, {1, 2}).ok());
  EXPECT_TRUE(decode(4, {uint64_t{1} << 60}, {~uint64_t{0}}).ok());
  EXPECT_TRUE(decode(5, {16, 17}, {1, 2}).ok());
  ExpectRefused(decode(4, {16, 17}, {1, 2}), "of two nodes");
  ExpectRefused(decode(4, {}, {}), "no version");
  ExpectRefused(decode(4, {0}, {1}), "generation 0");
  ExpectRefused(decode(4, {kHuge}, {1}), "generation");
  ExpectRefused(decode(4, {2, 2}, {1, 2}), "generations that do not ascend");
  ExpectRefused(decode(4, {2, 3}, {2, 2}), "commit times that do not ascend");
  ExpectRefused(decode(0, {1}, {1}), "arity");
  ExpectRefused(decode(17, {1}, {1}), "arity");
}

// An interior node of height 1 or more in the file "n" over children in it, each a key, how much of
// it is common, and a place.
struct ChildOf {
  std::string key;
  uint64_t common = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};
std::string Interior(uint8_t height, const std::vector<ChildOf>& children) {
  const size_t n = children.size();
  std::string body = Varints({height, 1, 1, 0}) + "n" + Varints({n}) + std::string(n - 1, '\0');
  for (const ChildOf& child : children) body += Varints({child.key.size()});
  for (const ChildOf& child : children) body += Varints({child.common});
  for (const ChildOf& child : children) body += child.key;
  body += std::string(n, '\0');
  for (const ChildOf& child : children) body += Varints({child.offset});
  for (const ChildOf& child : children) body += Varints({child.length});
  return Frame(FrameMagic::kNode, body + std::string(3 * n, '\0'));
}
std::string LeafOf(const std::string& key) {
  return Frame(FrameMagic::kNode, Varints({0, 0, 1, key.size()}) + key + Varints({0, 0}));
}
Status WalkTree(uint8_t height, const std::string& nodes, size_t root_at, Found* found) {
  const std::string manifest =
      Frame(FrameMagic::kManifest,
            std::string(16, 'u') + Varints({0, 100, 100, 4, 0, 1, 1, 0}) + "n" +
                Varints({1, 1, height, 0, root_at, nodes.size() - root_at, 0, 0, 0}) +
                std::string(8, '\0') + Varints({0}));
  const Files files = {{"n", nodes}};
  return WalkOcdbt(AsBytes(manifest), {}, ReadOf(files), CollectIn(found));
}

TEST(OcdbtHostileTest, TreesWhoseKeysAreOutOfPlaceAreRefused) {
  const auto walk = [](const std::string& a, const std::string& b, const ChildOf& first,
                       const ChildOf& second, Found* found) {
    const std::string leaves = LeafOf(a) + LeafOf(b);
    ChildOf one = first;
    ChildOf two = second;
    one.length = LeafOf(a).size();
    two.offset = one.length;
    two.length = LeafOf(b).size();
    return WalkTree(1, leaves + Interior(1, {one, two}), leaves.size(), found);
  };
  Found found;
  EXPECT_TRUE(walk("a", "b", {"a"}, {"b"}, &found).ok());
  EXPECT_EQ(found, (Found{{"a", ""}, {"b", ""}}));
  found.clear();
  EXPECT_TRUE(walk("", "z", {"a", 1}, {"b", 1}, &found).ok());
  EXPECT_EQ(found, (Found{{"a", ""}, {"bz", ""}}));
  ExpectRefused(walk("0", "b", {"a"}, {"b"}, &found), "n at 0: bad OCDBT tree: a key is less");
  ExpectRefused(walk("b", "b", {"a"}, {"b"}, &found), "not less than its parent's next");
  ExpectRefused(walk("a", "a", {"a"}, {"b"}, &found), "a key is less than its parent's");
  const std::string longest(65535, 'k');
  ExpectRefused(walk("k", "x", {longest, 65535}, {"l"}, &found), "too long");
}

TEST(OcdbtHostileTest, TreesThatAreNoTreesAreRefused) {
  Found found;
  // The same leaf twice: with more levels of this, few nodes would have any number of keys.
  const std::string leaf = LeafOf("");
  const std::string twice = Interior(1, {{"a", 1, 0, leaf.size()}, {"b", 1, 0, leaf.size()}});
  ExpectRefused(WalkTree(1, leaf + twice, leaf.size(), &found),
                "n at 0: bad OCDBT tree: a node is there twice");
  // A node that has itself below itself, as its height or lengths would have to be others.
  std::string self = Interior(1, {{"a", 0, 0, 0}});
  self = Interior(1, {{"a", 0, 0, self.size()}});
  ExpectRefused(WalkTree(1, self, 0, &found), "there twice");
  ExpectRefused(WalkTree(2, Interior(2, {{"a", 0, 1000, 50}}), 0, &found), "no such range",
                StatusCode::kNotFound);
  ExpectRefused(WalkTree(2, leaf + Interior(2, {{"a", 0, 0, leaf.size()}}), leaf.size(), &found),
                "height 0 where 1 is expected");
  ExpectRefused(WalkTree(65, leaf, 0, &found), "a tree of height 65");
  ExpectRefused(WalkTree(1, Interior(1, {{"a", 0, 0, uint64_t{1} << 40}}), 0, &found),
                "a node of 1099511627776 bytes");
}

}  // namespace
}  // namespace stepwell::format::orbax
