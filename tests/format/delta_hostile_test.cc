// SPDX-License-Identifier: Apache-2.0
// Deltas that are cut short, changed or forged: kDataLoss or other bytes, never more. A payload's
// CRC finds such bytes first; here the decoder alone must stand them.
#include <gtest/gtest.h>

#include <algorithm>

#include "format/codec.h"
#include "format/codec_delta.h"
#include "format/endian.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

using Bytes = std::vector<std::byte>;

struct Example {
  DeltaType type;
  Bytes base;
  Bytes payload;
};

// A small delta for every type and method, of a chunk with bytes behind its last element.
std::vector<Example> Examples() {
  Prng prng(1);
  std::vector<Example> examples;
  for (const uint8_t item_bytes : {uint8_t{1}, uint8_t{2}, uint8_t{4}, uint8_t{8}}) {
    for (const uint64_t changed_percent : {0u, 5u, 50u, 100u}) {
      Example example = {{item_bytes, item_bytes > 1}, prng.Bytes(203 * item_bytes), {}};
      example.base.resize(example.base.size() + item_bytes - 1, std::byte{9});
      Bytes now = example.base;
      for (size_t at = 0; at + item_bytes <= now.size(); at += item_bytes) {
        if (prng.Below(100) < changed_percent) now[at] ^= static_cast<std::byte>(1 + prng.Below(3));
      }
      example.payload.resize(PayloadBytesMax(CodecId::kDelta, now.size()));
      const Result<Payload> payload = EncodeDelta(example.type, example.base, now, example.payload);
      EXPECT_TRUE(payload.ok() && payload->size_bytes > 0);
      example.payload.resize(payload.ok() ? payload->size_bytes : 0);
      examples.push_back(std::move(example));
    }
  }
  return examples;
}

Status Decode(const Example& example, ConstBytes payload, Bytes* out) {
  *out = example.base;
  return DecodePayload(CodecId::kDelta, payload, *out);
}

TEST(DeltaHostileTest, EveryTruncationAndEveryLongerOneFails) {
  for (const Example& example : Examples()) {
    Bytes out;
    ASSERT_TRUE(Decode(example, example.payload, &out).ok());
    for (size_t size = 0; size < example.payload.size(); ++size) {
      EXPECT_EQ(Decode(example, ConstBytes(example.payload).first(size), &out).code(),
                StatusCode::kDataLoss)
          << size;
    }
    Bytes longer = example.payload;
    longer.push_back(std::byte{0});
    EXPECT_EQ(Decode(example, longer, &out).code(), StatusCode::kDataLoss);
  }
}

TEST(DeltaHostileTest, ChunksOfAnotherLengthAreRefused) {
  for (const Example& example : Examples()) {
    for (const size_t size :
         {size_t{0}, size_t{1}, example.base.size() - example.type.item_bytes,
          example.base.size() + example.type.item_bytes, 2 * example.base.size()}) {
      Bytes out(size);
      EXPECT_EQ(DecodePayload(CodecId::kDelta, example.payload, out).code(), StatusCode::kDataLoss);
    }
  }
}

TEST(DeltaHostileTest, ChangedBytesNeverCrash) {
  Prng prng(2);
  size_t refused = 0;
  for (const Example& example : Examples()) {
    Bytes out;
    for (size_t at = 0; at + kCrcBytes < example.payload.size(); ++at) {
      for (const int flipped : {0x01, 0x80, 0xFF, static_cast<int>(1 + prng.Below(254))}) {
        Bytes bad = example.payload;
        bad[at] ^= static_cast<std::byte>(flipped);
        const Status status = Decode(example, bad, &out);
        EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss) << status.ToString();
        refused += status.ok() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(refused, 1000u);
}

TEST(DeltaHostileTest, RandomStreamsNeverCrash) {
  Prng prng(3);
  for (int i = 0; i < 50000; ++i) {
    Bytes payload = prng.Bytes(prng.Below(100));
    // Plausible beginnings get further.
    const uint8_t head[] = {static_cast<uint8_t>(1 << prng.Below(4)),
                            static_cast<uint8_t>(prng.Below(2)),
                            static_cast<uint8_t>(prng.Below(3)),
                            static_cast<uint8_t>(2 << prng.Below(3)),
                            static_cast<uint8_t>(1 + prng.Below(64)),
                            0,
                            0,
                            0,
                            static_cast<uint8_t>(prng.Below(32)),
                            0,
                            0,
                            0};
    std::copy_n(reinterpret_cast<const std::byte*>(head), std::min(payload.size(), sizeof(head)),
                payload.begin());
    Bytes out(prng.Below(1000));
    const Status status = DecodePayload(CodecId::kDelta, payload, out);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss) << status.ToString();
  }
}

// Builds streams by hand, field after field.
class Stream {
 public:
  Stream(uint8_t item_bytes, uint8_t sign_magnitude) { Byte(item_bytes).Byte(sign_magnitude); }
  Stream& Byte(int value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  Stream& Number(uint32_t value) {
    bytes_.resize(bytes_.size() + sizeof(value));
    StoreLittle(bytes_.data() + bytes_.size() - sizeof(value), value);
    return *this;
  }
  Stream& Span(delta::Method method, int field_bits, uint32_t items, uint32_t changed) {
    return Byte(static_cast<int>(method)).Byte(field_bits).Number(items).Number(changed);
  }
  // Returns the message of the error, or "" for success.
  std::string DecodeTo(size_t size) const {
    Bytes payload = bytes_;
    payload.resize(payload.size() + kCrcBytes);
    Bytes out(size);
    const Status status = DecodePayload(CodecId::kDelta, payload, out);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss);
    return std::string(status.message());
  }

 private:
  Bytes bytes_;
};

TEST(DeltaHostileTest, ForgedStreamsAreRefused) {
  using delta::Method;
  const auto gaps = [](uint32_t items, uint32_t changed) {
    return Stream(1, 0).Span(Method::kGaps, 0, items, changed);
  };
  // One change behind two elements, as it should be.
  EXPECT_EQ(gaps(4, 1).Number(1).Byte(0).Byte(2).Byte(0).Byte(5).DecodeTo(4), "");
  EXPECT_EQ(Stream(3, 0).DecodeTo(0), "bad delta: items of 3 bytes");
  EXPECT_EQ(Stream(2, 2).DecodeTo(0), "bad delta: sign 2");
  EXPECT_EQ(Stream(1, 0).Span(Method{3}, 0, 4, 0).DecodeTo(4), "bad delta: method 3");
  EXPECT_EQ(Stream(1, 0).Span(Method::kGaps, 3, 4, 0).DecodeTo(4), "bad delta: fields of 3 bits");
  EXPECT_EQ(gaps(0, 0).DecodeTo(4), "bad delta: a span of 0 elements, 4 are left");
  EXPECT_EQ(gaps(5, 0).DecodeTo(4), "bad delta: a span of 5 elements, 4 are left");
  const auto too_many = static_cast<uint32_t>(delta::kSpanItemsMax + 1);
  EXPECT_NE(gaps(too_many, 0).DecodeTo(too_many).find("a span of 524289"), std::string::npos);
  EXPECT_EQ(gaps(4, 5).DecodeTo(4), "bad delta: 5 changed of 4 elements");
  EXPECT_EQ(Stream(1, 0).Span(Method::kAll, 0, 4, 3).DecodeTo(4),
            "bad delta: 3 changed of 4 elements");
  EXPECT_EQ(gaps(4, 1).Number(5).DecodeTo(4), "bad delta: more gaps than elements");
  EXPECT_EQ(gaps(4, 1).Number(1).Byte(0).Byte(4).Byte(0).Byte(5).DecodeTo(4),
            "bad delta: gaps go too far");
  EXPECT_EQ(gaps(4, 1).Number(2).Byte(0).Byte(0).Byte(0).Byte(0).Byte(5).DecodeTo(4),
            "bad delta: gaps go too far");
  EXPECT_EQ(gaps(4, 2).Number(1).Byte(0).Byte(0).Byte(2).Byte(5).DecodeTo(4),
            "bad delta: fewer gaps than changes");
  EXPECT_EQ(gaps(4, 1).Number(1).Byte(3).DecodeTo(4), "bad delta: section of kind 3");
  EXPECT_EQ(gaps(4, 1).Number(1).Byte(1).Number(4).Number(7).DecodeTo(4),
            "bad delta: no zstd frame");
  EXPECT_EQ(gaps(4, 1).Number(1).Byte(1).Number(0xFFFFFFFF).DecodeTo(4), "bad delta: cut short");
  const auto bitmap = [](uint32_t changed) {
    return Stream(1, 0).Span(Method::kBitmap, 0, 4, changed).Byte(0);
  };
  EXPECT_EQ(bitmap(2).Byte(0x05).Byte(2).Byte(1).DecodeTo(4), "");
  EXPECT_EQ(bitmap(2).Byte(0x11).Byte(2).Byte(1).DecodeTo(4),
            "bad delta: a bitmap with bits behind its end");
  EXPECT_EQ(bitmap(2).Byte(0x07).Byte(2).Byte(1).DecodeTo(4),
            "bad delta: a bitmap of another number of changes");
  const auto fields = [](int packed, uint32_t exceptions) {
    return Stream(1, 0).Span(Method::kAll, 2, 4, 4).Byte(0).Byte(packed).Number(exceptions);
  };
  EXPECT_EQ(fields(0x0C, 1).Byte(0).Byte(7).DecodeTo(4), "");
  EXPECT_EQ(fields(0x0C, 2).Byte(0).Byte(7).Byte(7).DecodeTo(4),
            "bad delta: fewer exceptions than it says");
  EXPECT_EQ(fields(0x0C, 0).DecodeTo(4), "bad delta: more exceptions than it says");
  EXPECT_EQ(fields(0x0C, 5).DecodeTo(4), "bad delta: more exceptions than changes");
  EXPECT_EQ(fields(0x0C, 1).Byte(0).Byte(7).Byte(0).DecodeTo(4), "bad delta: bytes behind its end");
}

// A frame that claims to be small and is not, one with a skippable frame before it, and two.
TEST(DeltaHostileTest, OtherZstdFramesAreRefused) {
  Prng prng(4);
  const Bytes base(100000);
  Bytes now = base;
  for (size_t i = 0; i < 500; ++i) now[prng.Below(now.size())] = std::byte{1};
  Bytes payload(PayloadBytesMax(CodecId::kDelta, now.size()));
  const Result<Payload> encoded = EncodeDelta({1, false}, base, now, payload);
  ASSERT_TRUE(encoded.ok());
  payload.resize(encoded->size_bytes);
  // Behind head, span and the number of gaps: the gaps' section, kind 1.
  constexpr size_t kSectionAt = 2 + 10 + 4;
  ASSERT_EQ(payload[kSectionAt], std::byte{1});
  const auto length = LoadLittle<uint32_t>(&payload[kSectionAt + 1]);
  const auto frame = payload.begin() + static_cast<ptrdiff_t>(kSectionAt + 5);
  const auto refused = [&](size_t frame_offset, const Bytes& inserted) {
    Bytes bad = payload;
    bad.insert(bad.begin() + static_cast<ptrdiff_t>(kSectionAt + 5 + frame_offset),
               inserted.begin(), inserted.end());
    StoreLittle(&bad[kSectionAt + 1], static_cast<uint32_t>(length + inserted.size()));
    Bytes out = base;
    return DecodePayload(CodecId::kDelta, bad, out).message() == "bad delta: no zstd frame";
  };
  Bytes skippable(8);
  StoreLittle(skippable.data(), uint32_t{0x184D2A50});
  EXPECT_TRUE(refused(0, skippable));
  EXPECT_TRUE(refused(length, skippable));
  EXPECT_TRUE(refused(length, Bytes(frame, frame + length)));
  EXPECT_TRUE(refused(length, Bytes(1)));
}

}  // namespace
}  // namespace stepwell::format
