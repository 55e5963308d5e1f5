// SPDX-License-Identifier: Apache-2.0
// Deltas decoded as FORMAT.md says, step by step and element after element, beside the decoder.
#include <gtest/gtest.h>
#include <zstd.h>

#include <cstring>

#include "format/codec.h"
#include "format/endian.h"
#include "tests/prng.h"

namespace stepwell::format {
namespace {

// Trusts the stream: it was just encoded.
class Oracle {
 public:
  Oracle(ConstBytes stream, std::vector<std::byte>* chunk) : left_(stream), chunk_(chunk) {
    item_bytes_ = Number(1);
    sign_magnitude_ = Number(1) == 1;
    const size_t items = chunk_->size() / item_bytes_;
    for (size_t i = items * item_bytes_; i < chunk_->size(); ++i) {
      (*chunk_)[i] = static_cast<std::byte>(Number(1));
    }
    for (size_t at = 0; at < items;) at += Span(at);
    EXPECT_TRUE(left_.empty());
  }
  // Counts of spans by method, and of fields by width.
  int methods[3] = {};
  int fields[9] = {};

 private:
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, left_.data(), bytes);
    left_ = left_.subspan(bytes);
    return value;
  }

  std::vector<uint8_t> Section(size_t count) {
    std::vector<uint8_t> bytes(count);
    if (count == 0) return bytes;
    const uint64_t kind = Number(1);
    if (kind == 2) {
      std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(Number(1)));
      return bytes;
    }
    const size_t stored = kind == 0 ? count : Number(4);
    if (kind == 0) {
      std::memcpy(bytes.data(), left_.data(), stored);
    } else {
      EXPECT_EQ(ZSTD_decompress(bytes.data(), count, left_.data(), stored), count);
    }
    left_ = left_.subspan(stored);
    return bytes;
  }

  std::vector<size_t> Positions(uint64_t method, size_t items) {
    std::vector<size_t> positions;
    if (method == 0) {
      size_t next = 0;
      for (const uint8_t gap : Section(Number(4))) {
        next += gap;
        if (gap < 255) positions.push_back(next++);
      }
    } else if (method == 1) {
      const std::vector<uint8_t> bitmap = Section((items + 7) / 8);
      for (size_t i = 0; i < items; ++i) {
        if ((bitmap[i / 8] >> i % 8 & 1) != 0) positions.push_back(i);
      }
    } else {
      for (size_t i = 0; i < items; ++i) positions.push_back(i);
    }
    return positions;
  }

  std::vector<uint64_t> Planes(size_t count) {
    std::vector<uint64_t> numbers(count);
    for (size_t plane = 0; plane < item_bytes_; ++plane) {
      const std::vector<uint8_t> bytes = Section(count);
      for (size_t i = 0; i < count; ++i) numbers[i] |= uint64_t{bytes[i]} << (8 * plane);
    }
    return numbers;
  }

  std::vector<uint64_t> Zigzags(uint64_t method, unsigned bits, size_t count) {
    if (count == 0) return {};
    if (bits == 0) return Planes(count);
    const std::vector<uint8_t> packed = Section((count * bits + 7) / 8);
    const std::vector<uint64_t> rests = Planes(Number(4));
    std::vector<uint64_t> zigzags;
    size_t exceptions = 0;
    for (size_t i = 0; i < count; ++i) {
      uint64_t field = packed[i * bits / 8] >> (i * bits % 8) & ((1U << bits) - 1);
      if (field == (1U << bits) - 1) field += rests.at(exceptions++);
      zigzags.push_back(field + (method == 2 ? 0 : 1));
    }
    EXPECT_EQ(exceptions, rests.size());
    return zigzags;
  }

  uint64_t Ordered(uint64_t x) const {
    const uint64_t top = uint64_t{1} << (8 * item_bytes_ - 1);
    return sign_magnitude_ && (x & top) != 0 ? x ^ (top - 1) : x;
  }

  size_t Span(size_t first) {
    const uint64_t method = Number(1);
    const auto bits = static_cast<unsigned>(Number(1));
    const size_t items = Number(4);
    const size_t count = Number(4);
    ++methods[method];
    ++fields[count == 0 ? 0 : bits];
    const std::vector<size_t> positions = Positions(method, items);
    EXPECT_EQ(positions.size(), count);
    const std::vector<uint64_t> zigzags = Zigzags(method, bits, count);
    for (size_t i = 0; i < count; ++i) {
      std::byte* const at = chunk_->data() + (first + positions[i]) * item_bytes_;
      uint64_t base = 0;
      std::memcpy(&base, at, item_bytes_);
      const uint64_t half = zigzags[i] / 2;
      const uint64_t difference = zigzags[i] % 2 == 0 ? half : ~half;
      const uint64_t now = Ordered(Mask(Ordered(base) + difference));
      std::memcpy(at, &now, item_bytes_);
    }
    return items;
  }

  uint64_t Mask(uint64_t value) const {
    return item_bytes_ == 8 ? value : value & ((uint64_t{1} << (8 * item_bytes_)) - 1);
  }

  ConstBytes left_;
  std::vector<std::byte>* chunk_;
  size_t item_bytes_ = 0;
  bool sign_magnitude_ = false;
};

TEST(DeltaOracleTest, StreamsAreAsTheFormatSays) {
  Prng prng(1);
  int methods[3] = {};
  int fields[9] = {};
  for (int i = 0; i < 400; ++i) {
    const DeltaType type = {static_cast<uint8_t>(1 << prng.Below(4)), prng.Coin()};
    std::vector<std::byte> base = prng.Bytes(prng.Below(i % 50 == 0 ? 3000000 : 20000));
    std::vector<std::byte> now = base;
    const uint64_t unchanged_of_1000 = prng.Below(1001);
    const uint64_t bits = 1 + prng.Below(prng.Coin() ? 4 : 8 * type.item_bytes);
    for (size_t at = 0; at + type.item_bytes <= now.size(); at += type.item_bytes) {
      if (prng.Below(1000) < unchanged_of_1000) continue;
      uint64_t value = 0;
      std::memcpy(&value, &now[at], type.item_bytes);
      value += (prng.Next() >> (64 - bits)) - (uint64_t{1} << bits >> 1);
      std::memcpy(&now[at], &value, type.item_bytes);
    }
    if (!now.empty()) now.back() = std::byte{7};
    std::vector<std::byte> payload(PayloadBytesMax(CodecId::kDelta, now.size()));
    const Result<Payload> encoded = EncodeDelta(type, base, now, payload);
    ASSERT_TRUE(encoded.ok());
    if (encoded->size_bytes == 0) continue;
    const Oracle oracle(ConstBytes(payload).first(encoded->size_bytes - kCrcBytes), &base);
    ASSERT_TRUE(base == now) << i;
    for (size_t k = 0; k < 3; ++k) methods[k] += oracle.methods[k];
    for (size_t k = 0; k < 9; ++k) fields[k] += oracle.fields[k];
  }
  for (const int spans : methods) EXPECT_GT(spans, 10);
  for (const int bits : {0, 2, 4, 8}) EXPECT_GT(fields[bits], 10) << bits;
}

}  // namespace
}  // namespace stepwell::format
