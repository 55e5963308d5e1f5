// SPDX-License-Identifier: Apache-2.0
#include "format/codec.h"

#include <gtest/gtest.h>

#include <cstring>

#include "format/crc32c.h"
#include "format/endian.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

std::vector<std::byte> Encode(CodecId codec, size_t item_bytes, ConstBytes logical,
                              uint32_t* crc = nullptr) {
  std::vector<std::byte> out(PayloadBytesMax(codec, logical.size()));
  const Result<Payload> payload = EncodePayload(codec, item_bytes, logical, out);
  EXPECT_TRUE(payload.ok()) << payload.status().ToString();
  if (!payload.ok()) return {};
  out.resize(payload->size_bytes);
  if (crc != nullptr) *crc = payload->crc;
  return out;
}

// Random floats' bytes: some compressible, some not.
std::vector<std::byte> Sample(Prng& prng, size_t size) {
  std::vector<std::byte> bytes = prng.Bytes(size);
  if (prng.Below(2) == 0) {
    for (size_t i = 0; i < size; ++i) {
      if (i % 4 >= 2) bytes[i] = std::byte{0x3F};
    }
  }
  return bytes;
}

TEST(CodecTest, RoundTrips) {
  Prng prng(1);
  for (const CodecInfo& info : Codecs()) {
    if (info.needs_base) continue;  // delta_test.cc
    const CodecId codec = info.id;
    for (const size_t size : {0u, 1u, 3u, 15u, 16u, 17u, 127u, 128u, 129u, 1000u, 4096u, 65537u,
                              262144u, 1048576u, 3000001u}) {
      if (size == 0 && codec == CodecId::kBloscLz4) continue;
      for (const size_t item_bytes : {1u, 2u, 4u, 8u, 16u}) {
        const std::vector<std::byte> logical = Sample(prng, size);
        uint32_t crc = 0;
        const std::vector<std::byte> payload = Encode(codec, item_bytes, logical, &crc);
        ASSERT_TRUE(CheckPayload(payload, crc).ok());
        std::vector<std::byte> decoded(size);
        const Status status = DecodePayload(codec, payload, decoded);
        ASSERT_TRUE(status.ok()) << status.ToString();
        ASSERT_EQ(decoded, logical);
        if (size > 70000) break;  // one type size is enough for the slow ones
      }
    }
  }
}

// Readers take a longer one for damage.
TEST(CodecTest, NoPayloadIsLongerThanItsBound) {
  Prng prng(7);
  std::vector<std::byte> out(2 << 20);
  for (const CodecInfo& info : Codecs()) {
    if (info.needs_base) continue;
    const CodecId codec = info.id;
    for (const size_t size : {100u, 4097u, 262145u, 775590u, 1048576u}) {
      for (const size_t item_bytes : {1u, 2u, 4u, 16u}) {
        const std::vector<std::byte> logical = prng.Bytes(size);
        const Result<Payload> payload = EncodePayload(codec, item_bytes, logical, out);
        ASSERT_TRUE(payload.ok()) << payload.status().ToString();
        EXPECT_LE(payload->size_bytes, PayloadBytesMax(codec, size)) << size << " " << item_bytes;
      }
    }
  }
}

TEST(CodecTest, RawInPlaceOnlyAppendsTheChecksum) {
  Prng prng(2);
  std::vector<std::byte> buffer = prng.Bytes(100000);
  const std::vector<std::byte> logical(buffer.begin(), buffer.end() - kCrcBytes);
  const Result<Payload> payload =
      EncodePayload(CodecId::kRaw, 4, ConstBytes(buffer).first(logical.size()), buffer);
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(buffer, Encode(CodecId::kRaw, 4, logical));
}

TEST(CodecTest, BadArgumentsAreRefused) {
  std::vector<std::byte> out(100);
  EXPECT_EQ(EncodePayload(CodecId::kBloscLz4, 4, {}, out).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodePayload(CodecId::kRaw, 4, ConstBytes(out), out).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      EncodePayload(static_cast<CodecId>(9), 4, ConstBytes(out).first(1), out).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodePayload(static_cast<CodecId>(9), out, out).code(), StatusCode::kDataLoss);
  EXPECT_EQ(DecodePayload(CodecId::kRaw, ConstBytes(out).first(3), out).code(),
            StatusCode::kDataLoss);
}

// A read that brings another intact chunk (stale or misdirected) must not pass: each payload's own
// trailer is right, so only the record's checksum can tell.
TEST(CodecTest, SwappedChunksAreFound) {
  Prng prng(3);
  for (const CodecInfo& info : Codecs()) {
    if (info.needs_base) continue;
    const CodecId codec = info.id;
    uint32_t crc_a = 0;
    uint32_t crc_b = 0;
    const std::vector<std::byte> a = Encode(codec, 4, prng.Bytes(4096), &crc_a);
    const std::vector<std::byte> b = Encode(codec, 4, prng.Bytes(4096), &crc_b);
    EXPECT_TRUE(CheckPayload(a, crc_a).ok());
    EXPECT_EQ(CheckPayload(a, crc_b).code(), StatusCode::kDataLoss);
    EXPECT_EQ(CheckPayload(b, crc_a).code(), StatusCode::kDataLoss);
    EXPECT_EQ(Crc32c(a), Crc32c(b)) << "over the trailer the CRC says nothing";
  }
}

TEST(CodecTest, EverySingleBitFlipIsFound) {
  Prng prng(4);
  uint32_t crc = 0;
  std::vector<std::byte> payload = Encode(CodecId::kRaw, 4, prng.Bytes(256), &crc);
  for (size_t bit = 0; bit < payload.size() * 8; ++bit) {
    payload[bit / 8] ^= std::byte{1} << (bit % 8);
    const Status status = CheckPayload(payload, crc);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find("expected 0x"), std::string::npos) << status.message();
    payload[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

// Bytes with a right CRC but made by an enemy: never a crash, never more than out.size().
TEST(CodecTest, MutatedStreamsNeverCrash) {
  Prng prng(5);
  for (const CodecInfo& info : Codecs()) {
    if (info.decode == nullptr || info.needs_base) continue;
    const CodecId codec = info.id;
    std::vector<std::byte> logical = prng.Bytes(3000);
    std::fill(logical.begin(), logical.begin() + 2000, std::byte{7});
    const std::vector<std::byte> payload = Encode(codec, 4, logical);
    std::vector<std::byte> out(logical.size());
    for (size_t length = 0; length < payload.size(); ++length) {
      const Status status = DecodePayload(codec, ConstBytes(payload).first(length), out);
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length;
    }
    for (int i = 0; i < 20000; ++i) {
      std::vector<std::byte> bad = payload;
      for (uint64_t k = 1 + prng.Below(3); k > 0; --k) {
        const size_t at = prng.Below(3) == 0 ? prng.Below(24) : prng.Below(bad.size());
        bad[at] = static_cast<std::byte>(prng.Below(256));
      }
      const Status status = DecodePayload(codec, bad, out);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss);
    }
    for (const size_t size : {size_t{0}, size_t{1}, logical.size() - 1, logical.size() + 1}) {
      std::vector<std::byte> other(size);
      EXPECT_EQ(DecodePayload(codec, payload, other).code(), StatusCode::kDataLoss) << size;
    }
    std::vector<std::byte> longer = payload;
    longer.insert(longer.end() - kCrcBytes, std::byte{0});
    EXPECT_EQ(DecodePayload(codec, longer, out).code(), StatusCode::kDataLoss);
  }
}

TEST(CodecTest, OtherBloscStreamsAreRefused) {
  const std::vector<std::byte> logical(1000, std::byte{1});
  const std::vector<std::byte> payload = Encode(CodecId::kBloscLz4, 4, logical);
  std::vector<std::byte> out(logical.size());
  const auto refused = [&](size_t at, int value, const char* why) {
    std::vector<std::byte> bad = payload;
    bad[at] = static_cast<std::byte>(value);
    const Status status = DecodePayload(CodecId::kBloscLz4, bad, out);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  refused(0, 5, "version 5");         // C-Blosc 2
  refused(2, 0x04, "inner codec 0");  // BloscLZ
  refused(2, 0x84, "inner codec 4");  // Zstandard
  refused(2, 0x2C, "reserved flag");
  refused(3, 0, "type size 0");
  refused(4, 0xFF, "expected 1000");
}

TEST(CodecTest, Lz4SkippableAndConcatenatedFramesAreRefused) {
  const std::vector<std::byte> logical(1000, std::byte{1});
  const std::vector<std::byte> payload = Encode(CodecId::kLz4Frame, 1, logical);
  std::vector<std::byte> out(logical.size());
  std::vector<std::byte> twice(payload.begin(), payload.end() - kCrcBytes);
  twice.insert(twice.end(), payload.begin(), payload.end());
  EXPECT_EQ(DecodePayload(CodecId::kLz4Frame, twice, out).message(),
            "bad LZ4 frame: bytes behind its end");
  std::vector<std::byte> skippable(12, std::byte{0});
  StoreLittle(skippable.data(), uint32_t{0x184D2A50});
  EXPECT_EQ(DecodePayload(CodecId::kLz4Frame, skippable, {}).code(), StatusCode::kDataLoss);
}

TEST(CodecTest, SampleRatioTellsCompressibleFromNot) {
  Prng prng(6);
  EXPECT_EQ(SampleRatio({}, 4), 1.0);
  EXPECT_GE(SampleRatio(prng.Bytes(65536), 4), 0.9);
  EXPECT_LT(SampleRatio(prng.Bytes(65536), 4), 1.01);
  EXPECT_GT(SampleRatio(std::vector<std::byte>(65536), 4), 10);
}

}  // namespace
}  // namespace stepwell::format
