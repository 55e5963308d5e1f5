// SPDX-License-Identifier: Apache-2.0
#include "format/crc32c.h"

#include <gtest/gtest.h>

#include <array>

#include "format/endian.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

uint32_t TableCrc32c(ConstBytes bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const std::byte byte : bytes) {
    crc = kTable[(crc ^ std::to_integer<uint32_t>(byte)) & 0xFF] ^ crc >> 8;
  }
  return ~crc;
}

TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(AsBytes(std::string(32, '\0'))), 0x8A9136AAu);
}

TEST(Crc32cTest, EqualsTheTableDrivenOne) {
  Prng prng(1);
  for (size_t size = 0; size < 600; ++size) {
    const std::vector<std::byte> bytes = prng.Bytes(size + 7);
    const ConstBytes span = ConstBytes(bytes).subspan(size % 7, size);
    EXPECT_EQ(Crc32c(span), TableCrc32c(span)) << size;
  }
}

TEST(Crc32cTest, ExtendsAcrossAnyCut) {
  Prng prng(2);
  const std::vector<std::byte> bytes = prng.Bytes(1000);
  const uint32_t whole = Crc32c(bytes);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t head = Crc32c(ConstBytes(bytes).first(cut));
    EXPECT_EQ(ExtendCrc32c(head, ConstBytes(bytes).subspan(cut)), whole);
  }
}

// Why a record's checksum leaves the trailer out: with it, every intact chunk would have the same.
TEST(Crc32cTest, OverItsOwnTrailerIsAConstant) {
  Prng prng(3);
  for (size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{4096}}) {
    std::vector<std::byte> bytes = prng.Bytes(size + 4);
    StoreLittle(bytes.data() + size, Crc32c(ConstBytes(bytes).first(size)));
    EXPECT_EQ(Crc32c(bytes), 0x48674BC7u);
  }
}

}  // namespace
}  // namespace stepwell::format
