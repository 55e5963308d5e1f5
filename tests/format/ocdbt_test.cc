// SPDX-License-Identifier: Apache-2.0
#include "format/orbax/ocdbt.h"

#include <gtest/gtest.h>

#include "tests/format/support/ocdbt_bytes.h"

namespace stepwell::format::orbax {
namespace {

OcdbtOptions RawOptions() {
  OcdbtOptions options;
  for (size_t i = 0; i < options.uuid.size(); ++i) options.uuid[i] = static_cast<std::byte>(i);
  options.commit_time_ns = 5;
  options.nodes_path = kRealFile;
  options.compress = false;
  return options;
}

TEST(OcdbtTest, ALeafIsByteForByteThatOfTensorStore) {
  auto builder = OcdbtBuilder::Create(RawOptions());
  ASSERT_TRUE(builder.ok());
  const auto file = builder->AddFile(kRealFile);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(builder->AddInline("a/0", "HELLO").ok());
  ASSERT_TRUE(builder->AddRange("a/1", *file, 0, 16).ok());
  ASSERT_TRUE(builder->AddInline("ab", "!").ok());
  const auto image = builder->Finish();
  ASSERT_TRUE(image.ok()) << image.status().ToString();
  EXPECT_EQ(image.value().nodes, RealLeaf());
  EXPECT_EQ(image.value().key_count, 3U);
  EXPECT_EQ(image.value().node_count, 1U);
  EXPECT_EQ(image.value().tree_bytes, 81U);
  EXPECT_EQ(image.value().indirect_bytes, 16U);
  EXPECT_EQ(image.value().height, 0);
}

TEST(OcdbtTest, TheManifest) {
  auto builder = OcdbtBuilder::Create(RawOptions());
  ASSERT_TRUE(builder.ok());
  ASSERT_TRUE(builder->AddInline("a", "").ok());
  const auto image = builder->Finish();
  ASSERT_TRUE(image.ok());
  const std::string expected = Hex("000102030405060708090a0b0c0d0e0f 00 8008 80c2d72f 04") +
                               Hex("01 00000000 01 22 00") + kRealFile +
                               Hex("01 01 00 00 00 19 01 19 00 0500000000000000 00");
  ASSERT_EQ(image.value().nodes.size(), 0x19U);
  const std::string& manifest = image.value().manifest;
  EXPECT_EQ(manifest.substr(0, 4), Hex("0cdb3a2a"));
  EXPECT_EQ(static_cast<size_t>(manifest[4]), manifest.size());
  EXPECT_EQ(manifest.substr(14, manifest.size() - 18), expected);
}

// Compares an interior node over leaves {layer1/a, b}, {layer2/a, b} with the one that TensorStore
// wrote.
TEST(OcdbtTest, AnInteriorNodeIsByteForByteThatOfTensorStore) {
  OcdbtOptions options = RawOptions();
  options.node_entries_max = 2;
  auto builder = OcdbtBuilder::Create(options);
  ASSERT_TRUE(builder.ok());
  for (const char* key : {"layer1/a", "layer1/b", "layer2/a", "layer2/b"}) {
    // Values of a length that gives leaves of 38 bytes.
    ASSERT_TRUE(builder->AddInline(key, key + 4).ok());
  }
  const auto image = builder->Finish();
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image.value().height, 1);
  EXPECT_EQ(image.value().node_count, 3U);
  const std::string& nodes = image.value().nodes;
  // A leaf stores the ends of its keys: a, b.
  EXPECT_EQ(nodes.substr(14, 38 - 18), Hex("00 00 02 00 0101 6162 0404 0000") + "r1/ar1/b");
  const std::string body = Hex("01 01 22 00") + kRealFile + Hex("02 05 0803 0707") + "layer1/a2/a" +
                           Hex("0000 0026 2626 0202 2626 0000");
  EXPECT_EQ(nodes.substr(2 * 38 + 14, body.size()), body);
  EXPECT_EQ(nodes.size(), 2 * 38 + 18 + body.size());
}

TEST(OcdbtTest, NoKeys) {
  auto builder = OcdbtBuilder::Create(RawOptions());
  ASSERT_TRUE(builder.ok());
  const auto image = builder->Finish();
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image.value().nodes, "");
  EXPECT_EQ(image.value().node_count, 0U);
  const std::string& manifest = image.value().manifest;
  const size_t table_at = 14 + 16 + 13;
  EXPECT_EQ(manifest.substr(table_at, manifest.size() - table_at - 4),
            Hex("01 00 00 01 01 00 00 ffffffffffffffffff01 ffffffffffffffffff01 00 00 00") +
                Hex("0500000000000000 00"));
  EXPECT_EQ(builder->Finish().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(builder->AddInline("a", "").code(), StatusCode::kFailedPrecondition);
}

TEST(OcdbtTest, MistakesOfTheCallerAreNamedAndChangeNothing) {
  auto builder = OcdbtBuilder::Create(RawOptions());
  ASSERT_TRUE(builder.ok());
  const auto file = builder->AddFile(kRealFile);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*builder->AddFile(kRealFile), *file);
  ASSERT_TRUE(builder->AddInline("a/0", "HELLO").ok());
  ASSERT_TRUE(builder->AddRange("a/1", *file, 0, 16).ok());
  const auto refused = [](const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused(builder->AddInline("a/1", ""), "\"a/1\": is there twice");
  refused(builder->AddRange("a", *file, 0, 1), "\"a\": comes after \"a/1\"");
  refused(builder->AddInline(std::string(65536, 'z'), ""), "longer than 65535");
  refused(builder->AddInline("b", std::string((1 << 20) + 1, 'z')), "too long to be inline");
  refused(builder->AddRange("b", 7, 0, 1), "no file 7");
  refused(builder->AddRange("b", *file, 1, (uint64_t{1} << 63) - 1), "beyond 2^63");
  refused(builder->AddRange("b", *file, ~uint64_t{0}, 1), "beyond 2^63");
  ASSERT_TRUE(builder->AddInline("ab", "!").ok());
  const auto image = builder->Finish();
  ASSERT_TRUE(image.ok());
  EXPECT_EQ(image.value().nodes, RealLeaf());
}

TEST(OcdbtTest, NamesThatTensorStoreDoesNotOpenAreRefused) {
  for (const char* path : {"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/.", "./a",
                           "a.__lock", ".__lock", "a.__lock/b"}) {
    EXPECT_EQ(CheckOcdbtPath(path).code(), StatusCode::kInvalidArgument) << path;
  }
  EXPECT_FALSE(CheckOcdbtPath(std::string_view("a\0b", 3)).ok());
  EXPECT_FALSE(CheckOcdbtPath(std::string(65536, 'a')).ok());
  for (const char* path :
       {"a", "d/x", "...", "a/..b", ".a/b", "a b/\xff", "__lock", "a.__lock.b"}) {
    EXPECT_TRUE(CheckOcdbtPath(path).ok()) << path;
  }
  OcdbtOptions options = RawOptions();
  options.nodes_path = "d/../x";
  EXPECT_FALSE(OcdbtBuilder::Create(options).ok());
  options = RawOptions();
  options.node_entries_max = 1;
  EXPECT_FALSE(OcdbtBuilder::Create(options).ok());
  EXPECT_FALSE(OcdbtBuilder::Create(RawOptions())->AddFile("/etc/passwd").ok());
}

TEST(OcdbtTest, NodesMayBeTakenInBetween) {
  OcdbtOptions options = RawOptions();
  options.node_entries_max = 3;
  auto whole = OcdbtBuilder::Create(options);
  auto parts = OcdbtBuilder::Create(options);
  ASSERT_TRUE(whole.ok() && parts.ok());
  std::string taken;
  for (int i = 100; i < 200; ++i) {
    ASSERT_TRUE(whole->AddInline(std::to_string(i), "v").ok());
    ASSERT_TRUE(parts->AddInline(std::to_string(i), "v").ok());
    taken += parts->TakeNodes();
  }
  EXPECT_GT(taken.size(), 500U);
  const auto a = whole->Finish();
  const auto b = parts->Finish();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a.value().manifest, b.value().manifest);
  EXPECT_EQ(a.value().nodes, taken + b.value().nodes);
  EXPECT_EQ(a.value().tree_bytes, a.value().nodes.size());
  EXPECT_EQ(a.value().height, 4);  // 34 leaves, 12, 4, 2, 1
}

}  // namespace
}  // namespace stepwell::format::orbax
