// SPDX-License-Identifier: Apache-2.0
// Reads back what the builder and TensorStore wrote; reads ranges of keys.
#include "format/orbax/ocdbt_read.h"

#include <gtest/gtest.h>

#include "tests/format/support/ocdbt_bytes.h"
#include "tests/prng.h"

namespace stepwell::format::orbax {
namespace {

using internal::FrameMagic;

TEST(OcdbtReadTest, AManifestOfTensorStore) {
  const auto manifest = DecodeOcdbtManifest(AsBytes(RealManifest()));
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  const OcdbtManifest& m = manifest.value();
  EXPECT_EQ(m.uuid[15], std::byte{15});
  EXPECT_EQ(m.max_inline_value_bytes, 8U);
  EXPECT_EQ(m.max_decoded_node_bytes, 8388608U);
  EXPECT_EQ(m.version_tree_arity_log2, 4);
  EXPECT_FALSE(m.zstd_level.has_value());
  EXPECT_EQ(m.generation, 2U);
  EXPECT_EQ(m.commit_time_ns, 0x18e9ff792d4611ebU);
  EXPECT_TRUE(m.has_keys);
  EXPECT_EQ(m.root_file.path, kRealFile);
  EXPECT_EQ(m.root_file.base, "");
  EXPECT_EQ(m.root_offset_bytes, 16U);
  EXPECT_EQ(m.root_length_bytes, 81U);
  EXPECT_EQ(m.root_height, 0);
  EXPECT_EQ(m.key_count, 3U);
  EXPECT_EQ(m.tree_bytes, 81U);
  EXPECT_EQ(m.indirect_bytes, 16U);
}

TEST(OcdbtReadTest, ADatabaseOfTensorStore) {
  const Files files = {{kRealFile, kRealValue + RealLeaf()}};
  Found found;
  const Status status = WalkOcdbt(AsBytes(RealManifest()), {}, ReadOf(files), CollectIn(&found));
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(found,
            (Found{{"a/0", "HELLO"}, {"a/1", StrCat("@", kRealFile, " 0 16")}, {"ab", "!"}}));
}

std::map<std::string, std::string> RandomDatabase(uint64_t seed, size_t count) {
  Prng prng(seed);
  const std::vector<std::string> parts = {
      "",     "a",        "layers.0.kernel/",   "c/0/",
      "\xFF", "\xFF\xFF", std::string(1, '\0'), std::string(200, 'x')};
  std::map<std::string, std::string> database;
  if (count > 0) database[""] = "the empty key";
  while (database.size() < count) {
    std::string key;
    for (uint64_t i = prng.Below(4); i > 0; --i) key += parts[prng.Below(parts.size())];
    key += std::to_string(prng.Below(2 * count));
    database[key] = prng.Below(3) == 0 ? std::string(prng.Below(40), 'v')
                                       : StrCat("@d/file ", prng.Below(5), " ", prng.Next() >> 2,
                                                " ", prng.Below(1 << 20));
  }
  return database;
}

struct Written {
  std::string manifest;
  Files files;
  OcdbtImage image;
};

Written Write(const std::map<std::string, std::string>& database, size_t node_entries_max,
              bool compress) {
  OcdbtOptions options;
  options.nodes_path = "d/nodes";
  options.node_entries_max = node_entries_max;
  options.compress = compress;
  OcdbtBuilder builder = OcdbtBuilder::Create(options).value();
  // Not in the order of their names.
  for (const int file : {3, 1, 4, 0, 2}) EXPECT_TRUE(builder.AddFile(StrCat("d/file ", file)).ok());
  for (const auto& [key, value] : database) {
    Status status;
    if (value[0] == '@') {
      const size_t offset_at = value.find(' ', value.find(' ') + 1) + 1;
      size_t used = 0;
      const uint64_t offset = std::stoull(value.substr(offset_at), &used);
      status = builder.AddRange(key, *builder.AddFile(value.substr(1, offset_at - 2)), offset,
                                std::stoull(value.substr(offset_at + used)));
    } else {
      status = builder.AddInline(key, value);
    }
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  OcdbtImage image = builder.Finish().value();
  return {image.manifest, {{"d/nodes", image.nodes}}, image};
}

Found Walk(const Written& written, const OcdbtKeyRange& range, int* reads = nullptr) {
  Found found;
  const Status status =
      WalkOcdbt(AsBytes(written.manifest), range, ReadOf(written.files, reads), CollectIn(&found));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return found;
}

TEST(OcdbtReadTest, WhatIsWrittenComesBack) {
  for (const auto& [count, entries_max] : std::vector<std::pair<size_t, size_t>>{
           {0, 2}, {1, 2}, {2, 2}, {3, 2}, {200, 2}, {5000, 16}, {5000, 2000}, {300'000, 2000}}) {
    const auto database = RandomDatabase(count, count);
    for (const bool compress : {false, true}) {
      if (compress && count == 300'000) continue;
      const Written written = Write(database, entries_max, compress);
      int reads = 0;
      const Found found = Walk(written, {}, &reads);
      EXPECT_TRUE(found == Found(database.begin(), database.end())) << count << " " << entries_max;
      EXPECT_EQ(static_cast<uint64_t>(reads), written.image.node_count);
      const auto manifest = DecodeOcdbtManifest(AsBytes(written.manifest));
      ASSERT_TRUE(manifest.ok());
      EXPECT_EQ(manifest.value().has_keys, count > 0);
      EXPECT_EQ(manifest.value().key_count, count);
      EXPECT_EQ(manifest.value().tree_bytes, written.image.nodes.size());
      EXPECT_EQ(manifest.value().root_height, written.image.height);
      EXPECT_EQ(manifest.value().indirect_bytes, written.image.indirect_bytes);
    }
  }
}

TEST(OcdbtReadTest, RangesOfKeysReadOnlyTheNodesThatTheyNeed) {
  const auto database = RandomDatabase(3, 3000);
  const Written written = Write(database, 10, true);
  ASSERT_EQ(written.image.height, 3);
  const Found all(database.begin(), database.end());
  Prng prng(4);
  for (int i = 0; i < 300; ++i) {
    OcdbtKeyRange range{all[prng.Below(all.size())].first, all[prng.Below(all.size())].first};
    if (i % 3 == 0) range.begin += '\0';
    if (i % 5 == 0) range.end = range.begin;
    if (i % 7 == 0) range.end.reset();
    Found expected;
    for (const auto& entry : all) {
      if (entry.first >= range.begin && (!range.end.has_value() || entry.first < *range.end)) {
        expected.push_back(entry);
      }
    }
    int reads = 0;
    EXPECT_EQ(Walk(written, range, &reads), expected);
    // Full nodes within; at both ends one of each level more.
    EXPECT_LE(reads, 8 + static_cast<int>(expected.size()) / 4);
  }
  int reads = 0;
  EXPECT_EQ(Walk(written, {all[777].first, all[777].first + '\0'}, &reads), Found{all[777]});
  EXPECT_EQ(reads, 4);
}

TEST(OcdbtReadTest, KeysWithAPrefix) {
  EXPECT_EQ(OcdbtKeysWithPrefix("ab").end, "ac");
  EXPECT_EQ(OcdbtKeysWithPrefix("a\xFF\xFF").end, "b");
  EXPECT_EQ(OcdbtKeysWithPrefix("\x7F").end, "\x80");
  EXPECT_EQ(OcdbtKeysWithPrefix("\xFF\xFF").end, std::nullopt);
  EXPECT_EQ(OcdbtKeysWithPrefix("").end, std::nullopt);
  const auto database = RandomDatabase(5, 3000);
  const Written written = Write(database, 50, true);
  for (const std::string prefix :
       {"", "a", "layers", "\xFF", "\xFF\xFF", "zz", "layers.0.kernel/1"}) {
    Found expected;
    for (const auto& entry : database) {
      if (entry.first.compare(0, prefix.size(), prefix) == 0) expected.emplace_back(entry);
    }
    EXPECT_EQ(Walk(written, OcdbtKeysWithPrefix(prefix)), expected) << prefix;
  }
}

TEST(OcdbtReadTest, TheFirstErrorOfAVisitorOrOfAReadEndsTheWalk) {
  const Written written = Write(RandomDatabase(6, 100), 10, false);
  int visits = 0;
  const auto stop = [&visits](std::string_view, const OcdbtValue&) {
    return ++visits == 42 ? AbortedError("enough") : OkStatus();
  };
  Status status = WalkOcdbt(AsBytes(written.manifest), {}, ReadOf(written.files), stop);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(status.message(), "enough");
  EXPECT_EQ(visits, 42);
  Found found;
  status = WalkOcdbt(AsBytes(written.manifest), {}, ReadOf({}), CollectIn(&found));
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message().rfind("d/nodes at ", 0), 0U) << status.message();
}

// A leaf's table of files as Orbax's root has it: two files that share 0x13 bytes, of which 0x10
// are the base.
TEST(OcdbtReadTest, FilesWithBases) {
  const std::string first = "ocdbt.process_0/d/a0fc00000000000000000000000000aa";
  const std::string second = "ocdbt.process_0/d/a1a5000000000000000000000000000e";
  const std::string body = Varints({0, 2, 0x13, 0x32, 0x1F, 0x10, 0x10}) + first +
                           second.substr(0x13) + Varints({1, 1}) + "k" + Varints({5, 1, 1, 9});
  const auto node = DecodeOcdbtNode(AsBytes(Frame(FrameMagic::kNode, body)), 0, "x/");
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  ASSERT_EQ(node.value().files.size(), 2U);
  EXPECT_EQ(node.value().files[0].path, "x/" + first);
  EXPECT_EQ(node.value().files[1].path, "x/" + second);
  EXPECT_EQ(node.value().files[1].base, "x/ocdbt.process_0/");
  ASSERT_EQ(node.value().entries.size(), 1U);
  const OcdbtEntry& entry = node.value().entries[0];
  EXPECT_EQ(entry.rest, "k");
  EXPECT_FALSE(entry.is_inline);
  EXPECT_EQ(entry.file, 1U);
  EXPECT_EQ(entry.offset_bytes, 9U);
  EXPECT_EQ(entry.length_bytes, 5U);
}

// Bases add up on the way down: x/ of the manifest, y/ of the root, z/ of the leaf.
TEST(OcdbtReadTest, BasesAreTransitive) {
  const std::string leaf =
      Frame(FrameMagic::kNode,
            Varints({0, 1, 4, 2}) + "z/vv" + Varints({1, 1}) + "k" + Varints({5, 1, 0, 9}));
  const std::string root =
      Frame(FrameMagic::kNode, Varints({1, 1, 3, 2}) + "y/l" + Varints({1, 1, 0}) + "k" +
                                   Varints({0, 2, leaf.size(), 1, leaf.size(), 5}));
  const std::string config = std::string(16, 'u') + Varints({0, 100, 100, 4, 0});
  const std::string manifest =
      Frame(FrameMagic::kManifest, config + Varints({1, 3, 2}) + "x/r" +
                                       Varints({1, 1, 1, 0, 0, root.size(), 1, 99, 5}) +
                                       std::string(8, '\0') + Varints({0}));
  const Files files = {{"x/r", root}, {"x/y/l", "ab" + leaf}};
  Found found;
  const Status status = WalkOcdbt(AsBytes(manifest), {}, ReadOf(files), CollectIn(&found));
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(found, (Found{{"k", "@x/y/z/vv 9 5"}}));
}

}  // namespace
}  // namespace stepwell::format::orbax
