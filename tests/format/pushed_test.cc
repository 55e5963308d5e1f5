// SPDX-License-Identifier: Apache-2.0
// Lists and markers of pushed runs: there and back, and whatever the bytes are.
#include "format/pushed.h"

#include <gtest/gtest.h>

#include <functional>

#include "format/crc32c.h"
#include "format/endian.h"
#include "tests/format/support/examples.h"

namespace stepwell::format {
namespace {

TEST(PushedTest, ThereAndBack) {
  const PushedStep pushed = ExamplePushedStep();
  const std::string list = EncodePushedStep(pushed);
  const auto decoded = DecodePushedStep(AsBytes(list));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_TRUE(*decoded == pushed);
  const auto header = DecodePushedHeader(AsBytes(list).first(kPushedHeaderBytes));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->size_bytes(), list.size());
  const size_t head_end = kPushedHeaderBytes + header->head_bytes;
  const auto head = DecodePushedHead(AsBytes(list).first(head_end));
  ASSERT_TRUE(head.ok());
  EXPECT_TRUE(*head == static_cast<const PushedHead&>(pushed));
}

TEST(PushedTest, AMarkerIsNoList) {
  const PushedStep pushed = ExamplePushedStep();
  const std::string marker = EncodePushMarker(pushed.objects);
  const auto head = DecodePushedHead(AsBytes(marker));
  ASSERT_TRUE(head.ok()) << head.status().ToString();
  EXPECT_FALSE(head->step.has_value());
  EXPECT_EQ(head->objects, pushed.objects);
  EXPECT_EQ(DecodePushedStep(AsBytes(marker)).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(DecodePushedHead(AsBytes(EncodePushMarker({})))->objects.empty());
}

TEST(PushedTest, NamesOfObjects) {
  DataObject object;
  object.sha256[0] = 0x0a;
  object.sha256[31] = 0xf0;
  object.salt = 0x12;
  EXPECT_EQ(DataObjectName(object), "0a" + std::string(60, '0') + "f0-0000000000000012");
}

TEST(PushedTest, NoFlippedByteIsTaken) {
  const std::string list = EncodePushedStep(ExamplePushedStep());
  for (size_t i = 0; i < list.size(); ++i) {
    if (i >= 68 && i < kPushedHeaderBytes) continue;  // reserved
    std::string bad = list;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_EQ(DecodePushedStep(AsBytes(bad)).status().code(), StatusCode::kDataLoss) << i;
  }
  for (size_t size = 0; size < list.size(); ++size) {
    EXPECT_FALSE(DecodePushedStep(AsBytes(list).first(size)).ok()) << size;
  }
  EXPECT_FALSE(DecodePushedStep(AsBytes(list + '\0')).ok());
}

TEST(PushedTest, ANewerVersionSaysSo) {
  std::string list = EncodePushedStep(ExamplePushedStep());
  auto* at = reinterpret_cast<std::byte*>(list.data());
  StoreLittle(at + 8, kPushedVersion + 1);
  StoreLittle(at + 64, Crc32c({at, 64}));
  EXPECT_EQ(DecodePushedStep(AsBytes(list)).status().code(), StatusCode::kUnimplemented);
}

TEST(PushedTest, ASizeThatNoReaderTakesIsRefused) {
  for (const size_t part : {16U, 24U}) {
    std::string list = EncodePushedStep(ExamplePushedStep());
    auto* at = reinterpret_cast<std::byte*>(list.data());
    StoreLittle(at + part, kPushedPartBytesMax + 1);
    StoreLittle(at + 64, Crc32c({at, 64}));
    EXPECT_EQ(DecodePushedHeader(AsBytes(list)).status().code(), StatusCode::kDataLoss);
  }
}

TEST(PushedTest, ForgedNumbersAreRefused) {
  using Forge = std::function<void(PushedStep*)>;
  const auto array = [](PushedStep* step) -> LeafRecord& {
    for (LeafRecord& leaf : step->leaves) {
      if (!leaf.chunks.empty()) return leaf;
    }
    return step->leaves.front();
  };
  const std::vector<std::pair<const char*, Forge>> forgeries = {
      {"an object that is not named", [&](auto* s) { array(s).chunks[0].segment = 2; }},
      {"a base's, too", [&](auto* s) { array(s).chunks[2].bases[0].segment = uint64_t{1} << 63; }},
      {"beyond the end", [&](auto* s) { array(s).chunks[0].offset_bytes = uint64_t{2} << 20; }},
      {"far beyond it", [&](auto* s) { array(s).chunks[0].offset_bytes = uint64_t{1} << 63; }},
      {"wraps", [&](auto* s) { array(s).chunks[0].offset_bytes = UINT64_MAX - 10; }},
      {"a short object", [&](auto* s) { s->objects[1].size_bytes = 4096; }},
      {"an empty object", [&](auto* s) { s->objects[1].size_bytes = 0; }},
      {"a huge object", [&](auto* s) { s->objects[1].size_bytes = uint64_t{1} << 63; }},
      {"no hash", [&](auto* s) { array(s).chunks[0].hash = {}; }},
      {"a hash too few", [&](auto* s) { s->base_hashes.pop_back(); }},
      {"a hash too many",
       [&](auto* s) {
         s->base_hashes.push_back({1, 1});
       }},
      {"an unknown hash of a base", [&](auto* s) { s->base_hashes[0] = {}; }},
      {"a chunk too few",
       [&](auto* s) {
         array(s).chunks.pop_back();
         s->base_hashes.clear();
       }},
      {"goes on", [&](auto* s) { array(s).first_chunk = 1; }},
      {"twice", [&](auto* s) { s->leaves.push_back(s->leaves.back()); }},
      {"out of order", [&](auto* s) { std::swap(s->leaves[0], s->leaves[1]); }},
      {"a step's number", [&](auto* s) { s->step->step = uint64_t{1} << 63; }},
      {"tied to a store", [&](auto* s) { s->step->extents.emplace_back(); }},
  };
  for (const auto& [name, forge] : forgeries) {
    PushedStep step = ExamplePushedStep();
    forge(&step);
    const auto decoded = DecodePushedStep(AsBytes(EncodePushedStep(step)));
    EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss) << name;
  }
}

}  // namespace
}  // namespace stepwell::format
